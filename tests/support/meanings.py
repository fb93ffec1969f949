"""Semantic fields of a cluster: the models that they ask, the server behind these, documents as stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hybridr.cluster import remote_models
from hybridr.cluster.connection import Cluster, path_of
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.deployed import Server
from support.hashing import HashingEncoder

LUCENE = {"method": {"name": "hnsw", "engine": "lucene"}}


class Meanings(NamedTuple):
    """A cluster, a model that semantic fields ask, and the server behind that."""

    cluster: Cluster
    model_id: str
    server: Server


def stored(cluster: Cluster, index: str) -> dict[str, dict[str, Any]]:
    """Every document of an index by id, as the cluster keeps it."""
    answer = cluster.request("POST", path_of(index, "_search"), {"size": 100})
    hits = {hit["_id"]: hit["_source"] for hit in answer["hits"]["hits"]}
    return {
        doc_id: {name: value for name, value in source.items() if not name.startswith("hybridr_")}
        for doc_id, source in hits.items()
    }


@contextmanager
def another_model(meanings: Meanings, space: str = "l2") -> Iterator[str]:
    """Deploy a model of text embeddings; give its id."""
    config = {
        "model_type": "text_embedding",
        "embedding_dimension": 16,
        "framework_type": "sentence_transformers",
        "additional_config": {"space_type": space},
    }
    connector = remote_models.embedding_connector("meaning", meanings.server.url, "passage")
    model = remote_models.create_model(meanings.cluster, connector, config)
    try:
        yield model.model_id
    finally:
        remote_models.delete_model(meanings.cluster, model)


@contextmanager
def serving(cluster: Cluster, encoder: HashingEncoder, **settings: Any) -> Iterator[Server]:
    """Run `hybridr serve`, which the cluster may ask."""
    server = Server(create_app(encoder, ServeSettings(**settings)))
    missing = remote_models.missing_settings(cluster, server.url)
    cluster.request("PUT", "/_cluster/settings", {"persistent": missing})
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def with_model(cluster: Cluster) -> Iterator[Meanings]:
    """Run a server that the cluster may ask, and deploy a model that asks it."""
    with serving(cluster, HashingEncoder()) as server:
        meanings = Meanings(cluster, "", server)
        with another_model(meanings) as model_id:
            yield meanings._replace(model_id=model_id)
