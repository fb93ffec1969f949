"""Requests made to stop, read or fill the server; the numbers are those of the attacks that were tried."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import httpx
import pytest

from hybridr.cluster.connection import Cluster
from hybridr.encoders.tokens import CHARACTERS_A_TOKEN
from hybridr.records import Hits
from hybridr.search.client_query import is_unicode
from hybridr.serving import snapshots
from hybridr.serving.application import Server, create_app
from hybridr.serving.doorway import LARGE_AT_ONCE, LARGE_BYTES
from hybridr.serving.settings import ServeSettings
from support.asking import client_of, embed, is_closed, running
from support.hashing import HashingEncoder
from support.searches import StandInSearch
from support.waiting import wait_until

JSON = {"Content-Type": "application/json"}
READ_S = 0.5


class WatchedEncoder(HashingEncoder):
    """Notes what its tokenizer is given; counting takes 5 ms for 1,000 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[int] = []

    def counts(self, texts):
        self.counted += map(len, texts)
        time.sleep(sum(map(len, texts)) / 2e5)
        return [len(text) // 5 + 2 for text in texts]


@pytest.fixture(scope="module")
def encoder() -> WatchedEncoder:
    return WatchedEncoder()


@pytest.fixture(scope="module")
def server(encoder: WatchedEncoder) -> Server:
    return serving(encoder, read_timeout_s=READ_S, max_connections=40)


def serving(encoder: Any, **settings: Any) -> Server:
    given = ServeSettings(**settings)
    return running(create_app(encoder, given), given)


def raw(server: Server, request: bytes, wait_s: float = 5.0) -> bytes:
    """Send bytes; give all that comes until the server closes or `wait_s` have passed."""
    with socket.create_connection(("127.0.0.1", server.listener.getsockname()[1]), 5) as connection:
        connection.sendall(request)
        return drained(connection, wait_s)


def drained(connection: socket.socket, wait_s: float) -> bytes:
    connection.settimeout(wait_s)
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except (TimeoutError, ConnectionResetError):
        pass
    return found


@pytest.mark.attack(26)
def test_26_megabytes_of_words_are_refused_and_long_texts_cut_before_they_are_read():
    encoder = WatchedEncoder()
    client = client_of(encoder)
    assert embed(client, ["a " * 499_000] * 16).status_code == 413
    assert embed(client, ["a " * 499_000]).status_code == 200
    assert encoder.counted == [encoder.max_tokens * CHARACTERS_A_TOKEN]


@pytest.mark.attack(27)
def test_27_the_texts_of_a_client_that_left_are_not_read_any_further(encoder: WatchedEncoder, server: Server):
    del encoder.counted[:]
    body = json.dumps({"model": "x-passage", "input": ["a " * 500] * 1500}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    port = server.listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: encoder.counted)
    counted = -1
    while counted != (counted := sum(encoder.counted)):  # something was under way
        time.sleep(0.3)
    assert counted < 1_400_000, "all of them are 1,500,000 characters"


@pytest.mark.attack(28)
@pytest.mark.parametrize(
    "unfinished",
    [
        b"",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /v1",
    ],
)
def test_28_what_is_not_finished_in_time_is_closed(server: Server, unfinished: bytes):
    with socket.create_connection(("127.0.0.1", server.listener.getsockname()[1])) as connection:
        connection.sendall(unfinished)
        started = time.monotonic()
        assert (b" 200 " in drained(connection, 10.0)) == unfinished.startswith(b"GET")
        assert READ_S / 2 <= time.monotonic() - started < 9.0, "closed by the server, not by our patience"


@pytest.mark.attack(28)
def test_28_a_slow_sender_gets_no_more_time_for_each_byte(server: Server):
    with socket.create_connection(("127.0.0.1", server.listener.getsockname()[1])) as connection:
        for byte in b"POST /v1/embeddings HTTP/1.1\r\nX: ":
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                return
            time.sleep(READ_S / 10)
        assert is_closed(connection, 1.0)


@pytest.mark.attack(28)
def test_28_more_connections_than_allowed_do_not_keep_others_out(server: Server):
    port = server.listener.getsockname()[1]
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(120)]
    try:
        assert httpx.get(f"{server.url}/healthz").status_code == 200
    finally:
        for one in idle:
            one.close()


@pytest.mark.attack(29)
@pytest.mark.parametrize(
    ("host", "settings", "status"),
    [
        ("evil.example", {}, 421),
        ("evil.example:8080", {}, 421),
        ("localhost.evil.example", {}, 421),
        ("127.0.0.1.evil.example", {}, 421),
        ("localhost:8080", {}, 200),
        ("127.0.0.1:8080", {}, 200),
        ("[::1]:8080", {}, 200),
        ("encoder:8080", {}, 200),
        ("search.example", {"host": "search.example"}, 200),
        ("search.example", {"hosts": ("Search.example",)}, 200),
        ("other.example", {"hosts": ("search.example",)}, 421),
        ("localhost", {"hosts": ("search.example",)}, 200),
        ("search.example", {"token": "s3cret"}, 200),
    ],
)
def test_29_a_page_of_a_foreign_name_reads_nothing(host: str, settings: dict[str, Any], status: int):
    headers = {"Host": host, "Authorization": "Bearer s3cret"}
    assert client_of(**settings).get("/v1/models", headers=headers).status_code == status


