"""`/v1/embeddings`: the queue of texts, and the cache of query vectors."""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from ..encoding.contract import Encoder, Vectors
from .batching import BatchQueue
from .doorway import unless_gone
from .requests import SIDES, EmbeddingRequest, answer, check_embedding, side_of
from .settings import ServeSettings, Side
from .telemetry import Metrics, note

COUNTED_AT_ONCE = 20_000  # characters; more would hold up the event loop for milliseconds


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
    shown = [wire_value(embedding.vector, request.encoding_format) for embedding in found]
    return {
        "object": "list",
        "model": request.model,
        "data": [{"object": "embedding", "index": i, "embedding": value} for i, value in enumerate(shown)],
    }


def usage(found: Sequence[Embedding]) -> dict[str, Any]:
    """Sum the tokens as OpenAI does; nothing for an encoder that cannot count them."""
    counted = [embedding.tokens for embedding in found if embedding.tokens is not None]
    return {"usage": {"prompt_tokens": sum(counted), "total_tokens": sum(counted)}} if counted else {}


def wire_value(vector: Vectors, encoding: str) -> Any:
    """Give a vector `(dim,)` as numbers, or as the base64 of its little-endian float32 bytes."""
    values = np.ascontiguousarray(vector, dtype="<f4")
    return base64.b64encode(values.tobytes()).decode("ascii") if encoding == "base64" else values


class Embedding(NamedTuple):
    """A vector `(dim,)`, and the tokens of its text; None where the encoder cannot count them."""

    vector: Vectors
    tokens: int | None


class VectorCache:
    """The `size` embeddings used last; 0 keeps none. Safe to use from several threads.

    Keys are digests of side, encoder fingerprint, token limit and text: no text stays in memory, and a long
    one takes no more room than a short one.
    """

    def __init__(self, size: int, fingerprint: str, max_tokens: int) -> None:
        self.size = size
        self._start = f"{fingerprint} {max_tokens}"
        self._found: OrderedDict[bytes, Embedding] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, side: str, text: str) -> Embedding | None:
        """Give what was kept for a text, which makes it the last to go; None when there is nothing."""
        key = self._key(side, text)
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def put(self, side: str, text: str, embedding: Embedding) -> None:
        """Keep a copy of an embedding; a row of a batch would keep the whole batch alive."""
        if not self.size:
            return
        key, kept = self._key(side, text), embedding._replace(vector=embedding.vector.copy())
        with self._lock:
            self._found[key] = kept
            self._found.move_to_end(key)
            if len(self._found) > self.size:
                self._found.popitem(last=False)

    def _key(self, side: str, text: str) -> bytes:
        return blake2b(f"{side} {self._start} {text}".encode(), digest_size=20).digest()


class Embedder:
    """Encode for an event loop. Queries are cached; passages, which seldom come twice, are not."""

    def __init__(self, encoder: Encoder, settings: ServeSettings, metrics: Metrics) -> None:
        self.encoder = encoder
        self.metrics = metrics
        self.cache = VectorCache(settings.cache_queries, encoder.fingerprint, encoder.max_tokens)
        encode = {"query": encoder.encode_queries, "passage": encoder.encode_documents}
        self.queue = BatchQueue(
            encode, encoder.dim, settings.batch_tokens, metrics.count_batch, settings.max_waiting
        )
        metrics.watch_queue(self.queue.__len__)

    async def embed(self, side: Side, texts: Sequence[str]) -> list[Embedding]:
        """Give the embedding of each text. A cancelled call leaves nothing in the queue.

        Raises EncodingFailed; Refused when the server is stopping.
        """
        found: list[Embedding | None] = self._look_up(texts) if side == "query" else [None] * len(texts)
        missing = [position for position, known in enumerate(found) if known is None]
        if missing:
            fresh = await self._encode(side, [texts[position] for position in missing])
            for position, embedding in zip(missing, fresh, strict=True):
                found[position] = embedding
                if side == "query":
                    self.cache.put(side, texts[position], embedding)
        return [embedding for embedding in found if embedding is not None]

    def close(self) -> None:
        """End the encoder's thread."""
        self.queue.close()

    def _look_up(self, texts: Sequence[str]) -> list[Embedding | None]:
        found = [self.cache.get("query", text) for text in texts]
        misses = found.count(None)
        self.metrics.count_lookups(len(found) - misses, misses)
        return found

    async def _encode(self, side: Side, texts: Sequence[str]) -> list[Embedding]:
        counted = await self._count(texts)
        vectors = await self._wait(side, texts, counted or [len(text) // 4 + 2 for text in texts])
        tokens: Sequence[int | None] = counted or [None] * len(texts)
        return list(map(Embedding, vectors, tokens))

    async def _count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text; nothing for an encoder that cannot."""
        count = getattr(self.encoder, "count_tokens", None)
        if count is None:
            return []
        small = sum(map(len, texts)) <= COUNTED_AT_ONCE
        counted: list[int] = count(texts) if small else await run_in_threadpool(count, texts)
        return counted

    async def _wait(self, side: Side, texts: Sequence[str], tokens: Sequence[int]) -> Vectors:
        job = self.queue.put(side, texts, [min(count, self.encoder.max_tokens) for count in tokens])
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self.queue.drop(job)
            raise
