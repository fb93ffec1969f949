"""Re-rankers: what looks at a query and its best hits once more, one file each."""

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
    """The index that a re-ranker stands behind."""

    cluster: Cluster
    info: IndexInfo


class Listed(NamedTuple):
    """A query and its best hits; `contents` are whole texts by document id, where they are needed.

    `scale` brings the hits' scores to that of (1 + cosine), beside which others are added. Somebody waits for
    what is `hurried`; what is measured takes its time.
    """

    query: str
    hits: Sequence[Hit]
    contents: Mapping[str, str]
    scale: float = 1.0
    hurried: bool = True


class Reranker(Protocol):
    """Orders the best hits of a search anew; `[search] rerank` or `Search.reranked(NAME)` puts it behind one.

    A member subclasses this: `name`, `help`, `rescored`, maybe `obstacle`, and `own_settings`, which
    `[search] rerank_settings` fills. Made once a search. Where it
    `needs_texts`, it gets what the first `reach` documents hold (None: all), as the encoder reads them:
    `Hit.text` is a marked fragment. Where it `adds`, the search has to give true scores; `tuned_by` names its
    settings for the weight and for how many hits, where `tune` may choose them.
    """

    name: ClassVar[str]
    help: ClassVar[str] = ""
    needs_texts: ClassVar[bool] = False
    adds: ClassVar[bool] = False
    tuned_by: ClassVar[tuple[str, str] | None] = None
    reach: int | None = None
    own_settings: ClassVar[type[Stage]] = NoSettings

    def __init__(self, behind: IndexAccess, own: Any) -> None:
        """Take what is needed of an index for which there is no `obstacle`, and the member's own settings."""

    @staticmethod
    def obstacle(behind: IndexAccess) -> str | None:
        """Return why hits of this search cannot be ordered so; None where they can."""
        return None

    def rescored(self, lists: Sequence[Listed]) -> list[list[Hit]]:
        """Return the same hits of each query with new scores, best first, and `rank` from 1."""

    def left(self, hits: Sequence[Hit]) -> str:
        """Return a remark for the hits that there was no time for; empty where there was."""
        return ""


def added_to(listed: Listed, name: str, raw: Sequence[float], factor: float) -> list[Hit]:
    """Order the hits of one query, whose first ones have raw scores of this name, NaN where there is none.

    Raw scores count from the least of the list, times a factor: who has none counts as that one.
    """
    lowest = min((score for score in raw if not math.isnan(score)), default=0.0)
    factor /= listed.scale or 1.0
    hits = []
    for hit, score in zip(listed.hits, [*raw, *repeat(math.nan, len(listed.hits) - len(raw))], strict=True):
        gain = 0.0 if math.isnan(score) else factor * (score - lowest)
        parts = None if hit.parts is None else {**hit.parts, name: gain}
        scores = {**hit.scores, name: None if math.isnan(score) else score}
        hits.append(hit._replace(score=hit.score + gain, scores=scores, parts=parts))
    best = sorted(hits[: len(raw)], key=lambda hit: -hit.score) + hits[len(raw) :]
    return [hit._replace(rank=rank) for rank, hit in enumerate(best, 1)]
