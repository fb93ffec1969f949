"""Attacks on the proxy over a real connection; the numbers are those of docs/measured/attacks.md."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

import pytest
from pydantic import SecretStr

from hybridr.cluster.connection import Cluster
from hybridr.cluster.settings import ClusterSettings
from hybridr.serving import snapshots
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from serving.test_searching import KnowingSearch
from support.deployed import Server
from support.hashing import HashingEncoder
from support.raw_http import JSON, exchange, status_of
from support.recorder import Recorder, recording
from support.waiting import within

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
        patch.setattr(snapshots, "Search", KnowingSearch)
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
@pytest.mark.parametrize(
    "target",
    [
        *"/_bulk#/_search /_aliases#/_search /_nodes#/_search /_reindex#/_msearch /pwn#/_search".split(),
        *r"/_bulk%23/_search /_bulk?/_search /_bulk?x#/_search /_bulk;/_search /_bulk\/_search".split(),
        *"/../_bulk/_search /docs/../_bulk#/_search /%2e%2e/_search /_scripts/_search //_search".split(),
        *"http://localhost/_bulk#/_search http://cluster/docs/_search /docs/_doc/_search *".split(),
        *"/docs/_search#/../_bulk /docs/_search?q=a#b /docs/_search?index=secret /_search?index=docs".split(),
    ],
)
def test_106_what_is_no_search_is_never_passed_on(server, cluster, target):
    for method in ("POST", "GET"):
        assert status_of(exchange(server.port, target, WRITES, LINES, method)) in (400, 404, 405)
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
def test_106_what_is_judged_is_what_is_sent(server, cluster, target, line):
    assert status_of(exchange(server.port, target, SEARCH)) == 200
    assert [heard.line for heard in cluster.heard] == [line]


def left_alone(server: Server) -> list[str]:
    lines = server.app.state.embedder.metrics.text().decode().splitlines()
    return [line for line in lines if line.startswith("hybridr_left_alone_total")]


def looking_for(text: str) -> bytes:
    return json.dumps({"query": {"match": {"text": text}}}).encode()


@pytest.mark.attack(109)
@pytest.mark.parametrize("status", [200, 401, 403])
@pytest.mark.parametrize("api", ["_search", "_msearch"])
def test_109_the_metrics_do_not_tell_which_words_documents_have(server, cluster, monkeypatch, status, api):
    """`KnowingSearch` knows every text but `unheard`."""
    monkeypatch.setattr(cluster, "answers", [(status, b'{"hits":{"hits":[]}}')])
    before = left_alone(server)
    for text in ("two words", "unheard", "unheard"):
        body = looking_for(text) if api == "_search" else b"{}\n" + looking_for(text) + b"\n"
        headers = ("content-type: application/json", "authorization: Basic dTpw")
        assert status_of(exchange(server.port, f"/docs/{api}", body, headers)) == status
    assert left_alone(server) == before
    assert not any("unknown_words" in line for line in before)


@pytest.mark.attack(109)
@pytest.mark.parametrize("status", [401, 403, 404, 429])
def test_109_no_refused_search_is_counted(server, cluster, monkeypatch, status):
    monkeypatch.setattr(cluster, "answers", [(status, b"{}")])
    before = left_alone(server)
    for body in (b'{"query":{"match_all":{}}}', looking_for("unheard"), b"["):
        for target in ("/docs/_search", "/other/_search", "/docs/_search?scroll=1m", "/docs/_msearch"):
            assert status_of(exchange(server.port, target, body)) == status
    assert left_alone(server) == before


@pytest.mark.attack(109)
def test_109_for_nobody_nothing_is_worked_out_where_the_cluster_knows_its_users(cluster, monkeypatch):
    monkeypatch.setattr(snapshots, "Search", KnowingSearch)
    password = ClusterSettings(url=cluster.url, user="ours", password=SecretStr("secret"))
    key = ClusterSettings(url=cluster.url, api_key=SecretStr("aTpr"))
    for rights in (password, key):
        settings = ServeSettings(index="docs", proxy="lexical", rank_timeout_s=30)
        asked = Cluster(None, cluster.url)
        asked.settings = rights
        server = Server(create_app(HashingEncoder(), settings, cluster=asked))
        cluster.heard.clear()
        for api, body in (("_search", SEARCH), ("_msearch", b"{}\n" + SEARCH + b"\n")):
            exchange(server.port, f"/docs/{api}", body)
            assert [heard.body for heard in cluster.heard] == [body]
            assert "authorization" not in cluster.heard.pop().headers
        exchange(server.port, "/docs/_search", SEARCH, (*JSON, "authorization: Basic dTpw"))
        assert b"rescore" in cluster.heard[0].body
        server.stop()


@pytest.mark.attack(112)
@pytest.mark.parametrize(
    "sent",
    [
        ("connection: x-secret, keep-alive", "x-secret: 1"),
        ("connection: close", "connection: X-Secret", "x-secret: 1"),
        ("connection:x-secret,,authorization", "x-secret: 1", "authorization: Basic dTpw"),
        ("x-proxy-user: admin", "X-Proxy-Roles: admin", "x-proxy-ext-a: 1"),
        ("x-forwarded-for: 10.0.0.1", "X-Forwarded-User: admin", "x-forwarded-host: y"),
        ("forwarded: for=10.0.0.1", "x-real-ip: 10.0.0.1"),
        ("_opendistro_security_user: admin", "_opendistro_security_remotecn: y"),
        ("_opensearch_security_injected_user: admin",),
    ],
)
def test_112_nothing_goes_on_that_is_of_one_connection_or_by_which_a_proxy_is_believed(server, cluster, sent):
    assert status_of(exchange(server.port, "/docs/_search", SEARCH, (*JSON, *sent, "x-kept: 1"))) == 200
    [heard] = cluster.heard
    assert set(heard.headers) == {"host", "content-type", "content-length", "x-kept"}


@pytest.mark.attack(113)
@pytest.mark.parametrize(
    "twice",
    [
        ("content-type: application/json", "content-type: application/yaml"),
        ("content-type: application/json", "Content-Type: application/json"),
        ("authorization: Basic dTpw", "authorization: AWS4-HMAC-SHA256 x"),
        ("AUTHORIZATION: Basic dTpw", "authorization: "),
        ("content-encoding: gzip", "content-encoding: identity"),
        ("x-hybridr-token: a", "x-hybridr-token: b"),
        ("host: other",),
    ],
)
def test_113_a_header_of_which_one_reads_the_first_and_another_the_last_is_refused(server, cluster, twice):
    for target in ("/docs/_search", "/docs/_msearch", "/search", "/v1/rank"):
        assert status_of(exchange(server.port, target, SEARCH, twice)) == 400
    assert cluster.heard == []


OK = b"HTTP/1.1 200 OK\r\n"
ODD_HEADERS = [
    *(b"X-\xc3\xa9: 1", b"X\xe9: 1", b"X(y): 1", b"X: a\x00b", b"X: a\x0bb", b"X: a\x7fb", b"X: \x01"),
]


@pytest.mark.attack(115)
@pytest.mark.parametrize(
    ("answer", "statuses"),
    [
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", {502}),
        *((b"HTTP/1.1 %d Odd\r\nContent-Length: 2\r\n\r\n{}" % status, {502}) for status in (199, 600, 999)),
        *((b"HTTP/1.1 %b Odd\r\n\r\n" % status, {502, 503}) for status in (b"000", b"-20", b"9" * 20, b"x")),
        *((OK + header + b"\r\nContent-Length: 2\r\n\r\n{}", {502}) for header in ODD_HEADERS),
        (OK + b"Content-Length: 9\r\n\r\n{}", {503}),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}", {503}),
        (OK + b"X: 1\r\n" * 200 + b"Content-Length: 2\r\n\r\n{}", {503}),
        (OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n", {503}),
        (b"HTTP/9.9 200\r\n\r\n", {503}),
        (b"SSH-2.0-x\r\n", {503}),
        (b"", {503}),
    ],
)
def test_115_an_odd_answer_of_the_cluster_becomes_an_answer_at_once(monkeypatch, answer, statuses):
    monkeypatch.setattr(snapshots, "Search", KnowingSearch)
    with answering(answer) as url:
        settings = ServeSettings(index="docs", proxy="lexical", rank_timeout_s=30)
        server = Server(create_app(HashingEncoder(), settings, cluster=Cluster(None, url)))
        with within(10):
            received = {status_of(exchange(server.port, "/_search", SEARCH)) for _ in range(2)}
        server.stop()
    assert received <= statuses


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Run a cluster that answers everything with these bytes, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(5)
                        connection.recv(65536)
                        connection.sendall(answer)

        Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.attack(115)
@pytest.mark.parametrize(
    "beginning", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"]
)
def test_115_a_cluster_that_drips_is_left_in_time(monkeypatch: pytest.MonkeyPatch, beginning: bytes) -> None:
    """Each byte would begin the wait for the next one anew."""
    monkeypatch.setattr(snapshots, "Search", KnowingSearch)
    closed = Event()
    with dripping(beginning, closed) as url:
        cluster = Cluster(None, url)
        cluster.settings = ClusterSettings(url=url, timeout_s=0.4)
        settings = ServeSettings(index="docs", proxy="lexical", rank_timeout_s=30)
        server = Server(create_app(HashingEncoder(), settings, cluster=cluster))
        with within(10):
            assert status_of(exchange(server.port, "/_search", SEARCH)) in (502, 503)
        assert closed.wait(10)
        server.stop()


@contextmanager
def dripping(beginning: bytes, closed: Event) -> Iterator[str]:
    """Run a cluster that sends a letter every tenth of a second, without end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(beginning)
                    while True:
                        connection.sendall(b"a")
                        time.sleep(0.1)
            closed.set()

        Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
