"""`/v1/rerank` scores documents in the form of Cohere's API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hybridr.encoders.graph_folders import PairScorer
from hybridr.errors import ModelError
from hybridr.serving.application import create_app
from hybridr.serving.reranking import MOST_DOCUMENTS
from hybridr.serving.settings import ServeSettings
from support.golden_ddr import SOURCE
from support.hashing import HashingEncoder
from support.pairs import exported

QUERY, DOCUMENTS = (
    "the river and the sea",
    ["stone by stone", "a bank of the river", "", "over the long night"],
)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(HashingEncoder(), ServeSettings(reranker=exported()))) as client:
        yield client


def asked(client: TestClient, path: str = "/v1/rerank", **body: Any) -> Any:
    return client.post(path, json={"model": "any", "query": QUERY, "documents": DOCUMENTS, **body})


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_scores_are_those_of_the_model_best_first(client: TestClient, path: str) -> None:
    found = asked(client, path).json()
    logits = PairScorer(exported()).score([(QUERY, text) for text in DOCUMENTS])
    assert [one["index"] for one in found["results"]] == np.argsort(-logits).tolist()
    scores = [one["relevance_score"] for one in found["results"]]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(np.sort(-logits))), atol=1e-5)
    assert found["id"]
    assert all(isinstance(one, float) and len(repr(one)) <= 18 for one in scores), "else ml-commons fails"
    assert "document" not in found["results"][0]


def test_the_best_alone_with_their_documents(client: TestClient) -> None:
    objects = [{"text": text, "title": f"no. {at}"} for at, text in enumerate(DOCUMENTS)]
    plain = asked(client).json()["results"]
    found = asked(client, documents=objects, top_n=2, return_documents=True).json()["results"]
    assert [one["index"] for one in found] == [one["index"] for one in plain[:2]]
    assert found[0]["relevance_score"] == pytest.approx(plain[0]["relevance_score"], abs=1e-6)
    assert found[0]["document"] == objects[found[0]["index"]]
    titled = asked(client, documents=objects, rank_fields=["title", "text"]).json()["results"]
    both = [f"no. {at}\n{text}" for at, text in enumerate(DOCUMENTS)]
    assert titled[0]["index"] == asked(client, documents=both).json()["results"][0]["index"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"query": " "}, "the query is empty"),
        ({"documents": []}, "documents: List should have at least 1 item"),
        ({"documents": ["a"] * (MOST_DOCUMENTS + 1)}, "at most 1000 items"),
        ({"documents": [3]}, "documents"),
        ({"top_n": 0}, "top_n"),
    ],
)
def test_what_cannot_be_scored_is_told(client: TestClient, body: dict[str, Any], said: str) -> None:
    answered = asked(client, **body)
    assert answered.status_code in (400, 422)
    assert said in answered.json()["error"]["message"]


def test_a_server_without_a_re_ranker_has_no_such_route_and_a_wrong_folder_ends_it() -> None:
    assert TestClient(create_app(HashingEncoder())).post("/v1/rerank", json={}).status_code == 404
    with pytest.raises(ModelError, match="holds no pair scorer"):
        create_app(HashingEncoder(), ServeSettings(reranker=SOURCE))
