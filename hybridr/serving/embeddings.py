"""`/v1/embeddings`: encodes texts through the queue, with a cache of queries."""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import orjson
from fastapi import FastAPI, Request, Response
from numpy.typing import NDArray

from ..cluster.settings import Side
from ..cluster.writing import group_by_size
from ..encoders.contract import Encoder, Reading, Vectors, offers_of, reads_tokens
from ..encoders.tokens import cut_characters
from .batching import BatchQueue, Encode
from .requests import SIDES, Busy, EmbeddingRequest, check_embedding, json_bytes, json_response, side_of
from .search_threads import client_result
from .settings import ServeSettings
from .telemetry import Metrics, note

BATCH_TOKENS = 4096  # encoded together, from all waiting requests
MAX_WAITING = 4096  # texts of a kind that wait for the encoder; 503 with Retry-After beyond
MAX_WAIT_S = 120.0  # time limit of a request for vectors
COUNTED_AT_ONCE = 20_000  # characters whose tokens are counted before the next look for clients that left
MAX_INLINE_CHARACTERS = 1_000  # characters counted in the event loop; more would block it for milliseconds
MAX_INLINE_VECTORS = 32  # vectors serialised in the event loop, in about a millisecond
SIDE_THREADS = 1
TOKENS_PER_QUERY = 16  # mean number of cached states: 10,000 queries of 384 values take 120 MB
NO_STATES: NDArray[np.float16] = np.empty((0, 0), dtype=np.float16)
T = TypeVar("T")
Use: TypeAlias = Side | Literal["reading"]
"""Use of an encoding: a side of `/v1/embeddings`, or a search, which also needs the query's tokens."""


def add_embeddings(app: FastAPI, settings: ServeSettings) -> None:
    """Add `/v1/embeddings` and `/v1/models`."""

    @app.post("/v1/embeddings", summary="Vectors of texts, as OpenAI's API gives them")
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        side, embedder = side_of(body.model), request.app.state.embedder
        note(request, side=side, texts=len(body.texts))
        if settings.log_queries:
            note(request, input=body.texts)
        check_embedding(body, embedder.encoder.dim)
        embeddings = await client_result(request, embedder.embed(side, body.texts), MAX_WAIT_S)

        def build() -> Response:
            """Return the response with the embeddings."""
            parts: list[bytes] = []
            for position, embedding in enumerate(embeddings):
                value: Any = np.ascontiguousarray(embedding.vector, dtype="<f4")
                if body.encoding_format == "base64":
                    value = base64.b64encode(value.tobytes()).decode("ascii")
                parts.append(json_bytes({"object": "embedding", "index": position, "embedding": value}))
            counts = [embedding.tokens for embedding in embeddings if embedding.tokens is not None]
            usage = {"usage": {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}} if counts else {}
            return json_response(
                {"object": "list", "model": body.model, "data": list(map(orjson.Fragment, parts)), **usage}
            )

        response: Response = (
            build() if len(embeddings) <= MAX_INLINE_VECTORS else await embedder.run_in_thread(build)
        )
        return response

    @app.get("/v1/models", summary="The names of the two sides")
    async def models() -> Response:
        names = [{"id": f"hybridr-{side}", "object": "model", "owned_by": "hybridr"} for side in SIDES]
        return json_response({"object": "list", "data": names})


class Embedding(NamedTuple):
    """A vector `(dim,)`, and the number of tokens of its text (None if unknown).

    States `(tokens, width)` and spans are those of a `Reading`; empty if tokens were not read.
    """

    vector: Vectors
    tokens: int | None
    states: NDArray[np.float16] = NO_STATES
    spans: tuple[tuple[int, int], ...] = ()


def encode_for(encoder: Encoder, use: Use, texts: Sequence[str]) -> list[Embedding]:
    """Return the embeddings of texts; for "reading" with the states of tokens. Raises ValueError if the
    encoder gives vectors that are not `(n, dim)`.
    """
    if use == "reading":
        assert reads_tokens(encoder)
        readings = encoder.read_queries(texts)
        return [
            Embedding(reading.vector, None, reading.states.astype(np.float16), reading.spans)
            for reading in readings
        ]
    vectors = encoder.encode_queries(texts) if use == "query" else encoder.encode_documents(texts)
    if vectors.shape != (len(texts), encoder.dim):
        raise ValueError(f"{len(texts)} texts gave vectors {vectors.shape}, not of size {encoder.dim}")
    return [Embedding(vector, None) for vector in vectors]


