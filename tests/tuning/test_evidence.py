"""BM25 from term vectors, against the formula written down for whole collections."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.cluster.similarities import Similarity
from hybridr.tuning.evidence import postings, rows_of, similarity_obstacle
from rankings import Formula

TEXTS = ["sea wind sea", "wind " * 30, "wave " * 100 + "sea", "wave wind tide", "tide"]
TERMS = [Counter(text.split()) for text in TEXTS]


def index(settings: dict[str, Any], field: dict[str, Any] | None = None) -> IndexInfo:
    mapping = {
        "properties": {"text": field or {"type": "text"}, "deep": {"properties": {"title": field or {}}}}
    }
    return IndexInfo("docs", {f"index.similarity.default.{k}": v for k, v in settings.items()}, mapping, {})


def vectors_of(terms: Counter[str]) -> dict[str, Any]:
    """What `_termvectors` would answer of one document."""
    held = {
        term: {"term_freq": count, "doc_freq": sum(term in other for other in TERMS)}
        for term, count in terms.items()
    }
    statistics = {"doc_count": len(TERMS), "sum_ttf": sum(sum(other.values()) for other in TERMS)}
    return {"text": {"terms": held, "field_statistics": statistics}}


@pytest.mark.parametrize("similarity", [Similarity(), Similarity(0.4, 0.0), Similarity(2.0, 1.0)], ids=str)
def test_scores_are_the_formula(similarity: Similarity) -> None:
    query = {"sea": 1, "wave": 2, "unknown": 1}
    rows = [
        row for place, terms in enumerate(TERMS) for row in rows_of(place, {"text": query}, vectors_of(terms))
    ]
    wanted = Formula(TERMS, *similarity, in_bytes=True).scores(query)
    assert wanted.max() > 0
    assert postings(rows).scores(similarity, len(TEXTS)) == pytest.approx(wanted)
    old = postings(rows, old=True).scores(similarity, len(TEXTS))
    assert old == pytest.approx((similarity.k1 + 1) * wanted)


def test_fields_are_added_up_and_nothing_scores_nothing() -> None:
    vectors = {"title": vectors_of(TERMS[0])["text"], "text": vectors_of(TERMS[0])["text"]}
    one, both = (
        postings(rows_of(0, weights, vectors)).scores(Similarity(), 2)
        for weights in ({"text": {"sea": 1}}, {"text": {"sea": 1}, "title": {"sea": 1}})
    )
    assert both.tolist() == pytest.approx([2 * one[0], 0.0])
    assert np.array_equal(postings([]).scores(Similarity(), 3), np.zeros(3))


def test_what_the_default_does_not_decide_is_told() -> None:
    assert similarity_obstacle(index({"type": "BM25"}), ["text", "deep.title"]) is None
    assert "'DFR'" in str(similarity_obstacle(index({"type": "DFR"}), ["text"]))
    own = index({}, {"type": "text", "similarity": "mine"})
    assert "'mine'" in str(similarity_obstacle(own, ["text"]))
    assert "'deep.title'" in str(similarity_obstacle(own, ["deep.title"]))
