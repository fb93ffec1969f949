"""Thirty judged queries decide which encoder is kept; fewer leave it to the gate without labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import load_encoder
from hybridr.errors import SettingsError
from hybridr.records import Document, Query
from hybridr.relevance.gate import DOCUMENTS, MIN_JUDGED, QueriesQrels, compare_on_judged, read_evidence
from hybridr.training.adaptation import adapt
from hybridr.training.settings import AdaptSettings
from support.tiny import tiny_corpus, tiny_retriever

COUNT = 60


class Knows:
    """An encoder that finds the document whose number a text ends with; `right` of them, and no other."""

    dim, similarity, max_tokens = COUNT, "cosine", 64

    def __init__(self, right: int) -> None:
        self.right, self.fingerprint = right, f"knows-{right}"

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        places = [number if number < self.right else (number + 7) % COUNT for number in map(number_of, texts)]
        return np.eye(COUNT, dtype=np.float32)[places]

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        return np.eye(COUNT, dtype=np.float32)[[number_of(text) for text in texts]]


def number_of(text: str) -> int:
    """Read the number; those of texts by which encoders are calibrated are by their lengths."""
    last = text.split()[-1]
    return int(last) if last.isdigit() else len(text) % COUNT


def numbered(count: int = COUNT) -> list[Document]:
    return [Document(f"d{number}", f"page {number}") for number in range(count)]


def judged(count: int) -> QueriesQrels:
    queries = [Query(f"q{number}", f"question {number}") for number in range(count)]
    return queries, {f"q{number}": {f"d{number}": 1} for number in range(count)}


def test_a_gain_that_is_shown_passes_and_the_other_way_round_does_not() -> None:
    proof = read_evidence(numbered(), judged(COUNT), (), seed=1)
    assert proof.decides
    better = compare_on_judged(Knows(10), Knows(50), proof, [])
    assert better.passed
    assert better.judged == COUNT
    dense, hybrid = better.rows
    assert dense.name == "dense nDCG@10, judged"
    assert dense.new > dense.old + 0.5
    assert hybrid.p < 0.05
    worse = compare_on_judged(Knows(50), Knows(10), proof, [])
    assert not worse.passed
    assert "no gain is shown" in worse.reasons[0]


def test_the_same_twice_is_no_gain() -> None:
    found = compare_on_judged(Knows(30), Knows(30), read_evidence(numbered(), judged(COUNT), (), seed=1), [])
    assert not found.passed
    assert [row.old - row.new for row in found.rows] == [0.0, 0.0]


def test_the_corpus_is_filled_up_with_other_documents_once_each() -> None:
    others = [Document(f"d{number}", f"page {number % COUNT}") for number in range(DOCUMENTS + 50)]
    proof = read_evidence(numbered(), judged(40), (), seed=1)
    assert len(proof.documents) == 40
    assert compare_on_judged(Knows(30), Knows(40), proof, others).documents == DOCUMENTS


def test_queries_without_a_relevant_document_here_do_not_count() -> None:
    queries, qrels = judged(40)
    qrels |= {"q0": {"gone": 1}, "q1": {"d1": 0}, "q2": {"d2": 1, "gone": 2}}
    proof = read_evidence(numbered(), ([*queries, Query("q99", "nobody judged this 9")], qrels), (), seed=1)
    assert sorted(one.query_id for one in proof.queries) == sorted(f"q{number}" for number in range(2, 40))


def test_deep_pools_are_judged_by_fewer_queries_with_all_their_documents() -> None:
    queries = [Query(f"q{number}", f"question {number}") for number in range(100)]
    qrels = {f"q{number}": {f"d{number * 60 + place}": 1 for place in range(60)} for number in range(100)}
    proof = read_evidence(numbered(6_000), (queries, qrels), (), seed=1)
    assert len(proof.documents) <= DOCUMENTS
    assert len(proof.queries) == DOCUMENTS // 60


def test_documents_that_can_be_read_once_are_refused() -> None:
    with pytest.raises(SettingsError, match="only once"):
        read_evidence(iter(numbered()), judged(40), (), seed=1)


@pytest.mark.parametrize("count", [MIN_JUDGED - 1, MIN_JUDGED])
def test_thirty_judged_queries_decide_what_adapt_keeps(count: int, tmp_path: Path) -> None:
    base = export(tiny_retriever(), tmp_path / "base")
    corpus = tiny_corpus(120)
    texts = [" ".join(document.text.split()[:3]) for document in corpus[:count]]
    queries = [Query(f"q{number}", text) for number, text in enumerate(texts)]
    qrels = {f"q{number}": {corpus[number].doc_id: 1} for number in range(count)}
    settings = AdaptSettings(
        out=tmp_path / "out",
        base=str(base),
        objective_settings={"second": str(base), "held_out": 24},
        max_tokens=64,
    )
    found = adapt(corpus, settings, judgements=(queries, qrels))
    decided = count >= MIN_JUDGED
    assert found.gate.judged == (count if decided else 0)
    assert found.promoted is not decided, "the same retriever twice is no gain"
    assert (f"| on {count} judged queries |" in (found.folder / "README.md").read_text()) is decided
    if decided:
        assert load_encoder(found.folder).fingerprint == load_encoder(base).fingerprint
    assert adapt(corpus, settings, judgements=(queries, qrels)).reused
    assert not adapt(corpus, settings).gate.judged, "other judgements, another decision"
