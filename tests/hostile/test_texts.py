"""Documents, tables and queries in files: what is malformed is refused with file and line."""

from __future__ import annotations

import gzip
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr.errors import DataError
from hybridr.files.formats import (
    read_corpus,
    read_jsonl,
    read_qrels,
    read_queries,
    read_query_log,
    read_run,
    read_table,
)
from hybridr.training.judged import read_scores
from support import hostile


def test_a_judged_query_with_half_a_character_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_bytes(b'{"_id": "q", "text": "\\ud800 cat"}\n')
    with pytest.raises(DataError, match="queries.jsonl:1: query 'q' contains a lone surrogate"):
        read_queries(tmp_path, {"q": {"d": 1}})


@pytest.mark.attack(47)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"_id": "1", "text": "\xff"}', "is not UTF-8: invalid start byte"),
        (b'{"_id": "1", "text": "\\ud800"}', "corpus.jsonl:2: document '1' contains a lone surrogate"),
        (b'{"_id": "\\udfff"}', "corpus.jsonl:2: document '.*' contains a lone surrogate"),
        (b'{"_id": "0"}', "corpus.jsonl:2: document id '0' is repeated"),
        (hostile.DEEP.encode(), "corpus.jsonl:2: not JSON: it is nested too deep"),
        (b'{"n": ' + b"9" * 5_000 + b"}", "corpus.jsonl:2: not JSON: Exceeds the limit"),
        (b'{"text": "no id"}', "corpus.jsonl:2: the document has no '_id'"),
        (b"5", "corpus.jsonl:2: needed a JSON object, found int"),
        (b'{"_id": ', "corpus.jsonl:2: not JSON"),
    ],
)
def test_a_malformed_document_is_refused_by_its_line(line: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_bytes(b'{"_id": "0", "text": "a"}\n' + line + b"\n")
    with pytest.raises(DataError, match=words):
        list(read_corpus(file))


@pytest.mark.attack(60)
@pytest.mark.parametrize("read", [read_table, read_scores])
def test_a_line_without_an_end_is_refused_before_it_is_read(read: Any, tmp_path: Path) -> None:
    file = hostile.gzip_bomb(tmp_path / "table.tsv.gz")
    assert file.stat().st_size < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"it has a line of more than 4,000,000 characters \(HYBRIDR_LINE_MB"):
        list(limited(read, file))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000, "kB"


def limited(read: Any, file: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDR_LINE_MB", "4")
        yield from read(file)


@pytest.mark.attack(60)
@pytest.mark.parametrize("read", [read_jsonl, read_qrels, read_run, read_query_log])
def test_plain_files_have_the_same_limit(read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDR_LINE_MB", "0.001")
    file = tmp_path / "long"
    file.write_text("x" * 2_000)
    with pytest.raises(DataError, match="cannot be read: it has a line of more than 1,000 characters"):
        list(read(file))


@pytest.mark.attack(60)
def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.tsv.gz"
    whole = gzip.compress(b"id\ttext\n" * 10_000)
    for content in (whole[:-20], whole[:10] + bytes(50), b"\x1f\x8b" + hostile.noise(100), b"\x80\x04"):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"table\.tsv\.gz"):
            list(read_table(file))
