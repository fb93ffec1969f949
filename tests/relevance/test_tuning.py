"""What judged queries say of chains is computed as the re-rankers themselves would order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from hybridr.records import Hit
from hybridr.relevance.judgement import Chain, Step
from hybridr.relevance.tuning import DEPTHS, WEIGHTS, HitGains, ordered_by_chain, possible_chains
from hybridr.search.rerankers import QueryHits, add_scores

COUNT = 60


def hits_of(scores: Sequence[float]) -> list[Hit]:
    return [Hit(f"d{number}", score, number + 1) for number, score in enumerate(scores)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "chain",
    [
        Chain(),
        Chain((Step("tokens", 0.5, 20),)),
        Chain((Step("tokens", 1.0, 50), Step("cross", 0.25, 10))),
        Chain((Step("tokens", 0.25, 10), Step("cross", 1.0, 50))),
    ],
)
def test_a_chain_orders_as_its_re_rankers_would(chain: Chain, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = np.sort(random.random(COUNT))[::-1]
    raw = {name: random.random(COUNT) * 2 for name in ("tokens", "cross")}
    for values in raw.values():
        values[random.integers(0, COUNT, 5)] = np.nan
    documents = [hit.doc_id for hit in hits_of(scores.tolist())]
    hits = hits_of(scores.tolist())
    for step in chain.steps:
        given = [float(raw[step.name][documents.index(hit.doc_id)]) for hit in hits[: step.depth]]
        hits = add_scores(QueryHits("", hits, {}), step.name, given, step.weight)
    # As `look` finds it: from what each adds to the first 50 alone, at weight 1.
    added = {
        name: np.where(np.arange(COUNT) < 50, values - np.nanmin(values[:50]), np.nan)
        for name, values in raw.items()
    }
    found = ordered_by_chain(HitGains(documents, scores, added), chain)
    assert sorted(found, key=lambda doc: -found[doc]) == [hit.doc_id for hit in hits]


def test_what_nobody_looked_at_keeps_its_place() -> None:
    nothing = HitGains(["a", "b"], np.array([2.0, 1.0]), {"cross": np.array([math.nan, math.nan])})
    assert ordered_by_chain(nothing, Chain((Step("cross", 1.0, 10),))) == {"a": 0.0, "b": -1.0}


def test_every_weight_and_depth_is_tried_and_none_is_the_default() -> None:
    one = len(WEIGHTS) * len(DEPTHS)
    found = possible_chains(["tokens", "cross"])
    assert len(found) == (1 + one) ** 2
    assert not found[0].distance
    assert [chain.distance for chain in found].count(0) == 1
    assert min(chain.distance for chain in found[1:]) > found[0].distance == 0
    both = Chain((Step("tokens", 0.25, 50), Step("cross", 1.0, 10)))
    assert both in found
    assert both.settings == {
        "rerank": ["tokens", "cross"],
        "rerank_settings": {"token_weight": 0.25, "token_candidates": 50, "weight": 1.0, "candidates": 10},
    }
    assert str(both) == "tokens of 50, weight 0.25; then cross of 10, weight 1"
