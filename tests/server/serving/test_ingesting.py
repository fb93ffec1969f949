"""`hybridr deploy --ingest` on a real node: vectors at write time, and `sync` fills what failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.field_values import text_of
from hybridr.cluster.remote_models import create_model, delete_model, embedding_connector, search_ids
from hybridr.errors import ClusterError
from hybridr.indexing.reindexing import sync
from hybridr.serving.application import create_app
from hybridr.serving.deploy.ingesting import DEFAULT_INGEST, deploy_ingest, plan_ingest, undeploy_ingest
from hybridr.serving.settings import DeploySettings
from support.commands import Killed, kill, with_interruption
from support.corpus import bulk, drop_indices, put, reindexed, text_number
from support.deployed import Server
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX, ENCODER = "t-ingest", HashingEncoder()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server(create_app(ENCODER))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def alias(ml_cluster: Cluster) -> Iterator[str]:
    reindexed(ml_cluster, INDEX, 20, ENCODER)
    yield f"{INDEX}-hybridr"
    drop_indices(ml_cluster, f"{INDEX}*")


def stored(cluster: Cluster, alias: str, doc_id: str) -> dict[str, Any]:
    """Read a document with its vector, which `_source` of 3.x does not show unless it is asked for."""
    cluster.refresh(alias)
    body = {"query": {"ids": {"values": [doc_id]}}, "_source": ["*"]}
    [hit] = cluster.request("POST", path_of(alias, "_search"), body)["hits"]["hits"]
    found: dict[str, Any] = hit["_source"]
    return found


def test_a_write_is_found_by_its_vector_at_once_and_sync_takes_it_over(ml_cluster, alias, server):
    settings = DeploySettings(server=server.url, set_cluster_settings=True)
    done = deploy_ingest(ml_cluster, INDEX, settings)
    new = {"text": ["a whale", " ", "in the sea"], "price": 1.0}
    put(ml_cluster, alias, {"new": new, "none": {"price": 2.0}})
    wanted = ENCODER.encode_documents([text_of(new, ["text"])])[0]
    found = stored(ml_cluster, alias, "new")
    np.testing.assert_allclose(found["hybridr_vector"], wanted, atol=1e-6)
    assert found.keys() == {"text", "price", "hybridr_vector"}
    assert "hybridr_vector" not in stored(ml_cluster, alias, "none")
    assert Search(ml_cluster, INDEX, ENCODER, "dense")("whale sea in the a", 1)[0].doc_id == "new"

    server.stop()
    bulk(ml_cluster, alias, [{"index": {"_id": "failed"}}, {"text": text_number(99)}])
    assert stored(ml_cluster, alias, "failed") == {"text": text_number(99)}
    server.start()
    assert sync(ml_cluster, INDEX, ENCODER).renewed == 3
    found = stored(ml_cluster, alias, "failed")
    wanted = ENCODER.encode_documents([text_number(99)])[0]
    np.testing.assert_allclose(found["hybridr_vector"], wanted, atol=1e-6)
    assert sync(ml_cluster, INDEX, ENCODER).renewed == 0

    stale = {**found, "text": "quite another text"}
    bulk(ml_cluster, alias, [{"index": {"_id": "failed"}}, stale])
    found = stored(ml_cluster, alias, "failed")
    expected = ENCODER.encode_documents(["quite another text"])[0]
    np.testing.assert_allclose(found["hybridr_vector"], expected, atol=1e-6)
    assert "hybridr_encoder" not in found

    again = deploy_ingest(ml_cluster, INDEX, settings)
    assert again.model_id != done.model_id
    assert search_ids(ml_cluster, "models", again.pipeline) == [again.model_id]
    requests = undeploy_ingest(ml_cluster, resolve(ml_cluster, INDEX))
    deleted = [request["path"] for request in requests if request["method"] == "DELETE"]
    assert path_of("_ingest", "pipeline", again.pipeline) in deleted
    assert any(path.endswith(f"models/{again.model_id}") for path in deleted)
    for kind in ("models", "connectors"):
        assert search_ids(ml_cluster, kind, again.pipeline) == []
    info = resolve(ml_cluster, INDEX)
    assert DEFAULT_INGEST not in info.settings
    assert undeploy_ingest(ml_cluster, info) == []


@pytest.mark.parametrize("verb", ["deploy", "undeploy"])
@pytest.mark.parametrize("number", range(5))
def test_what_a_killed_run_left_is_taken_away_by_undeploy(ml_cluster, alias, server, number, verb):
    settings = DeploySettings(server=server.url, set_cluster_settings=True)

    def changes(method: str, path: str) -> bool:
        return method in ("PUT", "DELETE") or path.endswith(("_create", "_register", "_deploy", "_undeploy"))

    killed = with_interruption(ml_cluster, changes, kill, number=number, after=True)
    info = resolve(ml_cluster, INDEX)
    if verb == "undeploy":
        deploy_ingest(ml_cluster, INDEX, settings)
    run = partial(deploy_ingest, killed, INDEX, settings)
    with pytest.raises(Killed):
        run() if verb == "deploy" else undeploy_ingest(killed, resolve(ml_cluster, INDEX))
    bulk(ml_cluster, alias, [{"index": {"_id": "meanwhile"}}, {"text": text_number(5)}])
    undeploy_ingest(ml_cluster, resolve(ml_cluster, INDEX))
    for kind in ("models", "connectors"):
        assert search_ids(ml_cluster, kind, f"hybridr-{info.name}-ingest") == []
    assert DEFAULT_INGEST not in resolve(ml_cluster, INDEX).settings


@pytest.mark.parametrize("rival", [deploy_ingest, undeploy_ingest])
@pytest.mark.parametrize("place", ["-ingest", "_settings"])
def test_of_two_runs_at_once_the_later_one_works(ml_cluster, alias, server, rival, place):
    settings = DeploySettings(server=server.url, set_cluster_settings=True)
    deploy_ingest(ml_cluster, INDEX, settings)

    def overtake(_: object) -> None:
        if rival is deploy_ingest:
            deploy_ingest(ml_cluster, INDEX, settings)
        else:
            undeploy_ingest(ml_cluster, resolve(ml_cluster, INDEX))

    overtaken = with_interruption(
        ml_cluster, lambda method, path: method == "PUT" and path.endswith(place), overtake
    )
    if (rival, place) == (deploy_ingest, "_settings"):
        with pytest.raises(ClusterError, match="ran at the same time"):
            deploy_ingest(overtaken, INDEX, settings)
    else:
        deploy_ingest(overtaken, INDEX, settings)
    bulk(ml_cluster, alias, [{"index": {"_id": "both"}}, {"text": text_number(5)}])
    assert "hybridr_vector" in stored(ml_cluster, alias, "both")
    undeploy_ingest(ml_cluster, resolve(ml_cluster, INDEX))


@pytest.mark.attack(9)
def test_a_pipeline_of_our_name_that_asks_a_model_of_somebody_else_deletes_nothing_of_his(
    ml_cluster, alias, server
):
    settings = DeploySettings(server=server.url, set_cluster_settings=True)
    done = deploy_ingest(ml_cluster, INDEX, settings)
    theirs = create_model(ml_cluster, embedding_connector("somebody-elses", server.url, "passage"))
    assert done.model_id is not None
    path = path_of("_ingest", "pipeline", done.pipeline)
    body = json.dumps(ml_cluster.request("GET", path)[done.pipeline])
    ml_cluster.request("PUT", path, body.replace(done.model_id, theirs.model_id))
    deploy_ingest(ml_cluster, INDEX, settings)
    ml_cluster.request("PUT", path, body.replace(done.model_id, theirs.model_id))
    undeploy_ingest(ml_cluster, resolve(ml_cluster, INDEX))
    assert search_ids(ml_cluster, "models", "somebody-elses") == [theirs.model_id]
    assert search_ids(ml_cluster, "connectors", "somebody-elses") == [theirs.connector_id]
    assert search_ids(ml_cluster, "models", done.pipeline) == []
    delete_model(ml_cluster, theirs)


def test_a_pipeline_of_somebody_else_stays(ml_cluster, alias, server):
    info = resolve(ml_cluster, INDEX)
    path = path_of(info.name, "_settings")
    ml_cluster.request("PUT", path_of("_ingest", "pipeline", "mine"), {"processors": []})
    ml_cluster.request("PUT", path, {DEFAULT_INGEST: "mine"})
    with pytest.raises(ClusterError, match="an ingest pipeline of its own: mine"):
        plan_ingest(ml_cluster, INDEX, DeploySettings(server=server.url))
    ml_cluster.request("PUT", path, {DEFAULT_INGEST: None})
    ml_cluster.request("DELETE", path_of("_ingest", "pipeline", "mine"))
