"""`/search` without a node: dead encoders, clusters that are away, queries that make no sense."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hybridr.cluster.connection import Cluster
from hybridr.errors import ClusterError, Unreachable
from hybridr.records import Hit, Hits
from hybridr.serving import snapshots
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.hashing import HashingEncoder
from support.searches import StandInSearch


class FakeSearch(StandInSearch):
    """Answers with its mode and the size of the query's vector."""

    failure: Exception | None = None
    asked: ClassVar[dict[str, Any]] = {}
    signals = SimpleNamespace(reads_tokens=True)

    def __call__(self, text, k, *, offset=0, filter=None, reading=None, explain=False):
        if FakeSearch.failure:
            raise FakeSearch.failure
        FakeSearch.asked[text] = None if reading is None else reading.vector
        size = 0 if reading is None else len(reading.vector)
        return Hits([Hit(f"{self.mode} {size}", 1.0, 1)][:k])


class DyingEncoder(HashingEncoder):
    dead = False

    def encode_queries(self, texts, *, max_tokens=None):
        if self.dead:
            raise RuntimeError("out of memory")
        return super().encode_queries(texts)


@pytest.fixture
def encoder():
    return DyingEncoder()


@pytest.fixture
def client(encoder, monkeypatch):
    monkeypatch.setattr(snapshots, "Search", FakeSearch)
    monkeypatch.setattr(FakeSearch, "failure", None)
    return TestClient(create_app(encoder, ServeSettings(index="docs"), cluster=Cluster(None, "http://x")))


@pytest.mark.parametrize(
    ("mode", "found"), [("hybrid", "hybrid 16"), ("dense", "dense 16"), ("lexical", "lexical 0")]
)
def test_search_uses_the_vector_of_the_batch(client, mode, found):
    answer = client.post("/search", json={"query": "a cat", "mode": mode})
    assert answer.json()["hits"][0]["doc_id"] == found
    assert "warning" not in answer.headers


def test_clients_at_once_get_the_vectors_of_their_own_queries(client, encoder):
    texts = [f"cat {number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: client.post("/search", json={"query": text}), texts * 2))
    assert {answer.status_code for answer in answers} == {200}
    for text, one in zip(texts, encoder.read_queries(texts), strict=True):
        np.testing.assert_array_equal(FakeSearch.asked[text], one.vector)
    kept = client.app.state.embedder.cache._cached.values()
    assert sorted(len(one.states) for one in kept) == [2] * 40


def test_lexical_search_reads_nothing(client):
    client.post("/search", json={"query": "a cat", "mode": "lexical"})
    assert len(client.app.state.embedder.cache) == 0


@pytest.mark.parametrize("mode", ["hybrid", "dense"])
def test_a_dead_encoder_means_lexical_results_and_a_warning(client, encoder, mode):
    encoder.dead = True
    answer = client.post("/search", json={"query": "a cat", "mode": mode})
    assert answer.status_code == 200
    assert answer.headers["warning"] == '199 hybridr "the encoder failed, these are lexical results"'
    assert (answer.json()["mode"], answer.json()["hits"][0]["doc_id"]) == ("lexical", "lexical 0")
    assert "lexical results" in answer.json()["warning"]


def test_an_index_of_any_name_may_lose_its_vectors(client):
    """A header takes ASCII alone: a name in it would else fail every search."""
    searches = client.app.state.searches
    searches.now = replace(searches.now, lost="'b\u00fccher-\u672c \"x\"' has no vectors")
    answer = client.post("/search", json={"query": "a cat"})
    assert answer.status_code == 200
    assert answer.json()["warning"].startswith("'b\u00fccher-\u672c \"x\"' has no vectors: ")
    said = answer.headers["warning"]
    assert said == "199 hybridr \"'b?cher-? ?x?' has no vectors: these are lexical results\""


def test_a_cluster_that_is_away_is_503_with_words(client, monkeypatch):
    monkeypatch.setattr(FakeSearch, "failure", Unreachable("nothing answers at http://x", hint="is it up?"))
    answer = client.post("/search", json={"query": "a cat"})
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert (error["message"], error["hint"]) == ("nothing answers at http://x", "is it up?")
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "query: Field required"),
        ({"query": ""}, 400, "at least 1 character"),
        ({"query": "  "}, 400, "the query is empty"),
        ({"query": "\x00\x1f \u200b"}, 400, "the query is empty"),
        ({"query": "x" * 100_001}, 422, "the query has 100001 characters, the limit is 100000"),
        ({"query": "x", "k": 0}, 400, "greater than or equal to 1"),
        ({"query": "x", "k": -1}, 400, "greater than or equal to 1"),
        ({"query": "x", "k": 1001}, 400, "less than or equal to 1000"),
        ({"query": "x", "k": 10**30}, 400, "k: "),
        ({"query": "x", "k": 1.5}, 400, "valid integer"),
        ({"query": "x", "mode": "magic"}, 400, "'hybrid', 'dense', 'lexical' or 'sparse'"),
    ],
)
@pytest.mark.attack(37)
def test_a_search_that_makes_no_sense_says_why(client, body, status, said):
    answer = client.post("/search", json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "part", ['"boost": "\\ud800"', '"filter": {"\\ud800": {}}', '"\\ud800": 1', '"mode": "\\ud800"']
)
def test_half_a_character_anywhere_is_the_clients_error(client, part):
    body = f'{{"query": "a cat", {part}}}'.encode()
    answer = client.post("/search", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "surrogate" in answer.json()["error"]["message"]


def test_a_filter_that_the_cluster_cannot_read_is_the_clients_error(client, monkeypatch):
    refusal = ClusterError("the cluster refused (400 x): For input string", status=400)
    monkeypatch.setattr(FakeSearch, "failure", refusal)
    body = {"query": "a cat", "filter": {"range": {"price": {"gte": "now"}}}}
    answer = client.post("/search", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("filter: the cluster refused")
    assert client.post("/search", json={"query": "a cat"}).status_code == 502, "our own request was wrong"


def test_a_query_is_shorter_than_a_text_to_encode(monkeypatch):
    monkeypatch.setattr(snapshots, "Search", FakeSearch)
    settings = ServeSettings(index="docs", max_query_characters=1000)
    client = TestClient(create_app(HashingEncoder(), settings, cluster=Cluster(None, "http://x")))
    answer = client.post("/search", json={"query": "x" * 1001})
    assert answer.status_code == 422
    assert "1001 characters, the limit is 1000" in answer.json()["error"]["message"]
    assert "max_query_characters" in answer.json()["error"]["hint"]
    texts = {"model": "hybridr-query", "input": "x" * 1001}
    assert client.post("/v1/embeddings", json=texts).status_code == 200


@pytest.mark.attack(6)
@pytest.mark.parametrize(
    "body", [{"query": "a cat", "odd": 2}, {"query": "a cat", "filter": {"script": {"script": "true"}}}]
)
def test_unknown_keys_and_filters_are_422(client, body):
    answer = client.post("/search", json=body)
    assert answer.status_code == 422
    assert ("odd" if "odd" in body else "script") in answer.json()["error"]["message"]
