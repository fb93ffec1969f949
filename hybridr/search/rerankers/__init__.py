"""Re-rankers: scores that are added to the best hits of a query, one file each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar, NamedTuple, Protocol

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...records import Hit
from ...settings import NoSettings, Stage

FAMILY = "search.rerankers"


class IndexAccess(NamedTuple):
    """The cluster and the index whose hits a re-ranker orders."""

    cluster: Cluster
    info: IndexInfo


class QueryHits(NamedTuple):
    """A query and its best hits; `contents` are their texts by document id, if the re-ranker needs them.

    `scale` is the factor from the scale of (1 + cosine) to that of the hits' scores. `time_limited` says that
    a user waits.
    """

    query: str
    hits: Sequence[Hit]
    contents: Mapping[str, str]
    scale: float = 1.0
    time_limited: bool = True


class Reranker(Protocol):
    """A score that is added to the best hits of a search, chosen by `[search] rerank` or
    `Search.reranked(NAME)`.

    A member subclasses this: `name`, `help`, `rescored`, maybe `obstacle`, and `own_settings`, which
    `[search] rerank_settings` fills. It is made once a search. With `needs_texts`, it gets the texts of the
    first `reach` documents as the encoder reads them, because `Hit.text` is a marked fragment. `tuned_by`
    names its settings for the weight and for the number of hits, which `tune` may choose.
    """

    name: ClassVar[str]
    help: ClassVar[str] = ""
    needs_texts: ClassVar[bool] = False
    tuned_by: ClassVar[tuple[str, str]]
    reach: int
    own_settings: ClassVar[type[Stage]] = NoSettings

    def __init__(self, access: IndexAccess, own_settings: Any) -> None:
        """Store what the re-ranker needs of the index and its settings; `obstacle` has returned None."""

    @staticmethod
    def obstacle(access: IndexAccess) -> str | None:
        """Return why hits of this index cannot be ordered by this re-ranker; None if they can."""
        return None

    def rescored(self, lists: Sequence[QueryHits]) -> list[list[Hit]]:
        """Return the same hits of each query with new scores, best first, and `rank` from 1."""

    def late_remark(self, hits: Sequence[Hit]) -> str:
        """Return a remark for hits that there was no time to re-rank; empty if there is none."""
        return ""


def add_scores(candidates: QueryHits, name: str, raw: Sequence[float], factor: float) -> list[Hit]:
    """Return the hits of a query, reordered by their score plus a raw score of this name (NaN where there is
    none).

    Raw scores count from the lowest of the list, times a factor; a hit without a raw score gets nothing.
    """
    lowest = min((score for score in raw if not math.isnan(score)), default=0.0)
    factor /= candidates.scale or 1.0
    hits = []
    for hit, score in zip(
        candidates.hits, [*raw, *repeat(math.nan, len(candidates.hits) - len(raw))], strict=True
    ):
        gain = 0.0 if math.isnan(score) else factor * (score - lowest)
        parts = None if hit.parts is None else {**hit.parts, name: gain}
        scores = {**hit.scores, name: None if math.isnan(score) else score}
        hits.append(hit._replace(score=hit.score + gain, scores=scores, parts=parts))
    best = sorted(hits[: len(raw)], key=lambda hit: -hit.score) + hits[len(raw) :]
    return [hit._replace(rank=rank) for rank, hit in enumerate(best, 1)]
