"""Where training texts come from: samples, files, and what cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hybridr.errors import DataError
from hybridr.records import Document
from hybridr.relevance.corpus import CorpusFile, draw_sample, estimate_bytes
from support.tiny import tiny_corpus


def test_the_sample_does_not_depend_on_the_order_of_reading() -> None:
    documents = tiny_corpus(200)
    first = draw_sample(documents, 50, seed=1)
    assert (len(first.documents), first) == (50, draw_sample(documents[::-1], 50, seed=1))
    assert draw_sample(documents, 50).documents != first.documents
    doubled = [*documents, *(document._replace(doc_id="x" + document.doc_id) for document in documents)]
    assert len(draw_sample([*doubled, Document("empty", " ")], 1_000).documents) == 200


def test_tsv_as_ddr_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "corpus.tsv.gz"
    with gzip.open(file, "wt") as lines:
        lines.write("7\tbalan bason\n9\tmiran\r\n8\t\n")
    assert list(CorpusFile(file)) == [Document("7", "balan bason"), Document("9", "miran"), Document("8", "")]


@pytest.mark.parametrize("line", ["8 no tab", "8\ta\tb", "\ttext"])
def test_a_tsv_needs_two_columns(tmp_path: Path, line: str) -> None:
    file = tmp_path / "corpus.tsv"
    file.write_text(f"7\tbalan\n{line}\n9\tmiran\n")
    with pytest.raises(DataError, match=r"corpus\.tsv:2: needed 'id<TAB>text'"):
        list(CorpusFile(file))


def test_a_damaged_gzip_is_said(tmp_path: Path) -> None:
    file = tmp_path / "corpus.tsv.gz"
    file.write_bytes(gzip.compress(b"7\tbalan\n" * 1000)[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        list(CorpusFile(file))
    with pytest.raises(DataError, match="cannot read"):
        list(CorpusFile(tmp_path / "none.tsv"))


def test_jsonl_and_beir(tmp_path: Path) -> None:
    records = [{"_id": "1", "title": "balan", "text": "bason"}, {"_id": "2", "body": ["miran", "tulan"]}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert list(CorpusFile(tmp_path)) == [Document("1", "bason", "balan"), Document("2", "")]
    named = CorpusFile(tmp_path / "corpus.jsonl", ("title", "text", "body"))
    assert [document.contents for document in named] == ["balan bason", "miran tulan"]
    with pytest.raises(DataError, match=r":1: no field body"):
        list(CorpusFile(tmp_path / "corpus.jsonl", ("body",)))


@pytest.mark.parametrize("ending", ["jsonl.gz", "json", "json.gz", "ndjson"])
def test_other_names_of_json_lines_are_read_as_such(ending: str, tmp_path: Path) -> None:
    """Before, all of them were taken for lines of id and text."""
    file, line = tmp_path / f"corpus.{ending}", b'{"_id": "1", "text": "a\\tb"}\n'
    file.write_bytes(gzip.compress(line) if ending.endswith("gz") else line)
    assert list(CorpusFile(file)) == [Document("1", "a\tb")]
    assert estimate_bytes(CorpusFile(file)) > 0
