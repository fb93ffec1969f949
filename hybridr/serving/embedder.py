"""Texts to vectors for many requests at once: the cache, then the queue before the encoder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool

from ..encoder import Encoder, Vectors
from ..settings import ServeSettings
from .batching import BatchQueue
from .cache import Embedding, VectorCache
from .metrics import Metrics
from .requests import Side

COUNTED_AT_ONCE = 20_000  # characters; more would hold up the event loop for milliseconds


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
