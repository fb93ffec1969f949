"""`deploy --rerank`: a second pipeline whose hits a cross-encoder orders, asked by plain REST."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hybridr_cli
from hybridr import PairScorer, reindex
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.default_pipeline import found_pipeline
from hybridr.deploying.deploying import deploy, deployments, undeploy
from hybridr.deploying.remote_models import made_for
from hybridr.deploying.reranked_pipeline import deploy_reranking, plan_reranking
from hybridr.deploying.settings import DeploySettings
from hybridr.errors import DataError, SettingsError
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from hybridr.standing.standing import remove
from support.corpus import fill_index, text_number
from support.deployed import Server, ids, scores
from support.hashing import HashingEncoder
from support.pairs import exported

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX, TEXT = "again", text_number(7)
PIPELINE = "hybridr-again-hybridr-1-rerank"
EXT = {"rerank": {"query_context": {"query_text": TEXT}}}
TOKEN: Any = "secret"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(create_app(HashingEncoder(), ServeSettings(reranker=exported(), token=TOKEN)))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def settings(server: Server) -> DeploySettings:
    return DeploySettings(server=server.url, token=TOKEN, set_cluster_settings=True)


@pytest.fixture(scope="module")
def deployed(ml_cluster: Cluster, settings: DeploySettings) -> Iterator[str]:
    fill_index(ml_cluster, INDEX, 30)
    reindex(ml_cluster, INDEX, HashingEncoder())
    index = deploy(ml_cluster, INDEX, settings).index
    undeploy(ml_cluster, INDEX)
    with pytest.raises(DataError, match="nothing is deployed"):
        plan_reranking(ml_cluster, INDEX, settings)
    deploy(ml_cluster, INDEX, settings)
    assert deploy_reranking(ml_cluster, INDEX, settings).changed
    yield index
    remove(ml_cluster, INDEX)
    ml_cluster.request("DELETE", path_of(INDEX))
    assert found_pipeline(ml_cluster, PIPELINE) is None
    assert not [kind for kind in ("models", "connectors") if made_for(ml_cluster, kind, PIPELINE)]


def asked(cluster: Cluster, index: str, body: dict[str, Any], pipeline: str = PIPELINE) -> dict[str, Any]:
    found: dict[str, Any] = cluster.request(
        "POST", path_of(index, "_search"), body, {"search_pipeline": pipeline}
    )
    return found


def test_twice_the_hits_are_read_and_the_page_keeps_its_size(ml_cluster: Cluster, deployed: str) -> None:
    query = {"match": {"text": TEXT}}
    found = asked(ml_cluster, deployed, {"query": query, "size": 6, "ext": EXT})
    first = asked(ml_cluster, deployed, {"query": query, "size": 12}, "_none")["hits"]["hits"]
    logits = PairScorer(exported()).score([(TEXT, hit["_source"]["text"]) for hit in first])
    best = np.argsort(-logits, kind="stable")[:6]
    assert len(first) == 12
    assert scores(found) == pytest.approx((1 / (1 + np.exp(-logits[best]))).tolist(), abs=1e-5)
    assert set(ids(found)) == {first[at]["_id"] for at in best}
    assert found["hits"]["total"]["value"] >= 12


def test_without_the_text_or_the_pipeline_nothing_changes(ml_cluster: Cluster, deployed: str) -> None:
    body = {"query": {"match": {"text": TEXT}}, "size": 6}
    plain = asked(ml_cluster, deployed, body, "_none")
    for other in (
        asked(ml_cluster, deployed, body),
        ml_cluster.request("POST", f"/{deployed}/_search", body),
    ):
        assert (ids(other), scores(other)) == (ids(plain), scores(plain))


def test_again_it_changes_nothing_and_tells_no_token(
    ml_cluster: Cluster, deployed: str, settings: DeploySettings
) -> None:
    before = found_pipeline(ml_cluster, PIPELINE)
    assert not deploy_reranking(ml_cluster, INDEX, settings).changed
    assert found_pipeline(ml_cluster, PIPELINE) == before
    assert "secret" not in json.dumps(plan_reranking(ml_cluster, INDEX, settings).requests)


def test_another_token_is_refused_before_anything_is_made(
    ml_cluster: Cluster, deployed: str, server: Server
) -> None:
    other: Any = "other"
    with pytest.raises(SettingsError, match="asks for another token"):
        deploy_reranking(ml_cluster, INDEX, DeploySettings(server=server.url, token=other))
    assert len(made_for(ml_cluster, "models", PIPELINE)) == 1


def test_a_scroll_through_it_loses_hits_so_it_is_no_default(ml_cluster: Cluster, deployed: str) -> None:
    body = {"query": {"match_all": {}}, "size": 10}
    asking = {"search_pipeline": PIPELINE, "scroll": "1m"}
    page = ml_cluster.request("POST", path_of(deployed, "_search"), body, asking)
    found: list[str] = []
    while page["hits"]["hits"]:
        found += ids(page)
        page = ml_cluster.request(
            "POST", "/_search/scroll", {"scroll": "1m", "scroll_id": page["_scroll_id"]}
        )
    ml_cluster.request("DELETE", "/_search/scroll", {"scroll_id": page["_scroll_id"]})
    assert 0 < len(set(found)) < 30


def test_status_tells_what_the_second_pipeline_lacks(
    ml_cluster: Cluster, deployed: str, settings: DeploySettings
) -> None:
    def told() -> list[str]:
        return next(one.missing for info, one in deployments(ml_cluster) if info.name == deployed)

    assert told() == []
    [model] = made_for(ml_cluster, "models", PIPELINE)
    ml_cluster.request("POST", f"/_plugins/_ml/models/{model}/_undeploy")
    assert PIPELINE in told()[0]
    assert deploy_reranking(ml_cluster, INDEX, settings).changed
    assert told() == []


def test_a_server_without_a_reranker_is_refused(ml_cluster: Cluster, deployed: str) -> None:
    other = Server(create_app(HashingEncoder(), ServeSettings()))
    try:
        with pytest.raises(SettingsError, match="has no re-ranker"):
            plan_reranking(ml_cluster, INDEX, DeploySettings(server=other.url))
    finally:
        other.stop()


def test_the_command_shows_what_it_would_send(
    ml_cluster: Cluster, deployed: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--url", ml_cluster.url, "--server", server.url, "--set-cluster-settings"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDR_DEPLOY_TOKEN", TOKEN)
        assert hybridr_cli.main(["deploy", INDEX, "--rerank", "--dry-run", "--json", *url]) == 0
        told = json.loads(capsys.readouterr().out)
        assert hybridr_cli.main(["deploy", INDEX, "--rerank", *url]) == 0
    assert told["rerank"]["requests"][-1]["path"].endswith(PIPELINE)
    assert f"search_pipeline={PIPELINE}" in capsys.readouterr().out
