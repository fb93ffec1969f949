"""Re-ranker by late interaction (MaxSim): token vectors of the query with those stored in the index; the
score is added.

Vectors are fetched and compared in this process, which is faster than in the cluster and works with every
product. The mean over the query's vectors is scaled to the spread of the packaged encoder's cosines.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ...cluster.record_parts import RepresentationState
from ...cluster.token_field import TOKENS_FIELD, TOKENS_REPRESENTATION, max_sims, stored_bytes
from ...encoders.graph_folders import MultiVectorEncoder, open_once
from ...records import Hit
from ...settings import Stage
from ..calibration import MINILM_SPREAD, scale_factor
from . import IndexAccess, QueryHits, Reranker, add_scores

FETCHED = 200  # documents a request: some megabytes


class LateInteractionSettings(Stage):
    """Settings of the late-interaction re-ranker."""

    table: ClassVar[str] = "search.rerank_settings"
    token_encoder: Path | None = Field(
        None, description="folder of their encoder; None: where this machine knows it to lie"
    )
    token_weight: float = Field(
        0.5, gt=0, le=100, allow_inf_nan=False, description="beside a dense weight of .5"
    )
    token_candidates: int = Field(50, ge=1, le=1_000, description="of the best hits, so many are compared")


class LateInteraction(Reranker):
    """Adds the mean similarity of each query token with its nearest document token."""

    name = "tokens"
    help = "by the vectors of their tokens, which reindex --token-encoder writes; the score is added"
    tuned_by = "token_weight", "token_candidates"
    own_settings = LateInteractionSettings

    def __init__(self, access: IndexAccess, settings: LateInteractionSettings) -> None:
        state = RepresentationState.of(access.info.record.representations, TOKENS_REPRESENTATION)
        assert state
        self.access, self.reach = access, settings.token_candidates
        self.encoder = open_once(MultiVectorEncoder, settings.token_encoder, state.encoder)
        self.factor = settings.token_weight * scale_factor(state.spread or 0.0, MINILM_SPREAD)

    @staticmethod
    def obstacle(access: IndexAccess) -> str | None:
        """Return a reason if token vectors are missing, incomplete or not calibrated; else None."""
        state = RepresentationState.of(access.info.record.representations, TOKENS_REPRESENTATION)
        if state is None:
            return "the index has no vectors of tokens, which hybridr reindex --token-encoder DIR writes"
        if access.info.record.state != "complete":
            return "its vectors of tokens are not complete"
        return None if state.spread else "the scores of its token vectors are not calibrated"

    def rescored(self, lists: Sequence[QueryHits]) -> list[list[Hit]]:
        """Return the hits of each query with MaxSim scores added to the first ones; hits without token
        vectors keep their place.
        """
        ids = [[hit.doc_id for hit in listed.hits[: self.reach]] for listed in lists]
        doc_ids = sorted({*chain.from_iterable(ids)})
        pages = [doc_ids[start : start + FETCHED] for start in range(0, len(doc_ids), FETCHED)]
        fetch = partial(stored_bytes, self.access.cluster, self.access.info, field=TOKENS_FIELD)
        with ThreadPoolExecutor(1) as pool:  # the cluster answers while this process encodes
            futures = [pool.submit(fetch, page) for page in pages]
            queries = self.encoder.encode_queries([listed.query for listed in lists])
            stored = {doc: vectors for page in futures for doc, vectors in page.result().items()}
        raw = [
            max_sims(query, [stored.get(doc_id, b"") for doc_id in doc_ids]).tolist()
            for query, doc_ids in zip(queries, ids, strict=True)
        ]
        return [
            add_scores(listed, self.name, scores, self.factor / len(query))
            for listed, query, scores in zip(lists, queries, raw, strict=True)
        ]