class QueryCache:
    """The `size` most recently used embeddings, with token states up to a limit; size 0 keeps none. Safe to
    use from several threads.

    Keys are digests of use, encoder fingerprint, token limit and text, so no text stays in memory.
    """

    def __init__(self, size: int, fingerprint: str, max_tokens: int) -> None:
        self.size = size
        self._key_prefix = f"{fingerprint} {max_tokens}"
        self._cached: OrderedDict[bytes, Embedding] = OrderedDict()
        self._states = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, use: Use, text: str) -> Embedding | None:
        """Return the cached embedding of a text and mark it as used; None if there is none."""
        key = self._key(use, text)
        with self._lock:
            embedding = self._cached.get(key)
            if embedding is not None:
                self._cached.move_to_end(key)
            return embedding

    def put(self, use: Use, text: str, embedding: Embedding) -> None:
        """Store a copy of an embedding; a row of a batch would keep the entire batch in memory."""
        if not self.size:
            return
        key, copy = self._key(use, text), embedding._replace(vector=embedding.vector.copy())
        with self._lock:
            if (old_embedding := self._cached.pop(key, None)) is not None:
                self._states -= len(old_embedding.states)
            self._cached[key] = copy
            self._states += len(copy.states)
            while len(self._cached) > self.size or self._states > self.size * TOKENS_PER_QUERY:
                _, oldest = self._cached.popitem(last=False)
                self._states -= len(oldest.states)

    def _key(self, use: Use, text: str) -> bytes:
        """Return the cache key of a text and its use."""
        return blake2b(f"{use} {self._key_prefix} {text}".encode(), digest_size=20).digest()


class Embedder:
    """Encodes texts for an event loop. Queries are cached; passages, which seldom repeat, are not."""

    def __init__(self, encoder: Encoder, settings: ServeSettings, metrics: Metrics) -> None:
        self.encoder = encoder
        self.metrics = metrics
        self.cache = QueryCache(settings.cache_queries, encoder.fingerprint, encoder.max_tokens)
        uses: tuple[Use, ...] = ("query", "passage")
        uses += ("reading",) if reads_tokens(encoder) else ()
        encode: dict[str, Encode] = {use: partial(encode_for, encoder, use) for use in uses}
        self.queue = BatchQueue(encode, BATCH_TOKENS, metrics.count_batch, MAX_WAITING)
        metrics.queue.set_function(self.queue.__len__)
        self._side_thread = ThreadPoolExecutor(SIDE_THREADS, thread_name_prefix="hybridr-beside")

    async def read(self, text: str, within_s: float | None = None) -> Reading:
        """Return the reading of a query, without states if the encoder gives none. Raises what `embed`
        raises.

        States are rounded to float16, cached or not, so that repeated queries get equal answers.
        """
        [embedding] = await self.embed("reading" if reads_tokens(self.encoder) else "query", [text], within_s)
        return Reading(embedding.vector, embedding.states.astype(np.float32), embedding.spans)

    async def embed(self, use: Use, texts: Sequence[str], within_s: float | None = None) -> list[Embedding]:
        """Return the embedding of each text. A cancelled call leaves nothing in the queue.

        Raises EncodingFailed; Refused if the server is stopping, or if the wait would exceed `within_s`.
        """
        texts = [cut_characters(text, self.encoder.max_tokens) for text in texts]
        embeddings: list[Embedding | None] = [None] * len(texts)
        if use != "passage":
            embeddings = [self.cache.get(use, text) for text in texts]
            self.metrics.cache_misses.inc(embeddings.count(None))
            self.metrics.cache_hits.inc(len(texts) - embeddings.count(None))
        missing = [position for position, cached in enumerate(embeddings) if cached is None]
        if missing:
            if within_s is not None and self.queue.delay_s > within_s:
                raise Busy("the encoder is busy")
            encoded = await self._encode_uncached(use, [texts[position] for position in missing])
            for position, embedding in zip(missing, encoded, strict=True):
                embeddings[position] = embedding
                if use != "passage":
                    self.cache.put(use, texts[position], embedding)
        return [embedding for embedding in embeddings if embedding is not None]

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run work of a large request in another thread, one at a time, and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._side_thread, work)

    def close(self) -> None:
        """Stop the threads."""
        self._side_thread.shutdown(wait=False, cancel_futures=True)
        self.queue.close()

    async def _encode_uncached(self, use: Use, texts: Sequence[str]) -> list[Embedding]:
        """Return embeddings through the queue, with numbers of tokens if they can be counted.

        If the request is cancelled, the job is removed from the queue.
        """
        token_counts = await self._count(texts)
        token_estimates = token_counts or [len(text) // 4 + 2 for text in texts]
        job = self.queue.put(use, texts, [min(count, self.encoder.max_tokens) for count in token_estimates])
        try:
            embeddings = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self.queue.drop(job)
            raise
        tokens: Sequence[int | None] = token_counts or [None] * len(texts)
        return [embedding._replace(tokens=count) for embedding, count in zip(embeddings, tokens, strict=True)]

    async def _count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text; empty if the encoder cannot count."""
        if (count := offers_of(self.encoder).counts) is None:
            return []
        if sum(map(len, texts)) <= MAX_INLINE_CHARACTERS:
            return count(texts)
        token_counts: list[int] = []
        for part in group_by_size(texts, len, COUNTED_AT_ONCE):
            token_counts += await self.run_in_thread(partial(count, part))
        return token_counts
