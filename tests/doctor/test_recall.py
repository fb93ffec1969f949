"""Shares of the nearest vectors that walks of a graph find, and what is advised."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.doctor.recall import DEFAULT_WIDTH, Recall, Walk, WalkShare, found_share, walk_advice, walks
from support.indices import index_with_vectors

TRUE = {"a": 0.9, "b": 0.8, "c": 0.8, "d": 0.8, "e": 0.5}


@pytest.mark.parametrize(
    ("walked", "k", "share"),
    [
        (["a", "b"], 2, 1.0),
        (["a", "d"], 2, 1.0),
        (["d", "a"], 2, 1.0),
        (["a", "e"], 2, 0.5),
        (["a", "e", "b"], 2, 0.5),
        (["b", "c", "d"], 3, 1.0),
        ([], 1, 0.0),
        (["b"], 1, 0.0),
        (["e", "d", "c", "b", "a"], 5, 1.0),
    ],
)
def test_ties_count_and_later_ones_do_not(walked: list[str], k: int, share: float) -> None:
    assert found_share(TRUE, walked, k) == share


def shares(vectors: str, **found: float) -> list[WalkShare]:
    """Shares of queries by walk; documents are always found."""
    made: list[WalkShare] = []
    for walk in walks(index_with_vectors(vectors=vectors)):
        mean = found.get(f"again{walk.oversample:g}" if walk.oversample else f"wide{walk.width}", 0.5)
        made.append(WalkShare("queries", walk.name, 10, mean, mean - 0.02, mean + 0.02, 64, 1.0))
        made.append(WalkShare("documents", walk.name, 10, 1.0, 1.0, 1.0, 64, 1.0))
    return made


@pytest.mark.parametrize(
    ("vectors", "found", "said"),
    [
        ("float", {"wide200": 0.96}, ""),
        ("float", {"wide400": 0.97}, "--depth 200 for hybridr's searches, ef_search 400"),
        ("float", {"wide1000": 0.97}, "--depth 500"),
        ("float", {}, "raise m and ef_construction in [reindex]"),
        ("on_disk", {"again5": 0.99}, "ef_search 200, oversample_factor 5"),
        ("on_disk", {}, "on_disk vectors lose neighbours: hybridr reindex docs --vectors float"),
        ("byte", {}, "byte vectors lose neighbours"),
    ],
)
def test_the_cheapest_way_that_finds_enough_is_advised(vectors, found, said):
    told = walk_advice(index_with_vectors(vectors=vectors), shares(vectors, **found))
    assert said in told
    assert bool(told) == bool(said)


@pytest.mark.parametrize(("mean", "ok"), [(0.96, True), (0.94, True), (0.92, False)])
def test_only_what_is_surely_too_little_fails(mean: float, ok: bool) -> None:
    found = Recall("docs", 1000, shares("float", wide200=mean), Walk(DEFAULT_WIDTH).name, "")
    assert found.ok is ok


def test_walks_without_a_compressed_form_rescore_nothing() -> None:
    def oversampled(vectors: str) -> list[Any]:
        return [one.oversample for one in walks(index_with_vectors(vectors=vectors)) if one.oversample]

    assert oversampled("float") == oversampled("byte") == []
    assert oversampled("sq") == oversampled("on_disk") == [2.0, 5.0]
