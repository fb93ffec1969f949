"""Indices for several wings: one of books, and one that is deployed in each way."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.connection import Cluster
from hybridr.encoders.contract import checked_texts
from hybridr.encoders.opening import OnnxEncoder
from hybridr.indexing.terms import storage
from hybridr.relevance import answering
from hybridr.search import calibration, client_query
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings
from support.books import PROPERTIES, document, make
from support.commands import Cli
from support.corpus import drop_indices
from support.deployed import Server, fill_library, serving_index, with_vectors

REMEMBERED = {"_encode": (50_000, np.stack), "_read": (1_500, list)}
"""Texts at most, of which a vector has 1.5 kB and a reading 100 kB; and what becomes of those of a call."""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture(scope="session")
def minilm(minilm_encoder_folder: Path) -> Path:
    return minilm_encoder_folder


@pytest.fixture(params=["cluster", "elastic"])
def product(request: pytest.FixtureRequest) -> Cluster:
    """Give a node of each product."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def name(product: Cluster) -> Iterator[str]:
    """Give a name for an index of a product; it goes afterwards with all that was made of it."""
    fresh = f"t-{uuid.uuid4().hex[:8]}"
    yield fresh
    drop_indices(product, f"{fresh}*,.hybridr-*-{fresh}*")


@pytest.fixture(scope="session", autouse=True)
def remembered_texts() -> Iterator[dict[str, Callable[..., Any]]]:
    """Encode and read a text once: hundreds of tests fill their indices with the same few.

    It gives what does so afresh: the last bits of a vector depend on the texts beside its own. Encoders have
    tests of their own.
    """
    fresh = {name: getattr(OnnxEncoder, name) for name in REMEMBERED}
    with pytest.MonkeyPatch.context() as patch:
        for name, (most, joined) in REMEMBERED.items():
            patch.setattr(OnnxEncoder, name, remembering(fresh[name], most, joined))
        yield fresh


def remembering(encode: Callable[..., Any], most: int, joined: Callable[[list[Any]], Any]) -> Any:
    known: dict[tuple[Any, ...], Any] = {}

    def remember(self: OnnxEncoder, side: str, texts: Any, max_tokens: int | None) -> Any:
        if "tests/server" not in os.environ.get("PYTEST_CURRENT_TEST", ""):
            return encode(self, side, texts, max_tokens)
        made_by = (
            self.fingerprint,
            self.precision,
            self.backend,
            side,
            self.usage.prefixes[side],
            max_tokens,
        )
        missing = [text for text in dict.fromkeys(checked_texts(texts)) if (*made_by, text) not in known]
        if len(known) + len(missing) > most:
            known.clear()
            missing = list(dict.fromkeys(texts))
        if not texts:
            return encode(self, side, texts, max_tokens)
        made = encode(self, side, missing, max_tokens) if missing else ()
        known.update(zip([(*made_by, text) for text in missing], made, strict=True))
        return joined([known[(*made_by, text)] for text in texts])

    return remember


@pytest.fixture(scope="session", autouse=True)
def few_unanswerable_queries() -> Iterator[None]:
    """Calibrate with a quarter of the queries that users get: each reindex of the command line does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "SEARCHED_QUERIES", 100)
        yield


@pytest.fixture
def fresh_vectors(remembered_texts: dict[str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode each text anew, to compare bits."""
    for name, encode in remembered_texts.items():
        monkeypatch.setattr(OnnxEncoder, name, encode)


@pytest.fixture(scope="module")
def books(cluster: Cluster) -> Iterator[str]:
    documents = [document(number) for number in range(1, 301)]
    documents[10]["book"]["body"] = None
    documents[10]["headline"] = documents[10]["comments"] = ""
    documents[10].pop("comments")
    documents[20] = {**documents[21]}
    yield make(cluster, "t-books", documents, properties=PROPERTIES)
    drop_indices(cluster, "t-books*")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the cluster is asked: method and path."""
    asked: list[tuple[str, str]] = []
    request = Cluster.request

    def spied(self: Cluster, method: str, path: str, *rest: Any, **more: Any) -> Any:
        asked.append((method, path))
        return request(self, method, path, *rest, **more)

    monkeypatch.setattr(Cluster, "request", spied)
    return asked


@pytest.fixture
def few_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of terms of an index with a handful of words, which users do not get."""
    monkeypatch.setattr(storage, "MIN_TERMS", 1)


@pytest.fixture(scope="module")
def few_probes() -> Iterator[None]:
    """Measure the scale of a shape of queries with five texts, without a rest; users get 50, and these files
    ask in a hundred shapes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "PROBED", 5)
        patch.setattr(client_query, "PAUSE_FACTOR", 0.0)
        yield


DOCS, DOCUMENTS = "docs", 150


@pytest.fixture(scope="session")
def docs(ml_cluster: Cluster, minilm_encoder_folder: Path) -> Iterator[Cluster]:
    """A cluster whose index `docs`, text in `contents`, has vectors."""
    fill_library(ml_cluster, DOCS, "contents", DOCUMENTS)
    yield from with_vectors(ml_cluster, DOCS, minilm_encoder_folder)


@pytest.fixture(scope="session")
def docs_server(docs: Cluster, minilm_encoder_folder: Path) -> Iterator[Server]:
    """`hybridr serve --index docs`."""
    with serving_index(docs, DOCS, minilm_encoder_folder) as running:
        yield running


@pytest.fixture(scope="module", params=["client", "neural", "transparent"])
def way(docs: Cluster, docs_server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """Deploy `docs` in one way after the other."""
    settings = DeploySettings(
        way=request.param, server=docs_server.url, set_cluster_settings=True, recall="all"
    )
    deploy(docs, DOCS, settings, SearchSettings())
    yield request.param
    undeploy(docs, DOCS)
