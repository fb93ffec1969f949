"""Learning: what a rehearsal advises where nothing is gained, and what changed since an index learnt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo, Record, meta_of
from hybridr.cluster.record_parts import Remembered
from hybridr.evaluation.significance import BoundedMean
from hybridr.records import Query
from hybridr.relevance import learning
from hybridr.relevance.learning import Changes, LearnResult, Rehearsal, compare_with_learnt
from hybridr.search.past_queries import PastQuery, Relevant
from support.hashing import HashingEncoder

NONE = BoundedMean(0.0, 0.0, 0.0)
LEARNT = {"lamp": [{"d1", "d2"}], "chair": [{"d3"}, {"d4"}], "sofa": [{"d9"}]}
NOW = {"lamp": {"d1": 1, "d2": 2, "d7": 0}, "chair": {"d4": 1}, "sofa": {"d8": 1}, "shelf": {"d5": 1}}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> dict[str, Record]:
    told = Remembered(queries=3, encoder="e", job="1")
    records = {"docs": Record(encoder="e", memory=told)}

    def find_past_queries(
        _: Any, index: str, texts: list[str], vectors: Any, least: float
    ) -> dict[str, list[PastQuery]]:
        assert len(vectors) == len(texts)
        assert least > 0.99
        found = {
            text: [[Relevant(doc, 1.0, "s") for doc in one] for one in LEARNT.get(text, [])] for text in texts
        }
        return {text: [PastQuery(1.0, one) for one in of] for text, of in found.items()}

    monkeypatch.setattr(learning, "find_past_queries", find_past_queries)
    monkeypatch.setattr(learning, "LOOKUP_BATCH", 3)
    monkeypatch.setattr(
        learning, "resolve", lambda _, name: IndexInfo(name, {}, {"_meta": meta_of(records[name])}, {})
    )
    monkeypatch.setattr(learning, "encoder_for", lambda *_: HashingEncoder())
    return records


def compared() -> Changes | None:
    queries = [Query(text, text) for text in NOW]
    return compare_with_learnt(None, "docs", (queries, NOW))  # type: ignore[arg-type]


def test_queries_are_the_same_with_other_documents_or_new(index: dict[str, Record]) -> None:
    assert compared() == Changes(learnt=3, compared=4, same=2, others=1, new=1)


def test_an_index_that_learnt_nothing_has_nothing_to_compare(index: dict[str, Record]) -> None:
    index["docs"] = Record(encoder="e")
    assert compared() is None
    index["docs"] = Record(encoder="other", memory=Remembered(queries=3, encoder="e", job="1"))
    assert compared() is None


def rehearsal(returning: int, again: BoundedMean) -> Rehearsal:
    return Rehearsal(100, returning, "nDCG@10", 0.4, again, NONE)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (rehearsal(0, NONE), "no two of them share a relevant document"),
        (rehearsal(40, BoundedMean(0.01, -0.01, 0.03)), "about 400 such queries"),
        (rehearsal(40, BoundedMean(-0.01, -0.02, 0.0)), "ranked as well without a memory"),
        (rehearsal(40, NONE), "ranked as well without a memory"),
    ],
)
def test_where_nothing_is_gained_it_says_what_was_tried_and_what_it_would_need(found, said):
    assert found.advice[0].startswith("no gain is certain: 100 judged queries")
    assert said in found.advice[1]
    told = LearnResult("docs", "memory", 100, 90, 0, 0.8, found).to_json()["rehearsal"]
    assert json.loads(json.dumps(told))["advice"] == found.advice


def test_where_something_is_gained_it_says_nothing() -> None:
    assert rehearsal(40, BoundedMean(0.02, 0.01, 0.03)).advice == []
