"""Labels, negatives and a teacher's scores: read, mined, refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from hybridr.errors import DataError
from hybridr.evaluation.label_free import Bm25
from hybridr.training.judged import (
    Judged,
    bm25_ranking,
    mine_negatives,
    read_judged_beir,
    read_judged_files,
    read_negatives,
    read_scores,
)
from hybridr.training.rem import train_rem
from support.odd_ids import FORGING
from support.rem_training import rem_settings, write_teacher, write_toy


def test_queries_that_the_teacher_left_out_are_dropped(judged: Judged, dam: Path, tmp_path: Path) -> None:
    teacher = write_teacher(tmp_path / "teacher.tsv", judged)
    kept = [line for line in teacher.read_text().splitlines() if not line.startswith(("q1\t", "q2\td2\t"))]
    teacher.write_text("\n".join(kept))
    given = rem_settings(dam, tmp_path / "rem", loss="distil", teacher=teacher, steps=1)
    trained = train_rem(judged, given)
    assert (trained.dropped, trained.queries) == (2, 38)
    teacher.write_text("q1\td5\t3.5\n")
    with pytest.raises(DataError, match="scores for no query a relevant document and at least 3 others"):
        train_rem(judged, rem_settings(dam, tmp_path / "other", loss="distil", teacher=teacher, steps=1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.pkl", pickle.dumps({"q": {"d": 1.0}}), "a pickle is never opened"),
        ("t.tsv", pickle.dumps({"q": {"d": 1.0}}), "a pickle is never opened"),
        ("t.csv", b"q,d,1", "read from .jsonl or .tsv"),
        ("t.tsv", b"q\td\thigh\n", r"t.tsv:1: no query, document and score"),
        ("t.tsv", b"q d 1\nq d nan\n", r"t.tsv:2: the score of query 'q' is nan"),
        ("t.jsonl", b'{"query-id": "q", "score": 1}\n', r"t.jsonl:1: no query"),
    ],
)
def test_teachers_that_cannot_be_read(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_scores(tmp_path / name))


def test_mined_negatives(judged: Judged, tmp_path: Path) -> None:
    mined = mine_negatives(judged, tmp_path, 5)
    lines = dict(line.split("\t") for line in mined.read_text().splitlines())
    assert [len(listed.split()) for listed in lines.values()] == [5] * 40
    corpus = list(judged.documents())
    index = Bm25([document.contents for document in corpus])
    for query_id, listed in lines.items():
        best = [corpus[int(place)].doc_id for place in index.search(judged.queries[query_id], 40)]
        assert listed.split() == [name for name in best if name not in judged.positives[query_id]][:5]
    made = mined.stat().st_mtime_ns
    assert mine_negatives(judged, tmp_path, 5).stat().st_mtime_ns == made
    known = {document.doc_id: position for position, document in enumerate(corpus)}
    assert len(dict(read_negatives(mined, judged, known))) == 40
    assert mine_negatives(judged, tmp_path, 6).stat().st_mtime_ns > made


def test_broken_off_mining_goes_on(judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mine_negatives(judged, tmp_path / "whole", 4).read_bytes()
    monkeypatch.setattr("hybridr.training.judged.BATCH", 16)
    asked: list[str] = []

    def rank(queries: Any, k: int) -> dict[str, dict[str, float]]:
        if len(asked) == 16:
            raise KeyboardInterrupt
        asked.extend(query.query_id for query in queries)
        from hybridr.training.judged import bm25_ranking

        return bm25_ranking(judged, lambda *_: None)(queries, k)

    with pytest.raises(KeyboardInterrupt):
        mine_negatives(judged, tmp_path / "broken", 4, rank=rank)
    part = next((tmp_path / "broken").glob(".negatives.part.*"))
    part.write_bytes(part.read_bytes() + b"q16\td1 d")
    assert mine_negatives(judged, tmp_path / "broken", 4).read_bytes() == whole


def files_of(folder: Path, qrels: str, negatives: str = "") -> tuple[Judged, Path]:
    for name, text in (
        ("qrels", qrels),
        ("negatives", negatives),
        ("queries", "q1\tone\nq2\ttwo\nq3\tthree\n"),
        ("corpus", "".join(f"d{i}\ttext {i}\n" for i in range(6))),
    ):
        (folder / f"{name}.tsv").write_text(text)
    names = (folder / f"{name}.tsv" for name in ("qrels", "queries", "corpus"))
    return read_judged_files(*names), folder / "negatives.tsv"


def test_the_files_of_ddr(tmp_path: Path) -> None:
    judged, _ = files_of(tmp_path, "q1 0 d1 1\nq1 0 d2 2\nq2 0 d3 0\nq3\t0\td4\t1\n")
    assert judged.queries == {"q1": "one", "q3": "three"}
    assert judged.positives == {"q1": ("d1", "d2"), "q3": ("d4",)}
    assert [document.text for document in judged.documents()] == [f"text {i}" for i in range(6)]
    assert judged.sample(1, 3).queries.keys() < judged.queries.keys()
    assert judged.sample(1, 3).fingerprint != judged.fingerprint
    assert judged.sample(2, 3) is judged


@pytest.mark.parametrize(
    ("qrels", "negatives", "message"),
    [
        ("q1 0 d1 1.5\n", "", "qrels.tsv:1: needed"),
        ("q1 0 d1 0\n", "", "no query has a document of grade 1"),
        ("q9 0 d1 1\n", "", "lacks 1 judged query, such as 'q9'"),
        ("q1 0 d9 1\n", "q1\td1\n", "lacks document 'd9', relevant to query 'q1'"),
        ("q1 0 d1 1\nq2 0 d2 1\n", "q1\td3 d4\n", "lacks 1 query that the qrels have, such as 'q2'"),
        ("q1 0 d1 1\n", "q1\td3\nq3\td4\n", "query 'q3' is not in the qrels"),
        ("q1 0 d1 1\n", "q1\td3\nq1\td4\n", "query 'q1' is repeated"),
        ("q1 0 d1 1\n", "q1\td3 d1\n", "document 'd1' is a negative of query 'q1' and relevant"),
        ("q1 0 d1 1\n", "q1\td3 d8\n", "document 'd8', a negative of query 'q1', is not in the corpus"),
    ],
)
def test_labels_that_cannot_be_used(qrels: str, negatives: str, message: str, dam: Path, tmp_path) -> None:
    with pytest.raises(DataError, match=message):  # noqa: PT012
        judged, file = files_of(tmp_path, qrels, negatives)
        train_rem(judged, rem_settings(dam, tmp_path / "rem", negatives=file, batch_size=1))


def test_texts_that_are_missing(toy: Path, dam: Path, tmp_path: Path) -> None:
    folder = write_toy(tmp_path / "beir")
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    lines[7] = json.dumps({"_id": "d7", "title": "", "text": " "})
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match="document 'd7', which is relevant to a query, has no text"):
        train_rem(read_judged_beir(folder), rem_settings(dam, tmp_path / "rem"))
    files = {"qrels": "q 0 d1 1\n", "queries": "q\ttext\n", "corpus": "d1\ttext\tmore\n"}
    for name, text in files.items():
        (tmp_path / f"{name}.tsv").write_text(text)
    judgements = read_judged_files(*(tmp_path / f"{name}.tsv" for name in files))
    with pytest.raises(DataError, match="corpus.tsv:1: needed 'id<TAB>text'"):
        list(judgements.documents())


@pytest.mark.attack(128)
@pytest.mark.parametrize("doc_id", [*FORGING, "a b"])
def test_what_no_line_holds_is_no_negative(judged: Judged, tmp_path: Path, doc_id: str) -> None:
    """One odd document stops no training, and makes no line of its own."""
    plain = mine_negatives(judged, tmp_path / "plain", 5).read_text()

    def rank(queries: Any, k: int) -> dict[str, dict[str, float]]:
        run = bm25_ranking(judged, lambda *_: None)(queries, k)
        return {query_id: {doc_id: 99.0, **scores} for query_id, scores in run.items()}

    assert mine_negatives(judged, tmp_path / "odd", 5, rank=rank).read_text() == plain
