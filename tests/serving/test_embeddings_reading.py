"""Queries that are read: vector and states from one batch, kept within bounds, never for `/v1/embeddings`."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from threading import Event

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hybridr.encoders.contract import Reading
from hybridr.serving import embeddings
from hybridr.serving.application import create_app
from hybridr.serving.embeddings import TOKENS_PER_QUERY, Embedder, Embedding, QueryCache
from hybridr.serving.requests import EncodingFailed
from hybridr.serving.settings import ServeSettings
from hybridr.serving.telemetry import Metrics
from support.asking import DeadEncoder
from support.hashing import HashingEncoder

pytestmark = pytest.mark.anyio
WIDTH, DIM = 384, 384


class WatchedEncoder(HashingEncoder):
    """Remembers the batches that it read; waits while `go_on` is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.go_on = Event()
        self.go_on.set()

    def read_queries(self, texts: Sequence[str]) -> list[Reading]:
        self.batches.append(list(texts))
        assert self.go_on.wait(60)
        return super().read_queries(texts)


class BlindEncoder:
    """Has vectors and no states, as the graph of an older folder."""

    def __init__(self) -> None:
        seeing = HashingEncoder()
        self.dim, self.similarity, self.max_tokens = seeing.dim, seeing.similarity, seeing.max_tokens
        self.fingerprint = seeing.fingerprint
        self.encode_queries, self.encode_documents = seeing.encode_queries, seeing.encode_documents


def embedder_of(encoder, **settings) -> Embedder:
    return Embedder(encoder, ServeSettings(**settings), Metrics())


def assert_same(found: Reading, wanted: Reading) -> None:
    np.testing.assert_array_equal(found.vector, wanted.vector)
    np.testing.assert_allclose(found.states, wanted.states, atol=5e-4)
    assert (found.states.dtype, found.spans) == (np.float32, wanted.spans)


async def test_queries_that_wait_are_read_in_one_batch_and_each_gets_its_own() -> None:
    encoder = WatchedEncoder()
    encoder.go_on.clear()
    embedder = embedder_of(encoder)
    texts = [f"query {number} " + "wing " * (number % 7) for number in range(40)]
    asked = asyncio.gather(*map(embedder.read, texts))
    while len(embedder.queue) + sum(map(len, encoder.batches)) < len(texts):
        await asyncio.sleep(0.001)
    encoder.go_on.set()
    found = await asked
    assert len(encoder.batches) <= 2, "those that came first, and all that came meanwhile"
    assert sorted(text for batch in encoder.batches for text in batch) == sorted(texts)
    for one, wanted in zip(found, HashingEncoder().read_queries(texts), strict=True):
        assert_same(one, wanted)
    embedder.close()


async def test_readings_vectors_and_passages_go_on_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "BATCH_TOKENS", 40)
    encoder = HashingEncoder()
    embedder = embedder_of(encoder)
    texts = [f"wing {number}" for number in range(60)]
    reads = asyncio.gather(*map(embedder.read, texts))
    readings, queries, passages = await asyncio.gather(
        reads, embedder.embed("query", texts), embedder.embed("passage", texts)
    )
    for one, query, passage, wanted in zip(
        readings, queries, passages, encoder.read_queries(texts), strict=True
    ):
        assert_same(one, wanted)
        np.testing.assert_array_equal(query.vector, wanted.vector)
        np.testing.assert_array_equal(passage.vector, wanted.vector)
        assert len(query.states) == len(passage.states) == 0
    embedder.close()


async def test_a_query_is_read_once_and_answered_the_same_again() -> None:
    encoder = WatchedEncoder()
    embedder = embedder_of(encoder)
    first, again = [await embedder.read("wing flow") for _ in range(2)]
    assert encoder.batches == [["wing flow"]]
    np.testing.assert_array_equal(first.states, again.states)
    np.testing.assert_array_equal(first.vector, again.vector)
    embedder.close()


def test_embeddings_of_queries_are_not_read() -> None:
    encoder = WatchedEncoder()
    app = create_app(encoder)
    answer = TestClient(app).post("/v1/embeddings", json={"model": "x-query", "input": ["wing", "flow"]})
    assert answer.status_code == 200
    assert encoder.batches == []
    assert all(len(kept.states) == 0 for kept in app.state.embedder.cache._cached.values())


async def test_an_encoder_without_states_gives_a_reading_without_tokens() -> None:
    embedder = embedder_of(BlindEncoder())
    found = await embedder.read("wing flow")
    np.testing.assert_array_equal(found.vector, HashingEncoder().encode_queries(["wing flow"])[0])
    assert (len(found.states), found.spans) == (0, ())
    embedder.close()


async def test_an_encoder_that_fails_fails_the_reading() -> None:
    embedder = embedder_of(DeadEncoder())
    with pytest.raises(EncodingFailed):
        await embedder.read("wing")
    embedder.close()


def entry(tokens: int) -> Embedding:
    spans = tuple((6 * token, 6 * token + 5) for token in range(tokens))
    return Embedding(np.ones(DIM, np.float32), tokens, np.ones((tokens, WIDTH), np.float16), spans)


def test_long_queries_leave_room_for_fewer() -> None:
    cache = QueryCache(100, "f", 256)
    for number in range(100):
        cache.put("reading", f"short {number}", entry(9))
    assert len(cache) == 100
    for number in range(30):
        cache.put("reading", f"long {number}", entry(254))
    assert sum(len(kept.states) for kept in cache._cached.values()) <= 100 * TOKENS_PER_QUERY
    assert 1 <= len(cache) < 10
    assert cache.get("reading", "long 29") is not None
    for number in range(100):
        cache.put("query", f"plain {number}", entry(0))
    assert len(cache) == 100


def test_the_same_query_put_twice_is_counted_once() -> None:
    cache = QueryCache(2, "f", 256)
    for _ in range(10):
        cache.put("reading", "same", entry(20))
    cache.put("reading", "other", entry(12))
    assert len(cache) == 2


def test_an_entry_of_seven_words_takes_nine_kilobytes() -> None:
    cache = QueryCache(1000, "f", 256)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1000):
            cache.put("reading", f"query {number}", entry(9))
        taken = (tracemalloc.get_traced_memory()[0] - before) / 1000
    finally:
        tracemalloc.stop()
    assert 2 * 9 * WIDTH + 4 * DIM < taken < 10_000, taken
