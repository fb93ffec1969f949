"""Attacks on the proxy over a real connection; the numbers are those of docs/measured/attacks.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.serving import openings
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from serving.test_searching import KnowingSearch
from support.deployed import Server
from support.hashing import HashingEncoder
from support.raw_http import exchange, status_of
from support.recorder import Recorder, recording

SEARCH = b'{"query":{"match":{"text":"two words"}}}'
LINES = ("content-type: application/x-ndjson",)
WRITES = b'{"index":{"_index":"pwn","_id":"1"}}\n{"a":1}\n'


@pytest.fixture(scope="module")
def cluster() -> Iterator[Recorder]:
    with recording() as running:
        yield running


@pytest.fixture(scope="module")
def server(cluster: Recorder) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openings, "Search", KnowingSearch)
        yield from running(cluster)


def running(cluster: Recorder, **settings: Any) -> Iterator[Server]:
    given = ServeSettings(index="docs", proxy="lexical", rank_timeout_s=30, **settings)
    server = Server(create_app(HashingEncoder(), given, cluster=Cluster(None, cluster.url)))
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def nothing_heard(cluster: Recorder) -> None:
    cluster.heard.clear()


@pytest.mark.attack(106)
@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize(
    "target",
    [
        *(
            "/_bulk#/_search",
            "/_aliases#/_search",
            "/_nodes#/_search",
            "/_reindex#/_msearch",
            "/pwn#/_search",
        ),
        *("/_bulk%23/_search", "/_bulk?/_search", "/_bulk?x#/_search", "/_bulk;/_search", "/_bulk\\/_search"),
        *(
            "/../_bulk/_search",
            "/docs/../_bulk#/_search",
            "/%2e%2e/_search",
            "/_scripts/_search",
            "//_search",
        ),
        *("http://localhost/_bulk#/_search", "http://cluster/docs/_search", "/docs/_doc/_search", "*"),
        *(
            "/docs/_search#/../_bulk",
            "/docs/_search?q=a#b",
            "/docs/_search?index=secret",
            "/_search?index=docs",
        ),
    ],
)
def test_106_what_is_no_search_is_never_passed_on(
    server: Server, cluster: Recorder, target: str, method: str
) -> None:
    answer = exchange(server.port, target, WRITES, LINES, method)
    assert status_of(answer) in (400, 404, 405)
    assert cluster.heard == []


@pytest.mark.attack(106)
@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("/%64ocs/_search", "POST /docs/_search"),
        ("/docs/_search?preference=%2F..%2F_bulk%23", "POST /docs/_search?preference=/../_bulk%23"),
        ("/_search?q=%23/../_bulk", "POST /_search?q=%23/../_bulk"),
        ("/other/_msearch?filter_path=a;x=b", "POST /other/_msearch?filter_path=a&x=b"),
    ],
)
def test_106_what_is_judged_is_what_is_sent(
    server: Server, cluster: Recorder, target: str, line: str
) -> None:
    assert status_of(exchange(server.port, target, SEARCH)) == 200
    assert [heard.line for heard in cluster.heard] == [line]
