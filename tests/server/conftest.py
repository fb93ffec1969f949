"""Indices for several wings: one of books, and one that is deployed in each way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr import load_encoder, reindex
from hybridr.cluster.connection import Cluster, path_of
from hybridr.deploying.deploying import deploy, undeploy
from hybridr.deploying.settings import DeploySettings
from hybridr.encoding.contract import checked_texts
from hybridr.encoding.folder import OnnxEncoder
from hybridr.search.settings import SearchSettings
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.books import PROPERTIES, document, make
from support.deployed import Server, fill_library

MOST_REMEMBERED = 50_000  # vectors, of 1.5 kB


@pytest.fixture(scope="session", autouse=True)
def remembered_vectors() -> Iterator[Callable[..., Any]]:
    """Encode a text once: hundreds of tests fill their indices with the same few. Encoders have own tests.

    It gives what encodes afresh: the last bits of a vector depend on the texts beside its own.
    """
    known: dict[tuple[Any, ...], Any] = {}
    encode = OnnxEncoder._encode

    def remember(self: OnnxEncoder, engine: Any, texts: Any, prefix: str, max_tokens: int | None) -> Any:
        made_by = (
            self.fingerprint,
            self.precision,
            self.backend,
            engine is self._documents,
            prefix,
            max_tokens,
        )
        checked_texts(texts)
        missing = [text for text in dict.fromkeys(texts) if (*made_by, text) not in known]
        if len(known) + len(missing) > MOST_REMEMBERED:
            known.clear()
            missing = list(dict.fromkeys(texts))
        made = encode(self, engine, missing, prefix, max_tokens) if missing else ()
        known.update(zip([(*made_by, text) for text in missing], made, strict=True))
        return np.array([known[(*made_by, text)] for text in texts]).reshape(len(texts), self.dim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnnxEncoder, "_encode", remember)
        yield encode


@pytest.fixture
def fresh_vectors(remembered_vectors: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode each text anew, to compare bits."""
    monkeypatch.setattr(OnnxEncoder, "_encode", remembered_vectors)


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
