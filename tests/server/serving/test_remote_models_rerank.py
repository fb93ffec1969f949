"""`/v1/rerank` behind a `rerank` processor of the cluster: ml-commons' own functions take its answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.connection import Cluster
from hybridr.encoders.graph_folders import PairScorer
from hybridr.serving.application import create_app
from hybridr.serving.deploy.remote_models import (
    RemoteModel,
    connector_body,
    create_model,
    delete_model,
    missing_settings,
)
from hybridr.serving.settings import ServeSettings
from support.corpus import fill_index
from support.deployed import Server
from support.hashing import HashingEncoder
from support.pairs import exported

pytestmark = [pytest.mark.node, pytest.mark.ml]
PIPELINE, INDEX, TEXT = "/_search/pipeline/t-rerank", "t-rerank", 'garden "marble" zephyr'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(create_app(HashingEncoder(), ServeSettings(reranker=exported(), token="secret")))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def model(ml_cluster: Cluster, server: Server) -> Iterator[RemoteModel]:
    needed = missing_settings(ml_cluster, server.url)
    ml_cluster.request("PUT", "/_cluster/settings", {"persistent": needed})
    url = f"{server.url}/v1/rerank"
    made = create_model(ml_cluster, connector_body("reranking", "hybridr-t-rerank", url, "secret"))
    fill_index(ml_cluster, INDEX, 30)
    yield made
    delete_model(ml_cluster, made)
    ml_cluster.request("PUT", "/_cluster/settings", {"persistent": dict.fromkeys(needed)})
    ml_cluster.request("DELETE", f"/{INDEX}")


def test_the_processor_orders_hits_by_the_scores_of_the_model(
    ml_cluster: Cluster, model: RemoteModel
) -> None:
    processor: dict[str, Any] = {
        "ml_opensearch": {"model_id": model.model_id},
        "context": {"document_fields": ["text"]},
    }
    ml_cluster.request("PUT", PIPELINE, {"response_processors": [{"rerank": processor}]})
    body = {
        "query": {"match": {"text": TEXT}},
        "size": 12,
        "ext": {"rerank": {"query_context": {"query_text": TEXT}}},
    }
    path = f"/{INDEX}/_search"
    try:
        hits = ml_cluster.request("POST", path, body, {"search_pipeline": "t-rerank"})["hits"]["hits"]
    finally:
        ml_cluster.request("DELETE", PIPELINE)
    logits = PairScorer(exported()).score([(TEXT, hit["_source"]["text"]) for hit in hits])
    scores = [hit["_score"] for hit in hits]
    assert len(hits) == 12
    assert scores == pytest.approx((1 / (1 + np.exp(-logits))).tolist(), abs=1e-5)
    assert scores == sorted(scores, reverse=True)


def test_langchain_takes_the_answers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client of an API of the same form, but for where that lies."""
    from langchain_community.document_compressors import jina_rerank
    from langchain_core.documents import Document

    monkeypatch.setattr(jina_rerank, "JINA_API_URL", f"{server.url}/v1/rerank")
    texts = ["stone by stone", "a bank of the river", "over the long night"]
    client = jina_rerank.JinaRerank(jina_api_key="secret", top_n=2)
    found = client.compress_documents([Document(text) for text in texts], TEXT)
    logits = PairScorer(exported()).score([(TEXT, text) for text in texts])
    best = np.argsort(-logits)[:2]
    assert [one.page_content for one in found] == [texts[at] for at in best]
    scores = [one.metadata["relevance_score"] for one in found]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits[best])), atol=1e-5)
