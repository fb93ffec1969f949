"""The routes that turn text into vectors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response

from ..encoder import Vectors
from ..settings import ServeSettings
from .answers import answer
from .cache import Embedding
from .embedder import Embedder
from .logs import note
from .presence import unless_gone
from .requests import SIDES, EmbeddingRequest, check_embedding, side_of


def add_embeddings(app: FastAPI, embedder: Embedder, settings: ServeSettings) -> None:
    """Add `/v1/embeddings` and `/v1/models`."""

    @app.post("/v1/embeddings", summary="Vectors of texts, as OpenAI's API gives them")
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        side = side_of(body.model)
        note(request, side=side, texts=len(body.texts))
        if settings.log_queries:
            note(request, input=body.texts)
        check_embedding(body, settings, embedder.encoder.dim)
        found = await unless_gone(request, embedder.embed(side, body.texts))
        return answer(embedding_answer(body, found) | usage(found))

    @app.get("/v1/models", summary="The names of the two sides")
    async def models() -> Response:
        names = [{"id": f"hybridr-{side}", "object": "model", "owned_by": "hybridr"} for side in SIDES]
        return answer({"object": "list", "data": names})


def embedding_answer(request: EmbeddingRequest, found: Sequence[Embedding]) -> dict[str, Any]:
    """Give embeddings the form of OpenAI's answer."""
    shown = [encoded(embedding.vector, request.encoding_format) for embedding in found]
    return {
        "object": "list",
        "model": request.model,
        "data": [{"object": "embedding", "index": i, "embedding": value} for i, value in enumerate(shown)],
    }


def usage(found: Sequence[Embedding]) -> dict[str, Any]:
    """Sum the tokens as OpenAI does; nothing for an encoder that cannot count them."""
    counted = [embedding.tokens for embedding in found if embedding.tokens is not None]
    return {"usage": {"prompt_tokens": sum(counted), "total_tokens": sum(counted)}} if counted else {}


def encoded(vector: Vectors, encoding: str) -> Any:
    """Give a vector `(dim,)` as numbers, or as the base64 of its little-endian float32 bytes."""
    values = np.ascontiguousarray(vector, dtype="<f4")
    return base64.b64encode(values.tobytes()).decode("ascii") if encoding == "base64" else values
