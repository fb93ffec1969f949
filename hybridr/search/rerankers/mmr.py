"""Re-ranker MMR (maximal marginal relevance): hits that are relevant and unlike those before them (Carbonell
and Goldstein 1998).

The next hit is always the one with the greatest λ relevance - (1 - λ) likeness. Relevance is the hit's score,
scaled from 0 for the last of the hits to 1 for the first; likeness is the greatest cosine of its vector with
that of a hit before it, or 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from ...cluster.reading import hits_by_id
from ...encoders.contract import Vectors
from ...records import Hit
from ...settings import Stage
from . import IndexAccess, QueryHits, Reranker


class DiversitySettings(Stage):
    """Settings of the MMR re-ranker."""

    table: ClassVar[str] = "search.rerank_settings"
    relevance: float = Field(
        0.8, ge=0, le=1, description="λ: 1 is relevance alone, 0 the least like the hits before"
    )


@dataclass(eq=False)
class MaximalMarginalRelevance(Reranker):
    """Trades relevance for diversity, by the vectors stored in the index."""

    name = "mmr"
    help = "hits unlike those before them, by their vectors"
    own_settings = DiversitySettings

    access: IndexAccess
    settings: DiversitySettings

    @staticmethod
    def obstacle(access: IndexAccess) -> str | None:
        """Return a reason if documents have no single vector; else None."""
        record = access.info.record
        if not record.vector_field:
            return "the index has no vectors"
        return "its documents have several vectors (--passages)" if record.passages else None

    def rescored(self, lists: Sequence[QueryHits]) -> list[list[Hit]]:
        """Return the hits of each query by marginal relevance, which becomes their score."""
        return [self.diverse(listed.hits) if listed.hits else [] for listed in lists]

    def diverse(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits of one query, reordered by their stored vectors; a document without a vector counts
        as zeros.
        """
        record = self.access.info.record
        field, doc_ids = record.vector_field, [hit.doc_id for hit in hits]
        answers = hits_by_id(self.access.cluster, self.access.info, doc_ids, {"_source": [field]})
        stored = {answer["_id"]: answer["_source"].get(field) for answer in answers}
        rows = np.array([stored.get(doc) or [0.0] * record.dim for doc in doc_ids], dtype=np.float32)
        vectors = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        order, scores = diversified(np.array([hit.score for hit in hits]), vectors, self.settings.relevance)
        return [
            hits[place]._replace(score=score, rank=rank, parts=None)
            for rank, (place, score) in enumerate(zip(order, scores, strict=True), 1)
        ]


def diversified(scores: np.ndarray, vectors: Vectors, weight: float) -> tuple[list[int], list[float]]:
    """Return positions in the new order, with their marginal relevance, which never grows along the list.

    `scores` are `(n,)`, best first, `vectors` `(n, dim)` of length 1 or 0; of equal hits the first is taken.
    """
    spread = scores.max() - scores.min()
    relevance = (scores - scores.min()) / spread if spread else np.ones(len(scores))
    likeness = np.zeros(len(scores))
    remaining, order, values = list(range(len(scores))), [], []
    while remaining:
        marginal = weight * relevance[remaining] - (1 - weight) * likeness[remaining]
        best = remaining.pop(int(np.argmax(marginal)))
        order.append(best)
        values.append(float(marginal.max()))
        likeness = np.maximum(likeness, vectors @ vectors[best])
    return order, values
