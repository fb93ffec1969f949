"""Clients that leave and servers that stop."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from threading import Thread

import httpx
import numpy as np
import pytest

from hybridr.cluster.client import Client
from hybridr.cluster.connection import Cluster
from hybridr.cluster.settings import ClusterSettings
from hybridr.encoders.export.exporting import export
from hybridr.serving import embeddings, snapshots
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from studies.serving_memory import ask_server
from support.asking import running
from support.hashing import HashingEncoder
from support.searches import StandInSearch
from support.tiny import tiny_retriever
from support.waiting import wait_until, within
from support.worst_clients import attacked

DIM = 384


class SlowEncoder(HashingEncoder):
    """Takes a millisecond for a text; counts them."""

    def __init__(self) -> None:
        super().__init__(DIM)
        self.seen = 0

    def encode_queries(self, texts, *, max_tokens=None):
        time.sleep(len(texts) / 1000)
        self.seen += len(texts)
        return np.ones((len(texts), DIM), dtype=np.float32)

    def encode_documents(self, texts, *, max_tokens=None):
        return self.encode_queries(texts)


async def ask(port: int, body: bytes, leave_after: float | None, path: str = "/v1/embeddings") -> int:
    """Send a request; give the status, or 0 for one that was left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        answer = reader.read()
        return int((await asyncio.wait_for(answer, leave_after)).split()[1])
    except asyncio.TimeoutError:
        return 0
    finally:
        writer.close()


def test_clients_that_leave_take_their_work_with_them_and_nothing_leaks():
    found = ask_server(500)
    assert found["growth"] < 0.05, found
    assert found["answered"] + found["left"] == 500, found
    assert found["answered"] >= 250, "who stayed was answered"
    assert found["left"] > 25, "some left"
    assert found["noticed"] > 12, "before their answer was there"
    assert found["waiting"] == 0


class SilentCluster:
    """A port that takes connections and never answers; counts those that are open."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.taken: list[socket.socket] = []
        Thread(target=self.take, daemon=True).start()

    def take(self) -> None:
        while True:
            self.taken.append(self.listener.accept()[0])

    @property
    def cluster(self) -> Cluster:
        url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        return Cluster(Client(url, ClusterSettings(url=url)), url)

    def left_alone(self) -> bool:
        """Tell whether the server has closed every connection it made."""
        for one in self.taken:
            one.settimeout(0.01)
            try:
                while one.recv(65536):
                    pass
            except TimeoutError:
                return False
        return True


class HangingSearch(StandInSearch):
    """Asks the cluster as `Search` does."""

    def __call__(self, text, k, **options):
        return self.cluster.search("docs", {"query": {"match": {"text": text}}})


@pytest.mark.anyio
async def test_a_cluster_that_hangs_keeps_no_work_alive(monkeypatch):
    monkeypatch.setattr(snapshots, "Search", HangingSearch)
    monkeypatch.setattr(snapshots.IndexSnapshot, "warm_up", lambda opening: opening)
    monkeypatch.setattr(snapshots, "EVERY_S", 1_000)
    silent = SilentCluster()
    settings = ServeSettings(index="docs", search_timeout_s=3.0)
    server = running(create_app(HashingEncoder(DIM), settings, cluster=silent.cluster))
    port = server.listener.getsockname()[1]
    body = json.dumps({"query": "a cat"}).encode()
    leaving = (ask(port, body, 1.5, "/search") for _ in range(20))
    with within(10):
        *left, stayed = await asyncio.gather(*leaving, ask(port, body, None, "/search"))
        assert left == [0] * 20
        assert stayed == 503
    assert len(silent.taken) == 21
    wait_until(silent.left_alone, 20)  # the searches of clients that left have ended
    shown = httpx.get(f"{server.url}/metrics").text
    assert 'hybridr_requests_total{route="/search",status="499"} 20.0' in shown


def test_the_encoder_never_sees_the_texts_of_a_client_that_left(monkeypatch):
    monkeypatch.setattr(embeddings, "BATCH_TOKENS", 100)
    encoder = SlowEncoder()
    app = create_app(encoder, ServeSettings())
    port = running(app).listener.getsockname()[1]
    body = json.dumps({"model": "x-passage", "input": ["word " * 20] * 2000}).encode()
    assert asyncio.run(ask(port, body, leave_after=0.3)) == 0
    wait_until(lambda: not len(app.state.embedder.queue), 5)
    seen = encoder.seen
    assert seen < 1500
    small = json.dumps({"model": "x-passage", "input": "word"}).encode()
    assert asyncio.run(ask(port, small, None)) == 200
    assert encoder.seen <= seen + 4 + 1  # the batch under way, and the one text


def test_a_single_client_waits_for_nothing_but_the_encoder():
    server = running(create_app(HashingEncoder(DIM)))
    with httpx.Client(base_url=server.url) as client:
        body = {"model": "x-passage", "input": "a cat"}
        seconds = [client.post("/v1/embeddings", json=body).elapsed.total_seconds() for _ in range(20)]
    assert sorted(seconds)[10] < 0.03, "a delayed acknowledgement costs 0.04 s"


SLOW_SERVER = """
import sys, time
import numpy as np
from hybridr.serving.application import Server, create_app
from hybridr.serving.doorway import listen

class Slow:
    dim, similarity, max_tokens, fingerprint = 4, "cosine", 256, "f"
    def encode_queries(self, texts, *, max_tokens=None):
        print("it has begun", flush=True)
        time.sleep(1.0)
        return np.ones((len(texts), 4), dtype=np.float32)
    encode_documents = encode_queries

server = Server(create_app(Slow()), listen("127.0.0.1", 0))
print(server.url, flush=True)
server.run("info")
"""


@pytest.mark.attack(39)
def test_a_server_that_stops_answers_what_is_under_way():
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        url = process.stdout.readline().decode().strip()
        answers = []
        body = {"model": "x-query", "input": "secret words"}
        client = Thread(
            target=lambda: answers.append(httpx.post(f"{url}/v1/embeddings", json=body, timeout=20))
        )
        client.start()
        process.stdout.readline()
    finally:
        process.terminate()
    client.join(20)
    _, said = process.communicate(timeout=20)
    assert (answers[0].status_code, len(answers[0].json()["data"][0]["embedding"])) == (200, 4)
    lines = [json.loads(line) for line in said.decode().splitlines()]
    assert [line["status"] for line in lines if line["event"] == "request"] == [200]
    assert b"secret" not in said
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_forty_of_the_worst_clients_neither_fill_the_server_nor_keep_others_out(tiny_encoder_folder):
    found = attacked(tiny_encoder_folder, 2.0)
    under = found["under_attack"]
    assert sum(found["attacks"].values()) > 40, found
    assert under["healthz"]["statuses"] == {"200": under["healthz"]["count"]}, found
    assert under["ordinary"]["statuses"] == {"200": under["ordinary"]["count"]}, found
    assert under["peak_bytes"] < 1.2e9, found
    assert under["growth"] < 0.3, "of few seconds"
    assert under["healthz"]["p99"] < 5_000, "less than a tenth of what one body took before"


@pytest.fixture(scope="module")
def tiny_encoder_folder(tmp_path_factory):
    return export(tiny_retriever(), tmp_path_factory.mktemp("attacked") / "encoder")
