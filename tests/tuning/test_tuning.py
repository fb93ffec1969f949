from __future__ import annotations

from dataclasses import replace
from typing import Any

from hybridr.cluster.record import IndexInfo, Record, Tuned
from hybridr.cluster.similarities import Similarity
from hybridr.tuning.judgement import Choice
from hybridr.tuning.k1_and_b import bm25_variants
from hybridr.tuning.tuning import Bm25Choice, Tuning, write_tuning

VERSION, COSINE = (3, 6, 0), Record(similarity="cosine")


class OneIndex:
    """A cluster with one index, which keeps the `_meta` that it is given."""

    def __init__(self) -> None:
        self.info = IndexInfo("docs", {}, {"_meta": {"owner": "somebody"}}, {})

    def index_info(self, name: str) -> IndexInfo:
        return self.info

    def request(self, method: str, path: str, body: dict[str, Any], params: Any = None) -> None:
        self.info = IndexInfo("docs", {}, body, {})


def test_what_was_found_is_recorded_again_and_again() -> None:
    cluster, nothing = OneIndex(), Tuning("docs", None, None, None)
    for times in (1, 2):
        write_tuning(cluster, cluster.info, nothing)
        assert cluster.info.record.tuning == Tuned()
        assert len(cluster.info.record.history) == times
    changed = Bm25Choice(
        Similarity(), Choice(30, "AP", 0.4, bm25_variants(Similarity())[3], 0, 0, 1, True, ()), None, ()
    )
    write_tuning(cluster, cluster.info, replace(nothing, bm25=replace(changed, closed_s=0.5)))
    kept = cluster.info.record.tuning
    assert kept is not None
    assert kept.gains
    assert kept.bm25["before"] == Similarity()._asdict()
    write_tuning(cluster, cluster.info, nothing)
    assert cluster.info.record.tuning.bm25 == kept.bm25, "k1 and b are the index's own until they are changed"
    assert cluster.info.other_meta["owner"] == "somebody"


def test_the_k1_and_b_of_before_the_first_change_are_remembered() -> None:
    cluster = OneIndex()
    for before, best in ((Similarity(), Similarity(0.9, 0.4)), (Similarity(0.9, 0.4), Similarity(2.0, 0.9))):
        chosen = next(one for one in bm25_variants(before) if not one.is_default)
        choice = Choice(30, "nDCG@10", 0.4, chosen._replace(similarity=best), 0.1, 0.05, 0.2, True, ())
        found = Tuning("docs", None, None, Bm25Choice(before, choice, None, (), 0.5))
        write_tuning(cluster, cluster.info, found)  # type: ignore[arg-type]
        assert cluster.info.record.tuning is not None
        assert cluster.info.record.tuning.bm25 == best._asdict() | {"before": Similarity()._asdict()}
        assert found.in_use == [f"bm25: {best}"]
