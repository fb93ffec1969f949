"""`/v1/rerank`: how well documents that a client sends answer its query, in the form of Cohere's API."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any
from uuid import uuid4

import numpy as np
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from ..encoders.contract import Vectors
from ..encoders.graph_folders import PairScorer, open_once
from .requests import LONGEST_INPUT, answer, check_lengths, check_query
from .search_threads import SearchThreads, unless_gone
from .settings import ServeSettings
from .telemetry import note

MOST_DOCUMENTS = 1_000  # in one request, Cohere's own limit
SCORE_DECIMALS = 12  # ml-commons takes a number of more than 18 characters for none of its own
MOST_RERANKS = 64  # worked on or waiting; 503 with Retry-After beyond


class RerankRequest(BaseModel):
    """The body of `/v1/rerank`; what else Cohere's clients send is not read."""

    query: str = Field(description="what a user types")
    documents: Annotated[list[str | dict[str, Any]], Field(min_length=1, max_length=MOST_DOCUMENTS)] = Field(
        description=f"texts, or objects with `text`; 1 to {MOST_DOCUMENTS}"
    )
    top_n: int | None = Field(None, ge=1, description="how many of the best; nothing: all")
    rank_fields: list[str] = Field(["text"], description="which fields of objects are read, in this order")
    return_documents: bool = Field(False, description="give the documents back too")

    @property
    def texts(self) -> list[str]:
        """The text of each document: of an object its fields, joined; empty where it has none of them."""
        texts: list[str] = []
        for document in self.documents:
            if not isinstance(document, str):
                values = [document.get(name) for name in self.rank_fields]
                document = "\n".join(str(value) for value in values if value is not None)
            texts.append(document)
        return texts


def add_reranking(app: FastAPI, settings: ServeSettings) -> None:
    """Add `/v1/rerank` (`/v2/rerank` too) where the settings name a re-ranker. Raises ModelError."""
    if settings.reranker is None:
        return
    scorer, threads = open_once(PairScorer, settings.reranker), SearchThreads(MOST_RERANKS)

    @app.post("/v2/rerank", include_in_schema=False)
    @app.post("/v1/rerank", summary="How well documents answer a query, as Cohere's API tells it")
    async def rerank(body: RerankRequest, request: Request) -> Response:
        note(request, texts=len(body.documents), **({"input": body.query} if settings.log_queries else {}))
        check_query(body.query, settings)
        check_lengths("document {}", texts := body.texts, LONGEST_INPUT, "the re-ranker reads only its start")
        work = partial(scorer.score, [(body.query, text) for text in texts])
        scores = await unless_gone(request, threads.run(work), settings.search_timeout_s)
        return answer(rerank_answer(body, scores))


def rerank_answer(body: RerankRequest, logits: Vectors) -> dict[str, Any]:
    """Return scores, 0 to 1, in the form of Cohere's answer: best first, with places in the request."""
    scores = np.round(1 / (1 + np.exp(-logits.astype(np.float64))), SCORE_DECIMALS)
    best = np.argsort(-logits, kind="stable")[: body.top_n].tolist()
    results: list[dict[str, Any]] = [{"index": at, "relevance_score": float(scores[at])} for at in best]
    if body.return_documents:
        for result in results:
            document = body.documents[result["index"]]
            result["document"] = {"text": document} if isinstance(document, str) else document
    return {"id": str(uuid4()), "results": results, "meta": {"api_version": {"version": "1"}}}
