"""Late interaction: the vectors of a query's tokens with those that the index keeps; the score is added.

The cluster compares them where its k-NN plugin can, this process elsewhere. The mean over the query's vectors
is brought to the spread of the packaged encoder's cosines by how it spreads over documents of the index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ...cluster.token_field import (
    LATE_INTERACTION,
    TOKENS_FIELD,
    TokenState,
    max_sims,
    token_vectors_in,
    tokens_query,
)
from ...encoding.contract import Vectors
from ...encoding.graph_folders import open_once
from ...encoding.multi_vector import MultiVectorEncoder, largest_products
from ...records import Hit
from ...settings import Stage
from ..added import added_to
from ..calibration import MINILM_SPREAD, scale_of
from ..hits import checked_hits
from ..scripts import Scripts
from . import Behind, Listed, Reranker


class LateInteractionSettings(Stage):
    """How token vectors count."""

    table: ClassVar[str] = "search.rerank_settings"
    token_encoder: Path | None = Field(
        None, description="folder of their encoder; None: where this machine knows it to lie"
    )
    token_weight: float = Field(
        0.5, gt=0, le=100, allow_inf_nan=False, description="beside a dense weight of .5"
    )
    token_candidates: int = Field(50, ge=1, le=1_000, description="of the best hits, so many are compared")


class LateInteraction(Reranker):
    """Adds how near the nearest token of a document is, over all tokens of the query."""

    name = "tokens"
    help = "by the vectors of their tokens, which reindex --token-encoder writes; the score is added"
    adds = True
    tuned_by = "token_weight", "token_candidates"
    own_settings = LateInteractionSettings

    def __init__(self, behind: Behind, own: LateInteractionSettings) -> None:
        state = TokenState.of(behind.info.record)
        assert state
        self.behind, self.reach = behind, own.token_candidates
        self.encoder = open_once(MultiVectorEncoder, own.token_encoder, state.encoder)
        self.factor = own.token_weight * scale_of(state.spread or 0.0, MINILM_SPREAD)
        able = behind.cluster.version >= LATE_INTERACTION
        self.scripts = Scripts(behind.cluster, behind.info.name) if able else None

    @staticmethod
    def obstacle(behind: Behind) -> str | None:
        """Say that the index has no vectors of tokens, or not of all, or that their scores have no scale."""
        if (state := TokenState.of(behind.info.record)) is None:
            return "the index has no vectors of tokens, which hybridr reindex --token-encoder DIR writes"
        if behind.info.record.state != "complete":
            return "its vectors of tokens are not complete"
        return None if state.spread else "the scores of its token vectors are not calibrated"

    def rescored(self, lists: Sequence[Listed]) -> list[list[Hit]]:
        """Add to the scores of the first hits, and order them; hits without vectors keep their place."""
        queries = self.encoder.encode_queries([one.query for one in lists])
        ids = [[hit.doc_id for hit in one.hits[: self.reach]] for one in lists]
        raw = [
            [scores.get(doc_id, math.nan) for doc_id in asked]
            for asked, scores in zip(ids, self.max_sims(queries, ids), strict=True)
        ]
        return [
            added_to(one, self.name, of, self.factor / len(query))
            for one, query, of in zip(lists, queries, raw, strict=True)
        ]

    def max_sims(self, queries: Sequence[Vectors], ids: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        """Score documents by each query: document id -> sum of cosines."""
        here = self.scripts is None or bool(self.scripts.refused())
        bodies = [
            {"size": len(asked), "query": {"ids": {"values": list(asked)}}, "_source": [TOKENS_FIELD]}
            if here
            else {"size": len(asked), "query": tokens_query(query, asked), "_source": False}
            for query, asked in zip(queries, ids, strict=True)
            if asked
        ]
        answers = iter(self.behind.cluster.msearch(self.behind.info, bodies, ()) if bodies else ())
        hits = [checked_hits(next(answers)) if asked else [] for asked in ids]
        if not here:
            return [
                max_sims({hit["_id"]: hit["_score"] for hit in of}, query)
                for of, query in zip(hits, queries, strict=True)
            ]
        held = [{hit["_id"]: token_vectors_in(hit.get("_source", {})) for hit in of} for of in hits]
        return [
            {doc_id: largest_products(query, kept) for doc_id, kept in of.items() if len(kept)}
            for of, query in zip(held, queries, strict=True)
        ]
