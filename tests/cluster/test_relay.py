"""The relay: a stranger's request reaches the cluster as it was written, and nothing of ours goes with it.

Nobody gets an answer to a request of another.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster import relay as relays
from hybridr.cluster.client import Bounds, BoundsExceeded
from hybridr.cluster.embedded.process import free_port
from hybridr.cluster.failures import LATE, TOO_LARGE
from hybridr.cluster.relay import ClientRequest, ClusterAnswer, Relay, relay_errors
from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import ClusterError, Unreachable
from support.certificates import certificate
from support.recorder import recording
from support.waiting import within

ASKED = ClientRequest(
    "POST",
    "/docs%20x/_search?filter_path=hits.hits._id&q=%22a%22",
    (("Authorization", "ApiKey eA=="), ("Connection", "keep-alive"), ("Host", "proxy.example.com")),
    b'{"size":  1}',
)


pytestmark = pytest.mark.anyio


def send(relay: Relay, request: ClientRequest) -> ClusterAnswer:
    return asyncio.run(relay.send(request))


def test_a_request_goes_on_as_it_was_with_none_of_our_rights() -> None:
    with recording() as cluster:
        settings = ClusterSettings(url=cluster.url, user="ours", password="secret")
        answer = send(Relay(settings), ASKED)
    [heard] = cluster.heard
    assert (heard.line, heard.body) == (f"POST {ASKED.target}", ASKED.body)
    assert heard.headers == {
        "host": cluster.url.removeprefix("http://"),
        "authorization": "ApiKey eA==",
        "content-length": str(len(ASKED.body)),
    }
    assert (answer.status, answer.body) == (200, cluster.answers[0][1])
    assert ("X-elastic-product", "Elasticsearch") in answer.headers


def test_another_host_is_asked_where_the_first_is_away() -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with recording() as cluster:
        assert send(Relay(ClusterSettings(url=f"{away},{cluster.url}")), ASKED).status == 200
    with pytest.raises(Unreachable, match="nothing answers at 127"):
        send(Relay(ClusterSettings(url=away)), ASKED)


@pytest.mark.attack(106)
@pytest.mark.parametrize(
    "target",
    [
        *("/_bulk#/_search", "/docs/../_bulk", "/docs/./_search", "/docs/_search?q=a#b", "docs/_search"),
        *("//other/_search", "/docs/_search?q=a b", "@other/_bulk", ":1/_bulk", "/docs\\_search"),
    ],
)
def test_106_a_target_that_would_be_sent_as_another_one_is_not_sent(target: str) -> None:
    with recording() as cluster:
        for prefix in ("", "/behind"):
            relay = Relay(ClusterSettings(url=f"{cluster.url}{prefix}"))
            with pytest.raises((ClusterError, Unreachable)):
                send(relay, ASKED._replace(target=target))
            assert send(relay, ASKED).status == 200
        lines = [heard.line for heard in cluster.heard]
    assert lines == [f"POST {ASKED.target}", f"POST /behind{ASKED.target}"]


@pytest.mark.parametrize("cause", ["bytes", "seconds"])
def test_an_answer_beyond_its_bounds_is_named_by_what_there_is_too_much_of(cause: str) -> None:
    with pytest.raises(ClusterError, match=f"the answer of h:9200 takes too many {cause}"):
        with relay_errors("http://h:9200"):
            raise BoundsExceeded(cause)


class Talker:
    """A cluster that answers each request by `talk`, which is told the request and has the connection."""

    def __init__(self, talk: Talk) -> None:
        self.talk, self.url, self.connections, self.ended = talk, "", 0, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self.talk(head, reader, writer)
                await writer.drain()
        self.ended += 1
        writer.close()


Talk = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def talking(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[Talker]:
    """Run one in this event loop."""
    talker = Talker(talk)
    server = await asyncio.start_server(talker.serve, "127.0.0.1", 0, ssl=tls)
    talker.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield talker
    finally:
        server.close()


def asking(name: str, method: str = "GET") -> ClientRequest:
    return ClientRequest(method, f"/{name}/_search", (), b"")


def named(head: bytes) -> bytes:
    """The answer of a request: its own target."""
    body = head.split(b" ")[1]
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def answer_by_name(head: bytes, _: Any, writer: asyncio.StreamWriter) -> None:
    writer.write(named(head))


def relay_of(talker: Talker, **settings: Any) -> Relay:
    return Relay(ClusterSettings(url=talker.url, **settings))


async def gone(talker: Talker, count: int) -> None:
    until = time.monotonic() + 5
    while talker.ended < count:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: 2\r\n"
PACKED = gzip.compress(b"{}")


@pytest.mark.attack(115)
@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(
    ("answer", "status", "body", "reused"),
    [
        (OK + LENGTH + b"\r\n{}", 200, b"{}", True),
        (OK + LENGTH + b"Connection: close\r\n\r\n{}", 200, b"{}", False),
        (b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\n{}", 200, b"{}", False),
        (CHUNKED + b"\r\n1\r\n{\r\n1;a=b\r\n}\r\n0\r\n\r\n", 200, b"{}", True),
        (CHUNKED + b"Trailer: X-T\r\n\r\n2\r\n{}\r\n0\r\nX-T: 1\r\n\r\n", 200, b"{}", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 304 Not Modified\r\n" + LENGTH + b"\r\n", 304, b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + LENGTH + b"\r\n{}", 200, b"{}", True),
        (b"HTTP/1.1 103 Early\r\nX-Early: 1\r\n\r\n" + OK + LENGTH + b"\r\n{}", 200, b"{}", True),
        (b"HTTP/1.1 199 Odd\r\n\r\n", 199, b"", False),
        (
            OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED) + PACKED,
            *(200, PACKED, True),
        ),
    ],
)
async def test_115_an_answer_ends_where_it_says(answer, status, body, reused, bytewise):
    async def talk(_: bytes, __: Any, writer: asyncio.StreamWriter) -> None:
        for place in range(0, len(answer), 1 if bytewise else len(answer)):
            writer.write(answer[place : place + (1 if bytewise else len(answer))])
            await asyncio.sleep(0)

    async with talking(talk) as talker:
        relay = relay_of(talker)
        for _ in range(2):
            given = await relay.send(asking("docs"))
            assert (given.status, given.body) == (status, body)
            assert not {"transfer-encoding", "x-t", "x-early"} & {name.lower() for name, _ in given.headers}
        assert talker.connections == (1 if reused else 2)


@pytest.mark.attack(115)
async def test_115_an_answer_without_a_length_ends_with_its_connection_and_one_to_head_with_its_headers():
    async def talk(head: bytes, _: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + LENGTH + b"\r\n" if head.startswith(b"HEAD") else OK + b"\r\n{}")
        if not head.startswith(b"HEAD"):
            await writer.drain()
            writer.close()

    async with talking(talk) as talker:
        relay = relay_of(talker)
        for method, body in (("HEAD", b""), ("GET", b"{}"), ("HEAD", b""), ("GET", b"{}")):
            assert (await relay.send(asking("docs", method))).body == body
        assert talker.connections == 4


@pytest.mark.attack(115)
@pytest.mark.parametrize(
    "answer",
    [
        *(OK + LENGTH + b"Content-Length: %b\r\n\r\n{}" % other for other in (b"3", b"2", b"")),
        *(OK + b"Content-Length: %b\r\n\r\n{}" % odd for odd in (b"+2", b"-2", b"0x2", b"2, 2", b"", b"2 2")),
        *(CHUNKED + LENGTH + b"\r\n2\r\n{}\r\n0\r\n\r\n", OK + LENGTH + CHUNKED[17:] + b"\r\n0\r\n\r\n"),
        *(CHUNKED + CHUNKED[17:] + b"\r\n0\r\n\r\n", OK + b"Transfer-Encoding: gzip\r\n\r\n{}"),
        *(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", OK + b"Transfer-Encoding: x\r\n\r\n"),
        *(OK + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", OK + b"X: a\r\n b\r\n" + LENGTH + b"\r\n{}"),
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        *(b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", OK + b"X: a\r" + LENGTH + b"\r\n{}"),
        *(
            CHUNKED + b"\r\n" + odd + b"\r\n0\r\n\r\n"
            for odd in (b"zz\r\n{}", b"2\r\n{}x", b"2\n{}", b"f" * 17)
        ),
        *(CHUNKED + b"\r\n0\r\n" + b"X: 1\r\n" * 200 + b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 9_000),
        b"HTTP/2.0 200 OK\r\n" + LENGTH + b"\r\n{}",
    ],
)
async def test_115_an_answer_whose_end_could_be_read_in_two_ways_is_refused(answer: bytes) -> None:
    async def talk(_: bytes, __: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with talking(talk) as talker:
        relay = relay_of(talker, timeout_s=5)
        for count in (1, 2):
            with pytest.raises(ClusterError) as caught:
                await relay.send(asking("docs"))
            assert caught.value.kind != LATE
            await gone(talker, count)
        assert talker.ended == talker.connections == 2


@pytest.mark.attack(115)
@pytest.mark.parametrize("arrival", ["with the answer", "later", "just now"])
@pytest.mark.parametrize(
    "extra", [named(b"GET /theirs "), b"H", b"@@", b"HTTP/1.1 100 Continue\r\n\r\n", named(b"G /x ")[:40]]
)
async def test_115_nobody_gets_what_follows_the_answer_of_another(extra: bytes, arrival: str) -> None:
    released = asyncio.Event()

    async def talk(head: bytes, _: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(named(head))
        if arrival != "with the answer":
            await released.wait()
        writer.write(extra)

    async with talking(talk) as talker:
        relay = relay_of(talker)
        for number in range(4):
            released.clear()
            assert (await relay.send(asking(f"own{number}"))).body == b"/own%d/_search" % number
            released.set()
            await asyncio.sleep(0.02 if arrival == "later" else 0)  # 0: this event loop has not read it
        assert talker.connections == 4


@pytest.mark.attack(108)
@pytest.mark.parametrize(
    "sent", [b"", OK[:9], OK + b"X-A: 1", OK + LENGTH + b"\r\n{", CHUNKED + b"\r\n2\r\n{}\r\n"]
)
async def test_108_a_cancelled_request_closes_its_connection_and_the_next_has_another(sent: bytes) -> None:
    async def talk(head: bytes, reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(named(head) if b"next" in head else sent)

    async with talking(talk) as talker:
        relay = relay_of(talker)
        assert (await relay.send(asking("next"))).body == b"/next/_search"
        request = asyncio.create_task(relay.send(asking("left")))
        await asyncio.sleep(0.05)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await gone(talker, 1)
        assert talker.ended == 1
        assert (await relay.send(asking("next"))).body == b"/next/_search"
        assert talker.connections == 2


@pytest.mark.attack(108)
async def test_108_of_many_clients_that_come_and_leave_each_gets_its_own_answer() -> None:
    chance = random.Random(7)

    async def talk(head: bytes, _: Any, writer: asyncio.StreamWriter) -> None:
        answer = named(head)
        cut = chance.randrange(len(answer))
        writer.write(answer[:cut])
        await asyncio.sleep(chance.random() / 100)
        writer.write(answer[cut:])

    async with talking(talk) as talker:
        relay, answered = relay_of(talker), 0

        async def client(number: int) -> int:
            right = 0
            for turn in range(12):
                request = asyncio.create_task(relay.send(asking(f"n{number}-{turn}")))
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() / 100)
                    request.cancel()
                with suppress(asyncio.CancelledError):
                    assert (await request).body == b"/n%d-%d/_search" % (number, turn)
                    right += 1
            return right

        answered = sum(await asyncio.gather(*(client(number) for number in range(80))))
        assert answered > 600
        assert talker.connections < 12 * 80
        [host] = relay.hosts
        assert len(host.idle) <= relays.KEPT_OPEN
        for connection in host.idle:
            connection.close()


async def test_an_answer_before_the_request_is_sent_is_taken_and_its_connection_closed() -> None:
    async def talk(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(0.2)

    async with talking(talk) as talker:
        relay = relay_of(talker)
        large = ClientRequest("POST", "/docs/_search", (), b" " * 30_000_000)
        assert (await relay.send(large)).status == 413
        assert not relay.hosts[0].idle


async def test_a_large_request_arrives_whole() -> None:
    body = random.Random(7).randbytes(3_000_000)

    async def talk(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Content-Length: 3000000\r\n" in head
        writer.write(named(b"G /same ") if await reader.readexactly(len(body)) == body else b"")

    async with talking(talk) as talker:
        relay = relay_of(talker)
        for _ in range(2):
            assert (await relay.send(ClientRequest("POST", "/_search", (), body))).body == b"/same"
        assert talker.connections == 1


async def test_a_connection_that_the_cluster_closed_meanwhile_is_not_used() -> None:
    async def talk(head: bytes, _: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(named(head))
        await writer.drain()
        asyncio.get_running_loop().call_later(0.01, writer.close)

    async with talking(talk) as talker:
        relay = relay_of(talker)
        for number in range(3):
            assert (await relay.send(asking(f"own{number}"))).body == b"/own%d/_search" % number
            await asyncio.sleep(0.05)
        assert talker.connections == 3
        assert len(relay.hosts[0].idle) <= 1


async def test_a_host_that_goes_away_leaves_its_requests_to_the_next() -> None:
    async def leave(_: bytes, __: Any, writer: asyncio.StreamWriter) -> None:
        writer.close()

    seen: list[tuple[str, str]] = []
    async with talking(leave) as away, talking(answer_by_name) as there:
        hosts = ClusterSettings(url=f"{away.url},{there.url}")
        relay = Relay(hosts, lambda api, _, kind: seen.append((api, kind)))
        assert (await relay.send(asking("docs"))).body == b"/docs/_search"
    assert seen == [("_search", "unreachable"), ("_search", "")]
    with pytest.raises(Unreachable, match="nothing answers at 127"):
        await Relay(hosts).send(asking("docs"))


@pytest.mark.attack(115)
@pytest.mark.parametrize(
    ("sent", "bounds", "kind"),
    [
        (b"", Bounds(100, 30), LATE),
        (OK + b"X-A: 1\r\n", Bounds(100, 30), LATE),
        (b"", Bounds(100, 0.1), TOO_LARGE),
        (OK + b"Content-Length: 1000\r\n\r\n" + b" " * 1_000, Bounds(100, 30), TOO_LARGE),
        (CHUNKED + b"\r\n" + b"1\r\n \r\n" * 200, Bounds(1_000, 30), TOO_LARGE),
    ],
)
async def test_115_an_answer_is_waited_for_and_read_within_its_bounds(sent, bounds, kind):
    async def talk(_: bytes, __: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)

    async with talking(talk) as talker:
        relay = relay_of(talker, timeout_s=0.4)
        relay.bounds = bounds
        with within(5):
            with pytest.raises(ClusterError) as caught:
                await relay.send(asking("docs"))
            assert caught.value.kind == kind
        await gone(talker, 1)
        assert talker.ended == 1


@pytest.mark.attack(106)
@pytest.mark.parametrize(
    "header",
    [
        *(("X", "a\r\nY: b"), ("X", "a\nY: b"), ("X", "a\x00"), ("X\r\nY", "b"), ("X:", "a"), ("", "a")),
        ("X Y", "a"),
    ],
)
def test_106_a_header_that_would_be_read_as_two_is_not_sent(header: tuple[str, str]) -> None:
    with recording() as cluster:
        relay = Relay(ClusterSettings(url=cluster.url))
        for odd in (ASKED._replace(headers=(header,)), ASKED._replace(method="GET / HTTP/1.1\r\nX:")):
            with pytest.raises(ClusterError, match="cannot be passed on"):
                send(relay, odd)
        assert cluster.heard == []


async def test_a_certificate_is_checked_as_the_settings_say(tmp_path: Path) -> None:
    files = certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["tls_cert"], files["tls_key"])

    async with talking(answer_by_name, context) as talker:
        relay = relay_of(talker, ca_certs=files["tls_cert"])
        for _ in range(3):
            assert (await relay.send(asking("docs"))).body == b"/docs/_search"
        assert talker.connections == 1
        assert (await relay_of(talker, verify_certs=False).send(asking("docs"))).status == 200
        by_name = ClusterSettings(
            url=talker.url.replace("127.0.0.1", "localhost"), ca_certs=files["tls_cert"], user="u"
        )
        foreign = relay_of(talker, ca_certs=certificate(other)["tls_cert"])
        for refused in (relay_of(talker), foreign, Relay(by_name)):
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await refused.send(asking("secret"))
