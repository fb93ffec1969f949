"""`hybridr deploy` in all ways on a real node with ml-commons, asked by plain REST."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr import Search, load_encoder
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.remote_models import TRUSTED
from hybridr.errors import ClusterError, DataError, FingerprintMismatch, NotFound, SettingsError, Unreachable
from hybridr.indexing.reindexing import reindex
from hybridr.search.settings import SearchSettings
from hybridr.serving.application import create_app
from hybridr.serving.deploy.deploying import deploy, plan_deployment, undeploy
from hybridr.serving.settings import DeploySettings
from hybridr.status.standing import remove
from support.corpus import bulk, drop_indices, fill_index, reindexed, text_number
from support.deployed import Server, ask, ids, scores, serving_index, with_vectors
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX = "shelf"
TEXT = text_number(7)
DEFAULTS = SearchSettings()


@pytest.fixture
def index_name_ml(ml_cluster: Cluster) -> Iterator[str]:
    yield "crate"
    drop_indices(ml_cluster, "crate*")


@pytest.fixture(scope="module")
def shelf(ml_cluster: Cluster, minilm: Path) -> Iterator[Cluster]:
    fill_index(ml_cluster, INDEX, 60)
    bulk(
        ml_cluster, INDEX, [{"index": {"_id": "odd"}}, {"text": 'a "quoted" {brace} \n line', "price": 99.0}]
    )
    yield from with_vectors(ml_cluster, INDEX, minilm)


@pytest.fixture(scope="module")
def server(shelf: Cluster, minilm: Path) -> Iterator[Server]:
    with serving_index(shelf, INDEX, minilm) as running:
        yield running


def hybrid(cluster: Cluster, folder: Path) -> tuple[list[str], list[float]]:
    pipeline = SearchSettings(fusion="pipeline")
    hits = Search(cluster, INDEX, load_encoder(folder), settings=pipeline)(TEXT, 10)
    return [hit.doc_id for hit in hits], [hit.score for hit in hits]


def test_neural_queries_hold_text(shelf, server, minilm):
    settings = DeploySettings(way="neural", server=server.url, set_cluster_settings=True)
    done = deploy(shelf, INDEX, settings, DEFAULTS)
    body = json.loads(done.example)
    [match, neural] = body["query"]["hybrid"]["queries"]
    match["match"]["text"] = neural["neural"]["hybridr_vector"]["query_text"] = TEXT
    try:
        answer = ask(shelf, done.index, body)
    finally:
        undeploy(shelf, INDEX)
    expected_ids, expected_scores = hybrid(shelf, minilm)
    assert (ids(answer), scores(answer)) == (expected_ids, pytest.approx(expected_scores, abs=1e-5))

    # A token is never shown.
    settings = DeploySettings(way="neural", server=server.url, token="sesame-42")
    assert "sesame" not in json.dumps(plan_deployment(shelf, INDEX, settings, DEFAULTS).requests)


def test_clients_send_vectors_and_no_word_about_fusion(shelf, minilm):
    done = deploy(shelf, INDEX, DeploySettings(), DEFAULTS)
    body = json.loads(done.example)
    [match, knn] = body["query"]["hybrid"]["queries"]
    match["match"]["text"] = TEXT
    encoder = load_encoder(minilm)
    knn["knn"]["hybridr_vector"]["vector"] = encoder.encode_queries([TEXT])[0].tolist()
    try:
        assert ids(ask(shelf, done.index, body)) == hybrid(shelf, minilm)[0]
    finally:
        undeploy(shelf, INDEX)


def test_again_changes_nothing_and_another_way_leaves_nothing_behind(shelf, server):
    def models() -> set[str]:
        found = shelf.request("POST", "/_plugins/_ml/models/_search", {"query": {"match_all": {}}})
        return {hit["_id"] for hit in found["hits"]["hits"]}

    before = models()
    neural = DeploySettings(way="neural", server=server.url, set_cluster_settings=True)
    assert deploy(shelf, INDEX, neural, DEFAULTS).changed
    first = models()
    assert not deploy(shelf, INDEX, neural, DEFAULTS).changed
    assert models() == first
    assert deploy(shelf, INDEX, DeploySettings(way="transparent", server=server.url), DEFAULTS).changed
    assert len(models()) == len(first)
    assert models() != first
    assert deploy(shelf, INDEX, DeploySettings(), DEFAULTS).changed
    undeploy(shelf, INDEX)
    assert models() == before
    info = resolve(shelf, INDEX)
    assert "index.search.default_pipeline" not in info.settings
    assert not info.record.deployment
    with pytest.raises(DataError, match="nothing is deployed"):
        undeploy(shelf, INDEX)


def test_remove_takes_the_deployment_along(ml_cluster, server, index_name_ml, minilm):
    reindexed(ml_cluster, index_name_ml, 20, minilm)
    neural = DeploySettings(way="neural", server=server.url, set_cluster_settings=True)
    done = deploy(ml_cluster, index_name_ml, neural, DEFAULTS)
    known = resolve(ml_cluster, index_name_ml).record.deployment
    planned = remove(ml_cluster, index_name_ml, dry_run=True)
    assert ml_cluster.request("GET", path_of("_search", "pipeline", done.pipeline))
    assert remove(ml_cluster, index_name_ml)["requests"] == planned["requests"] != []
    for path in (f"/_search/pipeline/{done.pipeline}", f"/_plugins/_ml/models/{known.model_id}"):
        with pytest.raises(NotFound):
            ml_cluster.request("GET", path)


def test_dry_run_shows_the_requests_and_sends_none(shelf, server, cli):
    before = shelf.index_info(resolve(shelf, INDEX).name)
    command = ["deploy", INDEX, "--way", "transparent", "--server", server.url, "--url", shelf.url]
    shown = cli.typed([*command, "--dry-run", "--json"]).json
    assert [request["path"].rsplit("/", 1)[-1] for request in shown["requests"]][-5:] == [
        "_create",
        "_register",
        "_deploy",
        shown["pipeline"],
        "_settings",
    ]
    assert shelf.index_info(before.name) == before
    assert "--way transparent" in cli.typed([*command, "--set-cluster-settings"]).out
    assert "nothing was sent" in cli(shelf, f"undeploy {INDEX} --dry-run").out
    assert resolve(shelf, INDEX).record.deployment
    cli(shelf, f"undeploy {INDEX}")
    assert resolve(shelf, INDEX).settings == before.settings


def test_refusals(shelf, server, cluster, index_name):
    def plan(cluster: Cluster = shelf, index: str = INDEX, **settings: Any) -> None:
        plan_deployment(cluster, index, DeploySettings(**settings), DEFAULTS)

    with pytest.raises(Unreachable, match="no embedding server answers"):
        plan(way="neural", server="http://127.0.0.1:1")
    with pytest.raises(SettingsError, match="is not a server's address"):
        plan(way="neural", server="nowhere")
    other = Server(create_app(HashingEncoder()))
    try:
        with pytest.raises(FingerprintMismatch, match="the vectors of"):
            plan(way="neural", server=other.url)
    finally:
        other.stop()
    shelf.request("PUT", "/_cluster/settings", {"persistent": {TRUSTED: None}})
    with pytest.raises(ClusterError, match="does not let a model ask") as refused:
        deploy(shelf, INDEX, DeploySettings(way="neural", server=server.url), DEFAULTS)
    assert "PUT /_cluster/settings" in (refused.value.hint or "")
    settings = path_of(resolve(shelf, INDEX).name, "_settings")
    shelf.request("PUT", settings, {"index.search.default_pipeline": "mine"})
    with pytest.raises(ClusterError, match="default search pipeline of its own"):
        plan()
    shelf.request("PUT", settings, {"index.search.default_pipeline": None})
    fill_index(cluster, index_name, 5)
    with pytest.raises(DataError, match="no complete vectors"):
        plan(cluster, index_name)
    reindex(cluster, index_name, HashingEncoder())
    with pytest.raises(ClusterError, match="needs the plugin opensearch-ml"):
        plan(cluster, index_name, way="neural")
    assert deploy(cluster, index_name, DeploySettings(), DEFAULTS).changed
    undeploy(cluster, index_name)
