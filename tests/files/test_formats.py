"""Run files, judgements and BEIR folders: written, read, refused."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hybridr.errors import DataError, SettingsError
from hybridr.evaluation.evaluation import evaluate
from hybridr.files import formats
from hybridr.files.formats import (
    qrels_table,
    read_beir,
    read_qrels,
    read_run,
    write_beir,
    write_qrels,
    write_run,
)
from hybridr.records import Document, Query
from support.odd_ids import FORGING, HARMLESS

QUERIES = [Query("q1", "one"), Query("q2", "two"), Query("q3", "three")]
QRELS = {"q1": {"a": 1, "b": 0, "c": 2}, "q2": {"d": 1}, "q3": {"z": 1}}
RUN = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"e": 1.0, "d": 0.5}}


def test_beir_folder_round_trip(tmp_path: Path) -> None:
    corpus = [Document("a", "text of a", "title"), Document("b", "b\nlines")]
    write_beir(tmp_path, corpus, QUERIES[:1], {"q1": {"a": 1}})
    assert read_beir(tmp_path) == (corpus, QUERIES[:1], {"q1": {"a": 1}})
    with pytest.raises(DataError, match="no qrels for split 'dev'") as caught:
        read_beir(tmp_path, "dev")
    assert caught.value.hint == "splits there: test"


def test_runs_are_written_for_trec_eval(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'a b' is empty or holds a blank"):
        write_run(tmp_path / "bad.trec", {"a b": {"d1": 1.0}}, "x")
    assert list(tmp_path.iterdir()) == []
    found = evaluate({"../bm25": RUN}, QUERIES, QRELS)
    with pytest.raises(SettingsError, match=r"'../bm25' cannot be a file name"):
        found.write_runs(tmp_path)


BAD_RUNS = {
    "q1 Q0 a 1 3\n": ":1: needed 'query Q0 document rank score tag'",
    "q1 Q0 a 1 high t\n": ":1: needed",
    "q1 Q0 a 1 3 t\nq1 Q0 a 2 2 t\n": ":2: query 'q1' lists 'a' twice",
    "\n": "holds no results",
}


BAD_QRELS = {
    "query-id\tcorpus-id\tscore\nq1\ta\t0.5\n": ":2: needed 'query-id<TAB>corpus-id<TAB>whole number'",
    "q1 0 a one\n": ":1: needed",
    "q1 0 a 1\nq1 0 a 2\n": ":2: query 'q1' judges 'a' twice",
    "q1 a\n": ":1: needed",
    "query-id\tcorpus-id\tscore\n": "holds no judgements",
}


@pytest.mark.parametrize(
    ("read", "content", "words"),
    [(read_run, *bad) for bad in BAD_RUNS.items()] + [(read_qrels, *bad) for bad in BAD_QRELS.items()],
)
def test_bad_files(tmp_path: Path, read: Callable[[Path], Any], content: str, words: str) -> None:
    file = tmp_path / "a.trec"
    file.write_text(content)
    with pytest.raises(DataError, match=words):
        read(file)
    with pytest.raises(DataError, match="cannot read"):
        read(tmp_path / "nothing")


def corpus_of(folder: Path, ids: Iterable[object]) -> Path:
    file = folder / "corpus.jsonl"
    file.write_text("".join(json.dumps({"_id": one, "text": "a"}) + "\n" for one in ids))
    return file


@pytest.mark.parametrize("again", ["3", "7", "10"])
def test_an_id_that_comes_again_is_found_wherever_it_stood(tmp_path, monkeypatch, again: str) -> None:
    monkeypatch.setattr(formats, "MIN_SORTED", 4)
    file = corpus_of(tmp_path, [*range(11), again, 12])
    with pytest.raises(DataError, match=f"corpus.jsonl:12: document id '{again}' is repeated"):
        list(formats.read_corpus(file))
    assert len(list(formats.read_corpus(corpus_of(tmp_path, range(200))))) == 200


def test_ids_that_look_the_same_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "blake2b", lambda *_, **__: hashlib.blake2b(b"all alike", digest_size=8))
    found = formats.read_corpus(corpus_of(tmp_path, range(20)))
    assert [one["_id"] for one in found] == [str(number) for number in range(20)]


def test_ids_that_were_seen_take_little_memory() -> None:
    seen = formats.SeenIds()
    tracemalloc.start()
    try:
        for number in range(100_000):
            seen.add(f"document-{number}")
        seen.merge_new()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert not seen.repeated
    assert taken < 4e6, "as strings they take more than ten"


@pytest.mark.attack(128)
@pytest.mark.parametrize("doc_id", FORGING)
def test_no_id_writes_a_line_of_its_own(tmp_path: Path, doc_id: str) -> None:
    for column in ("score", "confidence"):
        with pytest.raises(DataError, match="qrels cannot hold it"):
            qrels_table({"query": {"h1": 1, doc_id: 1}}, column)
    with pytest.raises(DataError, match="qrels cannot hold it"):
        qrels_table({doc_id: {"h1": 1}})
    with pytest.raises(DataError, match="a TREC file cannot hold it"):
        write_qrels(tmp_path / "qrels", {"q1": {doc_id: 1}})
    with pytest.raises(DataError, match="a TREC file cannot hold it"):
        write_run(tmp_path / "run", {doc_id: {"h1": 1.0}}, "x")
    assert list(tmp_path.iterdir()) == []
    if "\ud800" in doc_id:
        with pytest.raises(DataError, match="lone surrogate"):
            evaluate({"mine": {"q1": {"a": 2.0, doc_id: 3.0}}}, QUERIES[:1], QRELS)
        return
    evaluation = evaluate({"mine": {"q1": {"a": 2.0, doc_id: 3.0, "b": 1.0}}}, QUERIES[:1], QRELS)
    [file] = evaluation.write_runs(tmp_path).values()
    assert read_run(Path(file)) == {"q1": {"a": 2.0, "b": 1.0}}
    assert evaluation.unwritable() == {doc_id}


@pytest.mark.parametrize("doc_id", HARMLESS)
def test_an_odd_id_that_fits_is_written(tmp_path: Path, doc_id: str) -> None:
    (tmp_path / "qrels.tsv").write_text(qrels_table({"q1": {doc_id: 1}}), encoding="utf-8")
    assert read_qrels(tmp_path / "qrels.tsv") == {"q1": {doc_id: 1}}