class SlowSearch(StandInSearch):
    """Waits for a cluster that does not answer."""

    released = Event()

    def __call__(self, *_, **__):
        assert self.released.wait(20)
        return Hits()


async def crowd_of(server, count):
    """Ask so many searches at once."""
    client = httpx.AsyncClient(base_url=server.url, timeout=60, limits=httpx.Limits())
    body = {"query": "x", "mode": "lexical"}
    return client, [asyncio.create_task(client.post("/search", json=body)) for _ in range(count)]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    monkeypatch.setattr(snapshots, "Search", SlowSearch)
    monkeypatch.setattr(snapshots.IndexSnapshot, "warm_up", lambda opening: opening)
    SlowSearch.released.clear()

    def start(**given: Any) -> Server:
        settings = ServeSettings(index="docs", **given)
        app = create_app(WatchedEncoder(), settings, cluster=Cluster(None, "http://x"))
        return running(app, settings)

    yield start
    SlowSearch.released.set()


@pytest.mark.attack(31)
@pytest.mark.anyio
async def test_31_searches_of_a_hung_cluster_hold_up_nothing_else(searched, monkeypatch):
    monkeypatch.setattr(snapshots, "MAX_SEARCHES", 60)
    monkeypatch.setattr(snapshots, "STALLED_S", 60.0)
    client, searches = await crowd_of(searched(search_timeout_s=60), 100)
    while sum(one.done() for one in searches) < 55:
        await asyncio.sleep(0.01)
    body = {"model": "x-passage", "input": "word " * 400}
    assert (await client.post("/v1/embeddings", json=body)).status_code == 200, "threads of its own"
    assert sum(one.done() for one in searches) == 55
    SlowSearch.released.set()
    found = await asyncio.gather(*searches)
    assert sum(one.status_code == 200 for one in found) == 45, "three quarters are for one client"
    refused = [one.headers["Retry-After"] for one in found if one.status_code == 503]
    assert refused == ["1"] * 55, "what there is no room for is told at once"


@pytest.mark.attack(31)
@pytest.mark.anyio
async def test_31_a_search_that_waits_for_a_thread_has_no_more_time_than_others(searched):
    _, searches = await crowd_of(searched(search_timeout_s=0.5), 100)
    assert [one.status_code for one in await asyncio.gather(*searches)] == [503] * 100


@pytest.mark.attack(32)
def test_32_two_lengths_are_refused_and_the_connection_closed(server: Server):
    both = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    second = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    said = raw(server, b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n" + both + second)
    assert said.startswith(b"HTTP/1.1 400")
    assert said.count(b"HTTP/1.1") == 1


@pytest.mark.attack(33)
@pytest.mark.parametrize(
    "odd",
    [
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
def test_33_what_is_no_http_is_refused(server: Server, odd: bytes):
    assert b" 200 " not in raw(server, odd)
    assert httpx.get(f"{server.url}/healthz").status_code == 200


@pytest.mark.attack(34)
def test_34_a_text_is_checked_as_quickly_as_it_is_written():
    text = "é" * 2_000_000
    started = time.process_time()
    text.encode()
    written = time.process_time() - started
    started = time.process_time()
    assert is_unicode(text)
    assert time.process_time() - started < 20 * written + 0.01, "one by one took a hundred times as long"
    assert not is_unicode(text + "\ud800")


@pytest.mark.attack(35)
@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"Content-Type": "text/plain", "Origin": "http://evil.example"}, 400),
        ("OPTIONS", {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}, 405),
        ("GET", {"Connection": "Upgrade", "Upgrade": "websocket"}, 405),
    ],
)
def test_35_pages_of_others_get_nothing(method: str, headers: dict[str, str], status: int):
    body = b'{"model": "x-query", "input": "a"}' if method == "POST" else None
    answer = client_of().request(method, "/v1/embeddings", headers=headers, content=body)
    assert answer.status_code == status
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.attack(36)
@pytest.mark.parametrize(
    ("path", "given"),
    [
        *(("/healthz//", None), ("/healthz/../metrics", "Bearer"), ("/%68ealthz/", "Bearer wrong")),
        *(("/docs", "Bearer s3cre"), ("/openapi.json", "Basic s3cret"), ("/v1/models", "s3cret")),
        *(("/v1/embeddings", "Bearer s3cret x"), ("/metrics", "Bearer été"), ("/nowhere", None)),
    ],
)
def test_36_nothing_but_health_opens_without_the_token(path: str, given: str | None):
    headers = {"Authorization": given.encode()} if given else {}
    client = client_of(token="s3cret")
    assert client.get("/healthz", headers=headers).status_code == 200
    answer = client.get(path, headers=headers)
    assert answer.status_code == 401
    assert "bearer token" in answer.json()["error"]["message"]
    assert "s3cret" not in answer.text
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.attack(36)
@pytest.mark.parametrize("given", ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret"])
def test_36_the_scheme_is_taken_in_any_case(given: str):
    headers = {"Authorization": given}
    assert client_of(token="s3cret").get("/v1/models", headers=headers).status_code == 200


@pytest.mark.attack(37)
@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "x-query", "input": ' + b"[" * 100_000,
        b'{"model": "x-query", "input": [' + b"0," * 900_000 + b"0]}",
        b'{"model": "x-query", "input": [' + b"[]," * 600_000 + b"0]}",
        b'{"model": "x-query", "input": [' + b'"\\ud800",' * 200_000 + b'"a"]}',
        b'{"model": "x-query", "input": [' + b'"",' * 500_000 + b'""]}',
        b'{"model": "x-query", "input": "' + b" " * 900_000 + b'"}',
    ],
)
def test_37_a_body_made_to_be_slow_is_refused_soon(body: bytes):
    client = client_of()
    embed(client, "warm")
    started = time.process_time()
    answer = client.post("/v1/embeddings", content=body, headers=JSON)
    assert answer.status_code in (400, 413, 422)
    assert len(answer.content) < 2_000
    assert time.process_time() - started < 2.5, "a report about each of its items took six seconds"


