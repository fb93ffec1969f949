"""What is kept of queries that were asked before, and what the encoder is asked for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hybridr.serving.application import create_app
from hybridr.serving.embeddings import Embedding, QueryCache, encode_for
from hybridr.serving.settings import ServeSettings
from support.hashing import HashingEncoder


def embedding(value: float) -> Embedding:
    return Embedding(np.full(3, value, dtype=np.float32), int(value))


def test_the_one_not_used_for_longest_goes_first():
    cache = QueryCache(2, "f", 256)
    for number, text in enumerate("ab"):
        cache.put("query", text, embedding(number))
    assert cache.get("query", "a").tokens == 0
    cache.put("query", "c", embedding(2))
    assert cache.get("query", "b") is None
    assert (cache.get("query", "a").tokens, cache.get("query", "c").tokens) == (0, 2)
    assert len(cache) == 2


def test_a_size_of_nothing_keeps_nothing():
    cache = QueryCache(0, "f", 256)
    cache.put("query", "a", embedding(1))
    assert cache.get("query", "a") is None


@pytest.mark.parametrize("other", [("g", 256), ("f", 128)])
def test_side_encoder_and_token_limit_are_part_of_the_key(other):
    cache, foreign = QueryCache(9, "f", 256), QueryCache(9, *other)
    assert cache._key("query", "a") != foreign._key("query", "a")
    assert cache._key("query", "a") != cache._key("passage", "a")


def test_a_batch_does_not_live_on_in_the_cache():
    cache, batch = QueryCache(9, "f", 256), np.zeros((1000, 3), dtype=np.float32)
    cache.put("query", "a", Embedding(batch[0], 1))
    assert cache.get("query", "a").vector.base is None


class CountingEncoder(HashingEncoder):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def encode_queries(self, texts, *, max_tokens=None):
        self.asked += texts
        return super().encode_queries(texts)


@pytest.mark.parametrize("shape", [(1, 3), (2, 4), (6,)])
def test_vectors_of_another_shape_are_an_error(shape):
    odd = SimpleNamespace(encode_queries=lambda texts: np.zeros(shape, np.float32), dim=3)
    with pytest.raises(ValueError, match="2 texts gave vectors"):
        encode_for(odd, "query", ["a", "b"])


def test_repeated_queries_are_encoded_once_and_passages_every_time():
    encoder = CountingEncoder()
    client = TestClient(create_app(encoder))

    def ask(model, *texts):
        answer = client.post("/v1/embeddings", json={"model": model, "input": list(texts)})
        return [entry["embedding"] for entry in answer.json()["data"]]

    first = ask("x-query", "a", "b")
    assert ask("x-query", "b", "c", "a")[::2] == first[::-1]
    assert encoder.asked == ["a", "b", "c"]
    ask("x-passage", "a")
    ask("x-passage", "a")
    assert encoder.encoded == ["a", "a"]
    shown = client.get("/metrics").text
    assert "hybridr_cache_hits_total 2.0" in shown
    assert "hybridr_cache_misses_total 3.0" in shown


def test_the_cache_is_bounded_by_the_settings():
    app = create_app(CountingEncoder(), ServeSettings(cache_queries=5))
    client = TestClient(app)
    for number in range(20):
        client.post("/v1/embeddings", json={"model": "x-query", "input": f"query {number}"})
    assert len(app.state.embedder.cache) == 5
