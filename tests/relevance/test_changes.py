"""What is judged now is compared with what an index has learnt: the same, with other documents, or new."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo, Record, meta_of
from hybridr.cluster.record_parts import Remembered
from hybridr.records import Query
from hybridr.relevance import changes
from hybridr.relevance.changes import Changes, changed_since
from hybridr.search.past_queries import Past, Relevant
from support.hashing import HashingEncoder

LEARNT = {"lamp": [{"d1", "d2"}], "chair": [{"d3"}, {"d4"}], "sofa": [{"d9"}]}
NOW = {"lamp": {"d1": 1, "d2": 2, "d7": 0}, "chair": {"d4": 1}, "sofa": {"d8": 1}, "shelf": {"d5": 1}}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> dict[str, Record]:
    told = Remembered(queries=3, encoder="e", job="j")
    records = {"docs": Record(encoder="e", memory=told)}

    def past_like(_: Any, index: str, texts: list[str], vectors: Any, least: float) -> dict[str, list[Past]]:
        assert len(vectors) == len(texts)
        assert least > 0.99
        found = {
            text: [[Relevant(doc, 1.0, "s") for doc in one] for one in LEARNT.get(text, [])] for text in texts
        }
        return {text: [Past(1.0, one) for one in of] for text, of in found.items()}

    monkeypatch.setattr(changes, "past_like", past_like)
    monkeypatch.setattr(changes, "LOOKED_UP_TOGETHER", 3)
    monkeypatch.setattr(
        changes, "resolve", lambda _, name: IndexInfo(name, {}, {"_meta": meta_of(records[name])}, {})
    )
    return records


def compared() -> Changes | None:
    queries = [Query(text, text) for text in NOW]
    return changed_since(None, "docs", (queries, NOW), encoder=HashingEncoder())  # type: ignore[arg-type]


def test_queries_are_the_same_with_other_documents_or_new(index: dict[str, Record]) -> None:
    assert compared() == Changes(learnt=3, compared=4, same=2, others=1, new=1)


def test_an_index_that_learnt_nothing_has_nothing_to_compare(index: dict[str, Record]) -> None:
    index["docs"] = Record(encoder="e")
    assert compared() is None
    index["docs"] = Record(encoder="other", memory=Remembered(queries=3, encoder="e", job="j"))
    assert compared() is None
