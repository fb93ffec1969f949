"""What of a deployment is ours to delete, what a killed one leaves, and what a new token changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from hybridr.cluster import remote_models
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.default_pipeline import stored_pipeline
from hybridr.cluster.destinations import resolve, write_record
from hybridr.cluster.record_parts import Deployment
from hybridr.doctor.diagnosis import check_deployments
from hybridr.errors import ClusterError, DataError, SettingsError
from hybridr.indexing.reindexing import reindex
from hybridr.search.settings import SearchSettings
from hybridr.serving.application import create_app
from hybridr.serving.deploy import deploying
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings, ServeSettings
from hybridr.status.standing import remove, status
from support.commands import Killed
from support.corpus import drop_indices, reindexed
from support.deployed import Server, serving_index, taken_for
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX, DEFAULTS = "cupboard", SearchSettings()
ML = "/_plugins/_ml"


@pytest.fixture(scope="module")
def cupboard(ml_cluster: Cluster) -> Iterator[Cluster]:
    reindexed(ml_cluster, INDEX, 20)
    yield ml_cluster
    drop_indices(ml_cluster, f"{INDEX}*")


def guarded(cluster: Cluster, token: str) -> Any:
    return create_app(HashingEncoder(), ServeSettings(index=INDEX, token=token), cluster=cluster)


@pytest.fixture(scope="module")
def server(cupboard: Cluster) -> Iterator[Server]:
    with serving_index(cupboard, INDEX, token="first-token") as running:
        yield running


def settings_of(server: Server, token: str = "first-token") -> DeploySettings:
    return DeploySettings(way="transparent", server=server.url, token=token, set_cluster_settings=True)


def made(cluster: Cluster) -> dict[str, set[str]]:
    """Give the ids of all models, connectors and groups."""
    body, found = {"query": {"match_all": {}}, "size": 100}, {}
    for kind in ("models", "connectors", "model_groups"):
        hits = cluster.request("POST", f"{ML}/{kind}/_search", body)["hits"]["hits"]
        found[kind] = {hit["_id"] for hit in hits}
    return found


@pytest.mark.attack(22)
def test_a_new_token_is_a_change_and_the_old_one_is_seen(cupboard, server):
    before = made(cupboard)
    settings = settings_of(server)
    name = deploy(cupboard, INDEX, settings, DEFAULTS).index
    assert not deploy(cupboard, INDEX, settings, DEFAULTS).changed
    server.app = guarded(cupboard, "second-token")
    try:
        refused = f"the server at {server.url} does not accept the cluster's token"
        assert status(cupboard, INDEX).holdings[0].deployment.missing == [refused]
        (found,) = [one for one in check_deployments(cupboard) if one.name == f"deployment {name}"]
        assert (found.ok, found.found) == (False, f"transparent: {refused}")
        assert found.fix == f"hybridr deploy {INDEX} --way transparent --server {server.url}"
        with pytest.raises(SettingsError, match="asks for another token") as caught:
            deploy(cupboard, INDEX, settings, DEFAULTS)
        assert "HYBRIDR_DEPLOY_TOKEN" in (caught.value.hint or "")
        again = settings_of(server, "second-token")
        assert deploy(cupboard, INDEX, again, DEFAULTS).changed
        assert not deploy(cupboard, INDEX, again, DEFAULTS).changed
        assert status(cupboard, INDEX).holdings[0].deployment.missing == []
        assert "-token" not in json.dumps(cupboard.index_info(name).mappings)
    finally:
        server.app = guarded(cupboard, "first-token")
        undeploy(cupboard, INDEX)
    assert made(cupboard) == before


@pytest.mark.attack(23)
@pytest.mark.parametrize("ending", ["deploy", "undeploy", "remove"])
def test_23_what_killed_runs_left_is_found_and_deleted(cupboard, server, monkeypatch, ending):
    before = made(cupboard)
    for module, name in [
        (remote_models, "await_task"),
        (deploying, "write_record"),
        (deploying, "write_record"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, Mock(side_effect=Killed))
            with pytest.raises(Killed):
                deploy(cupboard, INDEX, settings_of(server), DEFAULTS)
    left = made(cupboard)
    assert [len(left[kind] - before[kind]) for kind in ("models", "connectors")] == [3, 3]
    if ending == "deploy":
        deploy(cupboard, INDEX, settings_of(server), DEFAULTS)
        one = made(cupboard)
        [model] = one["models"] - before["models"]
        kept = cupboard.request("GET", remote_models.ml_path("models", model))["connector_id"]
        found = one["connectors"] - before["connectors"]
        assert kept in found
        assert all(taken_for(kept, other) for other in found)
        assert not (one["models"] & left["models"]) - before["models"]
        undeploy(cupboard, INDEX)
    elif ending == "undeploy":
        undeploy(cupboard, INDEX)
        with pytest.raises(DataError, match="nothing is deployed"):
            undeploy(cupboard, INDEX)
    else:
        assert remove(cupboard, INDEX)["requests"]
        reindex(cupboard, INDEX, HashingEncoder())
    assert made(cupboard) == before
    assert "index.search.default_pipeline" not in resolve(cupboard, INDEX).settings


def test_what_is_called_like_ours_and_is_not_stays(cupboard, server):
    name = f"hybridr-{resolve(cupboard, INDEX).name}"
    theirs = remote_models.embedding_connector(name, server.url, "query", token="x")
    theirs["description"] = "somebody else's"
    connector = cupboard.request("POST", remote_models.CONNECTORS, theirs)["connector_id"]
    try:
        deploy(cupboard, INDEX, settings_of(server), DEFAULTS)
        undeploy(cupboard, INDEX)
        assert cupboard.request("GET", f"{ML}/connectors/{connector}")["name"] == name
    finally:
        cupboard.request("DELETE", f"{ML}/connectors/{connector}")


@pytest.fixture
def poisoned(cupboard: Cluster) -> Iterator[str]:
    """Give an index whose record may be written by anybody who may write the index."""
    yield (info := resolve(cupboard, INDEX)).name
    write_record(cupboard, info.name, deployment=None)


@pytest.mark.attack(9)
def test_9_a_pipeline_of_somebody_else_is_not_deleted(cupboard, poisoned):
    path = path_of("_search", "pipeline", "somebody-elses")
    cupboard.request("PUT", path, {"description": "theirs", "phase_results_processors": []})
    try:
        write_record(cupboard, poisoned, deployment=Deployment(way="client", pipeline="somebody-elses"))
        for dry_run in (True, False):
            with pytest.raises(ClusterError, match="names the pipeline somebody-elses") as caught:
                undeploy(cupboard, INDEX, dry_run=dry_run)
        assert caught.value.hint == f"hybridr deploy {poisoned} --way client   writes the record anew"
        deploy(cupboard, INDEX, DeploySettings(), DEFAULTS)
        undeploy(cupboard, INDEX)
        assert stored_pipeline(cupboard, "somebody-elses")
    finally:
        cupboard.request("DELETE", path)


@pytest.mark.attack(10)
@pytest.mark.parametrize("way", ["neural", "client"])
@pytest.mark.parametrize("odd", ["x/../../../victim", "x?a=b", "../..", "x y", "a" * 65])
def test_10_ids_of_a_record_lead_nowhere_else(cupboard, poisoned, way, odd):
    record = Deployment(way=way, pipeline=f"hybridr-{poisoned}", model_id=odd, connector_id=odd)
    write_record(cupboard, poisoned, deployment=record)
    shown = json.dumps(undeploy(cupboard, INDEX, dry_run=True))
    assert odd not in shown
    assert "_plugins" not in shown


@pytest.mark.attack(10)
@pytest.mark.parametrize("way", ["neural", "client"])
def test_10_a_model_of_somebody_else_is_not_deleted(cupboard, server, poisoned, way):
    theirs = remote_models.create_model(
        cupboard, remote_models.embedding_connector("theirs", server.url, "query")
    )
    record = Deployment(
        way=way, pipeline=f"hybridr-{poisoned}", model_id=theirs.model_id, connector_id=theirs.connector_id
    )
    write_record(cupboard, poisoned, deployment=record)
    try:
        undeploy(cupboard, INDEX)
        assert remote_models.model_state(cupboard, theirs.model_id) == "DEPLOYED"
    finally:
        remote_models.delete_model(cupboard, theirs)
