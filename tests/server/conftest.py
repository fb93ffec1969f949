"""Indices for several wings: one of books, and one that is deployed in each way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr import load_encoder, reindex
from hybridr.cluster.connection import Cluster, path_of
from hybridr.deploying.deploying import deploy, undeploy
from hybridr.deploying.settings import DeploySettings
from hybridr.search.settings import SearchSettings
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.books import PROPERTIES, document, make
from support.deployed import Server, fill_library


@pytest.fixture
def books(cluster: Cluster, index_name: str) -> str:
    documents = [document(number) for number in range(1, 301)]
    documents[10]["book"]["body"] = None
    documents[10]["headline"] = documents[10]["comments"] = ""
    documents[10].pop("comments")
    documents[20] = {**documents[21]}
    return make(cluster, index_name, documents, properties=PROPERTIES)


DOCS, DOCUMENTS = "docs", 150


@pytest.fixture(scope="session")
def docs(ml_cluster: Cluster, minilm_encoder_folder: Path) -> Iterator[Cluster]:
    """A cluster whose index `docs`, text in `contents`, has vectors."""
    fill_library(ml_cluster, DOCS, "contents", DOCUMENTS)
    reindex(ml_cluster, DOCS, minilm_encoder_folder)
    yield ml_cluster
    for info in ml_cluster.indices(f"{DOCS}*"):
        ml_cluster.request("DELETE", path_of(info.name))


@pytest.fixture(scope="session")
def docs_server(docs: Cluster, minilm_encoder_folder: Path) -> Iterator[Server]:
    """`hybridr serve --index docs`."""
    settings = ServeSettings(index=DOCS, rank_timeout_s=5)  # a busy machine encodes slowly
    running = Server(create_app(load_encoder(minilm_encoder_folder), settings, cluster=docs))
    yield running
    running.stop()


@pytest.fixture(scope="module", params=["client", "neural", "transparent"])
def way(docs: Cluster, docs_server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """Deploy `docs` in one way after the other."""
    settings = DeploySettings(way=request.param, server=docs_server.url, set_cluster_settings=True)
    deploy(docs, DOCS, settings, SearchSettings())
    yield request.param
    undeploy(docs, DOCS)
