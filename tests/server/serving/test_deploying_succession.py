"""What is told of deployments, and what a new index takes over from the one before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.default_pipeline import CACHE, stored_pipeline
from hybridr.cluster.destinations import resolve, write_record
from hybridr.doctor.diagnosis import check_deployments
from hybridr.doctor.health_checks import Check
from hybridr.errors import ClusterError
from hybridr.indexing.reindexing import reindex
from hybridr.search.fusions.pipeline import hybrid_query
from hybridr.search.hits import checked_hits
from hybridr.search.settings import SearchSettings
from hybridr.serving.application import create_app
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings
from hybridr.status.standing import remove, status
from support.corpus import fill_index, reindexed, text_number
from support.deployed import Server
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.ml]
DEFAULT = "index.search.default_pipeline"
CLIENT, DEFAULTS = DeploySettings(), SearchSettings()
OTHER = ReindexSettings(m=8)  # which makes another destination


@pytest.fixture
def deployed(cluster: Cluster, index_name: str) -> str:
    """A deployed index with vectors, by its name."""
    reindexed(cluster, index_name, 20)
    return deploy(cluster, index_name, CLIENT, DEFAULTS).index


def line_of(cluster: Cluster, index: str) -> Check:
    """The line of `doctor` for one deployment."""
    (found,) = [check for check in check_deployments(cluster) if check.name == f"deployment {index}"]
    return found


def ask(cluster: Cluster, index: str) -> list[dict[str, Any]]:
    """Send what a client of the way `client` sends."""
    dense = {
        "knn": {"hybridr_vector": {"vector": HashingEncoder().encode_queries(["x"])[0].tolist(), "k": 5}}
    }
    body = {"query": hybrid_query([{"match": {"text": text_number(3)}}, dense], 10)}
    return checked_hits(cluster.request("POST", path_of(index, "_search"), body))


def test_status_and_doctor_tell_a_deployment_and_what_it_lacks(cluster, index_name, deployed, cli):
    (holding,) = status(cluster, index_name).holdings
    assert (holding.deployment.way, holding.deployment.missing) == ("client", [])
    assert line_of(cluster, deployed).ok is True
    assert (
        f"deployed: client, pipeline hybridr-{deployed} (whole)" in cli(cluster, f"status {index_name}").out
    )

    # Status and doctor tell what is missing.
    cluster.request("DELETE", path_of("_search", "pipeline", f"hybridr-{deployed}"))
    (holding,) = status(cluster, index_name).holdings
    gone = f"the pipeline hybridr-{deployed} is gone"
    assert holding.deployment.missing == [gone]
    assert (holding.documents, holding.lag, holding.writes) == (20, None, None), "it cannot be searched"
    found = line_of(cluster, deployed)
    assert (found.ok, found.found) == (False, f"client: {gone}")
    assert found.fix == f"hybridr deploy {index_name} --way client"
    assert deploy(cluster, index_name, CLIENT, DEFAULTS).changed
    cluster.request("PUT", path_of(deployed, "_settings"), {DEFAULT: None})
    assert line_of(cluster, deployed).found == "client: the default pipeline of the index is _none"
    assert deploy(cluster, index_name, CLIENT, DEFAULTS).changed
    assert line_of(cluster, deployed).ok is True
    undeploy(cluster, index_name)
    assert status(cluster, index_name).holdings[0].deployment is None
    assert [check for check in check_deployments(cluster) if deployed in check.name] == []


def test_deploy_leaves_somebody_elses_pipeline_of_its_name(cluster, index_name):
    destination = reindexed(cluster, index_name, 5).destination
    path = path_of("_search", "pipeline", f"hybridr-{destination}")
    cluster.request("PUT", path, {"description": "theirs", "phase_results_processors": []})
    with pytest.raises(ClusterError, match="not hybridr's"):
        deploy(cluster, index_name, CLIENT, DEFAULTS)
    assert stored_pipeline(cluster, f"hybridr-{destination}")["description"] == "theirs"
    cluster.request("DELETE", path)


def test_a_new_index_takes_the_client_way_over(cluster, index_name, deployed, capsys):
    weighted = SearchSettings(dense_weight=0.25)
    deploy(cluster, index_name, CLIENT, weighted)
    alias = f"{index_name}-hybridr"
    before = ask(cluster, alias)
    done = reindex(cluster, index_name, HashingEncoder(), OTHER)
    assert done.destination != deployed
    assert (done.deployment.way, done.deployment.command) == ("client", None)
    after = ask(cluster, alias)
    assert {hit["_index"] for hit in after} == {done.destination}
    assert [hit["_score"] for hit in after] == pytest.approx([hit["_score"] for hit in before], abs=1e-5)
    assert not deploy(cluster, index_name, CLIENT, weighted).changed, "it is a deployment like any other"
    assert reindex(cluster, index_name, HashingEncoder(), OTHER).deployment is None
    assert line_of(cluster, deployed).ok is line_of(cluster, done.destination).ok is True
    undeploy(cluster, index_name)
    assert ask(cluster, deployed), "the old index keeps its own, for a rollback"
    undeploy(cluster, deployed)


def test_a_deployment_that_cannot_be_taken_over_is_told(cluster, index_name, deployed):
    cluster.request("DELETE", path_of("_search", "pipeline", f"hybridr-{deployed}"))
    cluster.request("PUT", path_of(deployed, "_settings"), {DEFAULT: None})
    done = reindex(cluster, index_name, HashingEncoder(), OTHER)
    assert done.deployment.command == f"hybridr deploy {index_name} --way client"
    assert done.switched
    assert not resolve(cluster, index_name).record.deployment


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(create_app(HashingEncoder()))
    yield running
    running.stop()


@pytest.fixture
def crate(ml_cluster: Cluster) -> Iterator[str]:
    reindexed(ml_cluster, "barrow", 20)
    yield "barrow"
    for info in ml_cluster.indices("barrow*"):
        if info.record.deployment:
            undeploy(ml_cluster, info.name)
        ml_cluster.request("DELETE", path_of(info.name))


def test_a_model_and_its_server_are_looked_at(ml_cluster, crate, server, cli):
    address = server.url
    neural = DeploySettings(way="neural", server=address, set_cluster_settings=True)
    done = deploy(ml_cluster, crate, neural, DEFAULTS)
    model = resolve(ml_cluster, crate).record.deployment.model_id
    found = line_of(ml_cluster, done.index)
    assert found.ok is True
    assert f"model {model} is deployed, the server at {address} answers" in found.found

    ml_cluster.request("POST", f"/_plugins/_ml/models/{model}/_undeploy")
    found = line_of(ml_cluster, done.index)
    assert (found.ok, found.found) == (False, f"neural: the model {model} is UNDEPLOYED")
    assert found.fix == f"hybridr deploy {crate} --way neural --server {address}"
    assert status(ml_cluster, crate).holdings[0].deployment.missing == [f"the model {model} is UNDEPLOYED"]
    assert deploy(ml_cluster, crate, neural, DEFAULTS).changed

    moved = reindex(ml_cluster, crate, HashingEncoder(), OTHER)
    assert moved.deployment.command == f"hybridr deploy {crate} --way neural --server {address}"
    assert deploy(ml_cluster, crate, neural, DEFAULTS).index == moved.destination

    server.stop()
    body = {"query": {"neural": {"hybridr_vector": {"query_text": "x", "k": 3}}}}
    found = line_of(ml_cluster, moved.destination)
    assert found.ok is False
    assert f"no embedding server answers at {address}" in found.found
    assert "`neural` queries fail" in found.found
    assert found.fix == f"hybridr serve --index {crate}"
    with pytest.raises(ClusterError):
        ml_cluster.request("POST", path_of(moved.destination, "_search"), body)
    checks = cli(ml_cluster, "doctor --json", code=1).json["checks"]
    assert f"deployment {moved.destination}" in [check["name"] for check in checks if check["ok"] is False]


def test_another_encoder_at_the_address_is_told(ml_cluster, crate, server):
    neural = DeploySettings(way="neural", server=server.url, set_cluster_settings=True)
    deploy(ml_cluster, crate, neural, DEFAULTS)
    moved = reindex(ml_cluster, crate, HashingEncoder(salt="other"))
    assert moved.deployment.command
    known = ml_cluster.index_info(f"{crate}-hybridr-1").record.deployment
    ml_cluster.request("PUT", path_of(moved.destination, "_settings"), {DEFAULT: known.pipeline})
    write_record(ml_cluster, moved.destination, deployment=known)
    found = line_of(ml_cluster, moved.destination)
    assert found.ok is False
    assert "has encoder" in found.found
    write_record(ml_cluster, moved.destination, deployment=None)


@pytest.mark.parametrize(("own", "in_place"), [(None, False), ("false", True), ("true", False)])
def test_the_owners_setting_of_the_request_cache_outlives_a_deployment(cluster, index_name, own, in_place):
    fill_index(cluster, index_name, 20, settings={"index.knn": in_place} | ({CACHE: own} if own else {}))
    index = reindex(cluster, index_name, HashingEncoder(), ReindexSettings(in_place=in_place)).destination
    for again in range(2):
        deploy(cluster, index_name, CLIENT, SearchSettings(dense_weight=0.3 + again / 10))
        assert cluster.index_info(index).settings[CACHE] == "false"
    undeploy(cluster, index_name)
    assert cluster.index_info(index).settings.get(CACHE) == own
    deploy(cluster, index_name, CLIENT, DEFAULTS)
    remove(cluster, index_name)
    assert cluster.index_info(index_name).settings.get(CACHE) == own
