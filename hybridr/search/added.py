"""Added scores: what re-rankers add to the scores of the first hits, on the scale of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..records import Hit
from .rerankers import Listed


def added_to(hits: Listed, name: str, raw: Sequence[float], factor: float) -> list[Hit]:
    """Order the hits of one query, whose first ones have raw scores of this name, NaN where there is none.

    Raw scores count from the least of the list, times a factor: who has none counts as that one.
    """
    lowest = min((score for score in raw if not math.isnan(score)), default=0.0)
    factor /= hits.scale or 1.0
    first = [
        with_raw(hit, name, None)
        if math.isnan(score)
        else with_raw(hit, name, score, factor * (score - lowest))
        for hit, score in zip(hits.hits, raw, strict=False)
    ]
    rest = [with_raw(hit, name, None) for hit in hits.hits[len(first) :]]
    best = sorted(first, key=lambda hit: -hit.score) + rest
    return [hit._replace(rank=rank) for rank, hit in enumerate(best, 1)]


def with_raw(hit: Hit, name: str, raw: float | None, added: float = 0.0) -> Hit:
    """Give a hit its new score, and what it is made of."""
    parts = None if hit.parts is None else {**hit.parts, name: added}
    return hit._replace(score=hit.score + added, scores={**hit.scores, name: raw}, parts=parts)