@pytest.mark.attack(38)
def test_38_a_path_cannot_forge_a_line_of_the_log(caplog):
    with caplog.at_level("INFO", logger="hybridr.serving"):
        client_of().get("/a%0aINJECT%0d")
    assert [record.facts["route"] for record in caplog.records] == ["other"]
    assert "INJECT" not in caplog.text


class HeldEncoder(HashingEncoder):
    """Counts who is inside; holds everybody until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = Event()

    def encode_documents(self, texts, *, max_tokens=None):
        assert self.opened.wait(20)
        return super().encode_documents(texts)


@pytest.fixture
def held() -> Iterator[HeldEncoder]:
    encoder = HeldEncoder()
    yield encoder
    encoder.opened.set()


@pytest.mark.anyio
async def test_large_bodies_take_turns_and_too_many_bytes_are_refused(held: HeldEncoder):
    server = serving(held, max_bytes_in_work=1_000_000)
    queue = server.app.state.embedder.queue
    body = {"model": "x-passage", "input": ["word " * 20_000] * 2}  # 200 kB
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        asked = [asyncio.create_task(client.post("/v1/embeddings", json=body)) for _ in range(10)]
        while sum(one.done() for one in asked) < 5:
            await asyncio.sleep(0.01)
        small = {"model": "x-query", "input": "word"}
        assert len(queue) <= 2 * LARGE_AT_ONCE
        held.opened.set()
        assert (await client.post("/v1/embeddings", json=small)).status_code == 200
        answers = await asyncio.gather(*asked)
    found = [(answer.status_code, answer.headers.get("Retry-After", "")) for answer in answers]
    assert found.count((200, "")) in (4, 5)
    assert found.count((429, "1")) == 10 - found.count((200, ""))
    again = await asyncio.to_thread(httpx.post, f"{server.url}/v1/embeddings", json=body)
    assert again.status_code == 200, "the room is given back"


def test_an_answer_that_nobody_reads_is_not_kept(monkeypatch):
    monkeypatch.setattr("hybridr.serving.doorway.UNREAD_S", 0.3)
    server = serving(HashingEncoder(dim=2000))
    body = json.dumps({"model": "x-passage", "input": ["a"] * 2048}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with connection:
        connection.connect(("127.0.0.1", server.listener.getsockname()[1]))
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        connection.settimeout(60)
        connection.recv(1, socket.MSG_PEEK)  # the answer begins
        time.sleep(0.8)
        said = drained(connection, 1.0)
    assert said.startswith(b"HTTP/1.1 200")
    assert len(said) < 20_000_000, "the rest was given up"


def test_who_sent_much_for_nothing_waits_for_the_answer(monkeypatch):
    monkeypatch.setattr("hybridr.serving.doorway.PAUSE_S", 0.5)
    client = client_of(HashingEncoder(), max_body_bytes=2 * LARGE_BYTES)
    for body in (b"[" * (LARGE_BYTES + 1), b" " * (2 * LARGE_BYTES), b"{"):
        started = time.monotonic()
        assert client.post("/v1/embeddings", content=body, headers=JSON).status_code >= 400
        assert (time.monotonic() - started >= 0.5) == (len(body) > LARGE_BYTES)
