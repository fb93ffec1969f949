"""Threads of searches: who has them, who waits, and what ends when a client leaves a cluster that is slow."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.serving import snapshots
from hybridr.serving.application import create_app
from hybridr.serving.requests import Busy
from hybridr.serving.search_threads import CLIENT, SEARCHING_THREADS, SearchThreads
from hybridr.serving.settings import ServeSettings
from serving.test_searching import KnowingSearch
from support.deployed import Server
from support.hashing import HashingEncoder
from support.raw_http import status_of
from support.waiting import wait_until, within

pytestmark = pytest.mark.anyio
BODY = b'{"query":{"match":{"text":"two words"}}}'


def run_as(client: str, threads: SearchThreads, work: Callable[[], Any]) -> asyncio.Task[Any]:
    async def asking() -> Any:
        CLIENT.set(client)
        return await threads.run(work)

    return asyncio.create_task(asking())


@pytest.mark.attack(108)
@pytest.mark.parametrize("clients", [1, 100])
async def test_108_who_waits_behind_calls_that_do_not_end_is_refused_soon(clients: int) -> None:
    released = Event()

    threads = SearchThreads(200, stalled_s=0.5)
    slow = [run_as(f"a{n % clients}", threads, lambda: released.wait(20)) for n in range(SEARCHING_THREADS)]
    await asyncio.sleep(0.1)
    for _ in range(2):
        with within(3), pytest.raises(Busy, match="slow"):
            await run_as("a0" if clients == 1 else "other", threads, lambda: 1)
    released.set()
    results = await asyncio.gather(*slow, return_exceptions=True)
    assert sum(result is True for result in results) == (30 if clients == 1 else 40)
    assert await run_as("a0", threads, lambda: 1) == 1


@pytest.mark.attack(108)
async def test_108_calls_that_end_keep_the_others_waiting() -> None:
    threads = SearchThreads(400, stalled_s=0.5)
    slow = [run_as(str(number), threads, lambda: time.sleep(0.2)) for number in range(300)]
    await asyncio.gather(*slow)


@pytest.mark.attack(108)
async def test_108_a_call_that_nobody_waits_for_never_begins() -> None:
    released, worked = Event(), []

    threads = SearchThreads(3)
    first = run_as("a", threads, lambda: released.wait(20))
    others = [run_as("a", threads, lambda: worked.append(1)) for _ in range(1)]
    await asyncio.sleep(0.1)
    assert others[0].done()
    second = run_as("a", threads, lambda: released.wait(20))
    waiting = [run_as("b", threads, lambda: released.wait(9)), run_as("c", threads, lambda: worked.append(2))]
    await asyncio.sleep(0.1)
    for task in (*waiting, first):
        task.cancel()
    released.set()
    await asyncio.gather(first, second, *waiting, return_exceptions=True)
    assert await run_as("a", threads, lambda: 1) == 1
    await asyncio.sleep(0.1)
    assert_idle(threads)
    assert worked[:1] == [1]


def assert_idle(threads: SearchThreads) -> None:
    assert not threads._calls
    assert not threads._running
    assert not threads._waiting
    assert set(threads._last_change) == {None}


@pytest.mark.attack(108)
async def test_108_places_without_a_thread_are_shared_as_threads_are() -> None:
    released, inside = asyncio.Event(), list[str]()

    def take(client: str, threads: SearchThreads) -> asyncio.Task[None]:
        async def taking() -> None:
            CLIENT.set(client)
            async with threads.place():
                inside.append(client)
                await released.wait()

        return asyncio.create_task(taking())

    threads = SearchThreads(200, stalled_s=0.5)
    crowd = [take("a", threads) for _ in range(35)]
    await asyncio.sleep(0.1)
    assert inside == ["a"] * 30
    assert await run_as("b", threads, lambda: 1) == 1
    others = [take(f"c{number}", threads) for number in range(10)]
    with pytest.raises(Busy, match="slow"):
        await run_as("d", threads, lambda: 1)
    with pytest.raises(Busy, match="slow"):
        await take("d", threads)
    assert sum(task.done() for task in crowd) == 5
    for task in crowd[:2]:  # those that wait take the places of clients that leave
        task.cancel()
    late = [take("e", threads), run_as("e", threads, lambda: inside.append("thread"))]
    await asyncio.sleep(0.2)
    assert inside[-2:] in (["e", "thread"], ["thread", "e"])
    waiting = take("a", threads)
    await asyncio.sleep(0)
    waiting.cancel()
    released.set()
    await asyncio.gather(*crowd, *others, *late, waiting, return_exceptions=True)
    assert_idle(threads)


class HungCluster:
    """Answers searches of `quick` at once, and no others; counts the connections that are open."""

    def __init__(self) -> None:
        self.open: set[socket.socket] = set()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.open.add(connection)
                Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while received := connection.recv(65536):
                if received.startswith(b"POST /quick/") or b"GET /docs?" in received[:20]:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        self.open.discard(connection)

    def close(self) -> None:
        self.listener.close()
        for connection in list(self.open):
            connection.close()


@pytest.fixture
def hung() -> Iterator[HungCluster]:
    cluster = HungCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def proxy(hung: HungCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(snapshots, "Search", KnowingSearch)
    settings = ServeSettings(index="docs", proxy="lexical", rank_timeout_s=30)
    server = Server(create_app(HashingEncoder(), settings, cluster=Cluster(None, hung.url)))
    yield server
    server.stop()


def ask(server: Server, path: str, authorization: str = "Basic dTpw") -> socket.socket:
    """Send a search, and do not wait for its answer."""
    connection = socket.create_connection(("127.0.0.1", server.port), 20)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"authorization: {authorization}\r\ncontent-length: {len(BODY)}\r\nconnection: close\r\n\r\n"
    connection.sendall(head.encode() + BODY)
    return connection


def answered(connection: socket.socket) -> tuple[int, float]:
    """Return the status of an answer, and how long it took."""
    began, received = time.monotonic(), b""
    connection.settimeout(20)
    with connection:
        while part := connection.recv(65536):
            received += part
    return status_of(received), time.monotonic() - began


@pytest.mark.attack(108)
@pytest.mark.parametrize("path", ["/slow/_search", "/docs/_search", "/slow/_msearch"])
def test_108_searches_of_clients_that_left_end_at_once(proxy: Server, hung: HungCluster, path: str) -> None:
    for _ in range(2):
        crowd = [ask(proxy, path) for _ in range(45)]
        wait_until(lambda: len(hung.open) >= 30)
        for connection in crowd:
            connection.close()
        wait_until(lambda: len(hung.open) <= 1, 20)
        for authorization in ("Basic dTpw", "Basic b3RoZXI="):
            status, took = answered(ask(proxy, "/quick/_search", authorization))
            assert (status, took < 5) == (200, True)


@pytest.mark.attack(108)
@pytest.mark.parametrize("clients", [1, 45])
def test_108_clients_that_stay_hold_up_others_for_a_second_or_two(proxy, hung, clients):
    crowd = [ask(proxy, "/slow/_search", f"Basic {number % clients}") for number in range(45)]
    wait_until(lambda: len(hung.open) >= (30 if clients == 1 else 40))
    status, took = answered(ask(proxy, "/quick/_search", "Basic other"))
    assert took < 8
    assert status == (200 if clients == 1 else 503), "one client has a share, many have all"
    expected = 15 if clients == 1 else 5
    wait_until(lambda: len(select.select(crowd, [], [], 0)[0]) >= expected)
    refused, _, _ = select.select(crowd, [], [], 0)
    assert len(refused) == expected
    assert {answered(connection)[0] for connection in refused} == {503}
    for connection in crowd:
        connection.close()
    wait_until(lambda: len(hung.open) <= 1, 20)
    assert answered(ask(proxy, "/quick/_search", "Basic other"))[0] == 200


@pytest.mark.attack(108)
def test_108_a_body_that_is_not_read_and_a_name_that_is_not_told_hold_nobody_up(proxy, hung):
    """A name that has to be looked up, of a cluster that hangs, is nobody's that waits for a ranking."""
    proxy.app.state.searches.serving.__dict__["rank_timeout_s"] = 0.2
    crowd = [ask(proxy, f"/name-{number}/_search") for number in range(20)]
    status, took = answered(ask(proxy, "/quick/_search", "Basic other"))
    assert (status, took < 5) == (200, True)
    for connection in crowd:
        connection.close()
