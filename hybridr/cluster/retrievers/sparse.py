"""The sparse retriever: learned token weights stored as `rank_features`, which needs no ml-commons plugin."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..record import Record
from ..record_parts import RepresentationState
from . import Retriever

SPARSE_FIELD = "hybridr_sparse"
MAX_QUERY_TOKENS = 400  # heaviest tokens of a query that are searched; OpenSearch takes 1,024 clauses
UNSAFE = re.compile(r"[.%*\s\x00-\x1f]")
"""Characters forbidden in a feature's name: a dot separates fields, `%` begins hybridr's escapes."""


@dataclass(frozen=True)
class SparseRetriever(Retriever):
    """Finds documents by the sum of products of token weights; a query is token -> weight.

    `spread` is the standard deviation of scores in this index for queries of length 1; None if unmeasured.
    """

    spread: float | None = None
    name = "sparse"
    help = "by learned weights of its tokens"
    reads = "representation"
    part = "sparse"

    @classmethod
    def of(cls, record: Record, fields: Sequence[str]) -> SparseRetriever:
        """Return the retriever with the spread in an index's record."""
        return cls(spread_in(record))

    @classmethod
    def obstacle(cls, record: Record) -> str | None:
        """Return why sparse search is impossible (weights missing or incomplete); None if it is possible."""
        if cls.name not in record.representations:
            return "the index has no weights of tokens, which hybridr reindex --sparse-encoder DIR writes"
        return None if record.state == "complete" else "its weights are not complete"

    @classmethod
    def unscaled(cls, record: Record) -> str | None:
        """Return a message if the spread of scores was not measured, else None."""
        return None if spread_in(record) else "the scores of its sparse retriever are not calibrated"

    def query(
        self,
        weights: Mapping[str, float],
        k: int,
        *,
        filter: dict[str, Any] | None = None,
        explain: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        """Return the query for documents that share a token; `k` is ignored, the request's `size` counts."""
        heaviest = sorted(weights, key=lambda token: -weights[token])[:MAX_QUERY_TOKENS]
        if not heaviest:
            return {"match_none": {}}
        fields = {f"{SPARSE_FIELD}.{feature_name(token)}": weights[token] for token in heaviest}
        clauses = [
            {"rank_feature": {"field": field, "boost": weight, "linear": {}}}
            for field, weight in fields.items()
        ]
        optional: dict[str, Any] = {"filter": [filter] if filter else None, "boost": boost}
        optional |= {"_name": self.name if explain else None}
        options = {name: value for name, value in optional.items() if value is not None}
        return {"bool": {"should": clauses, "minimum_should_match": 1, **options}}

    def spread_of(self, weights: Mapping[str, float]) -> float | None:
        """Return the standard deviation of scores for this query: the index's times the query's length."""
        return (self.spread or 0.0) * math.sqrt(sum(weight * weight for weight in weights.values()))

    @classmethod
    def scale(cls, idf_sum: float, spread: float) -> float:
        """Return `spread`, the factor that brings scores to the usual spread."""
        return spread


def spread_in(record: Record) -> float | None:
    """Return the spread of sparse scores in an index's record; None without weights or measurement."""
    state = RepresentationState.of(record.representations, SparseRetriever.name)
    return state.spread if state else None


def feature_name(token: str) -> str:
    """Return a token as the name of a `rank_features` feature: forbidden characters as %XX, "" as %0."""
    return UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", token) or "%0"
