"""MMR: the arithmetic by hand, ties, missing vectors, and what it cannot order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import VERSION
from hybridr.errors import SettingsError
from hybridr.records import Hit
from hybridr.search.rerankers import IndexAccess, QueryHits
from hybridr.search.rerankers.mmr import DiversitySettings, MaximalMarginalRelevance, diversified
from hybridr.search.search import Reordering

VECTORS = {"a": [2.0, 0.0], "b": [4.0, 0.1], "c": [0.0, 3.0], "d": None}
HITS = [
    Hit(doc, score, rank, parts={"words": score})
    for rank, (doc, score) in enumerate([("a", 1.5), ("b", 1.4), ("c", 1.0), ("d", 0.5)], 1)
]


class OneIndex:
    """A cluster that gives the vectors of documents, in an order of its own."""

    def search(self, index: str, body: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        assert body["_source"] == ["v"]
        wanted = sorted(body["query"]["ids"]["values"], reverse=True)
        sources = [{"v": VECTORS[doc]} if VECTORS[doc] else {} for doc in wanted]
        hits = [{"_id": doc, "_score": 1.0, "_source": one} for doc, one in zip(wanted, sources, strict=True)]
        return {"hits": {"hits": hits}}


def mmr(relevance: float = 0.7) -> MaximalMarginalRelevance:
    return MaximalMarginalRelevance(behind(), DiversitySettings(relevance=relevance))


def behind(**record: Any) -> IndexAccess:
    known = {"role": "vectors", "source": "docs", "source_uuid": "1", "job": "j", "state": "complete"}
    known |= {"encoder": "f", "similarity": "cosine", "vector_field": "v", "fields": ["text"], "dim": 2}
    meta = {"_meta": {"hybridr": known | record | {"version": VERSION}}}
    info = IndexInfo("docs-hybridr", {"index.uuid": "2"}, meta, {})
    return IndexAccess(OneIndex(), info)  # type: ignore[arg-type]


def test_a_copy_of_the_best_goes_behind_others() -> None:
    found = mmr(0.5).diverse(HITS)
    assert [hit.doc_id for hit in found] == ["a", "c", "d", "b"]
    assert [hit.rank for hit in found] == [1, 2, 3, 4]
    like = 4.0 / float(np.hypot(4.0, 0.1))
    assert [hit.score for hit in found] == pytest.approx([0.5, 0.25, 0.0, 0.5 * 0.9 - 0.5 * like], abs=1e-6)
    assert all(hit.parts is None for hit in found), "they are no sum of parts any more"


def test_the_ends_of_lambda() -> None:
    alone = mmr(1.0).diverse(HITS)
    assert [hit.doc_id for hit in alone] == ["a", "b", "c", "d"]
    assert [hit.score for hit in alone] == pytest.approx([1.0, 0.9, 0.5, 0.0])
    unlike = mmr(0.0).diverse(HITS)
    assert [hit.doc_id for hit in unlike] == ["a", "c", "d", "b"]


def test_marginal_relevance_never_grows_and_equals_keep_their_order() -> None:
    random = np.random.default_rng(7)
    vectors = random.normal(size=(50, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = np.sort(random.random(50))[::-1]
    order, gained = diversified(scores, vectors, 0.6)
    assert (sorted(order), order[0]) == (list(range(50)), 0)
    assert np.all(np.diff(gained) <= 1e-12)
    assert diversified(scores, vectors, 0.6) == (order, gained)
    assert diversified(np.ones(4), np.zeros((4, 2)), 0.6)[0] == [0, 1, 2, 3]
    assert mmr().rescored([QueryHits("q", [], {})]) == [[]]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"role": None, "vector_field": ""}, "the index has no vectors"),
        ({"passages": {"tokens": 64, "overlap": 8, "most": 4}}, "several vectors"),
    ],
)
def test_what_has_no_one_vector_a_document_is_refused(record: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Reordering.from_names(SimpleNamespace(**behind(**record)._asdict()), dict, ["mmr"], {})  # type: ignore[arg-type]
