"""Clients that leave and servers that stop."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import signal
import subprocess
import sys
import time
from threading import Thread

import httpx
import numpy as np
import psutil
import pytest

from hashing import HashingEncoder
from hybridr.serving import Server, create_app, listen
from hybridr.settings import ServeSettings

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


async def ask(port: int, body: bytes, leave_after: float | None) -> int:
    """Send a request; give the status, or 0 for one that was left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        answer = reader.read()
        return int((await asyncio.wait_for(answer, leave_after)).split()[1])
    except asyncio.TimeoutError:
        return 0
    finally:
        writer.close()


async def ask_many(port: int, count: int, chance: random.Random, at_once: int = 32) -> list[int]:
    """Send requests of 1 to 20 long texts on both sides; every second client may leave early."""
    room = asyncio.Semaphore(at_once)

    async def one(number: int) -> int:
        texts = [f"{number} {place} " + "word " * 100 for place in range(chance.randint(1, 20))]
        body = {"model": chance.choice(["x-query", "x-passage"]), "input": texts}
        async with room:
            leave_after = chance.uniform(0, 0.3) if number % 2 else None
            return await ask(port, json.dumps(body).encode(), leave_after)

    return await asyncio.gather(*(one(number) for number in range(count)))


def memory() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def wait_until_empty(embedder) -> None:
    deadline = time.monotonic() + 5
    while len(embedder.queue) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_clients_that_leave_take_their_work_with_them_and_nothing_leaks():
    encoder, chance = SlowEncoder(), random.Random(5)
    app = create_app(encoder, ServeSettings(batch_tokens=500, cache_queries=50))
    server = Server(app, listen("127.0.0.1", 0))
    Thread(target=server.run, daemon=True).start()
    port = server.listener.getsockname()[1]
    asyncio.run(ask_many(port, 60, chance))
    before = memory()
    first = asyncio.run(ask_many(port, 250, chance))
    between = memory()
    second = asyncio.run(ask_many(port, 250, chance))
    wait_until_empty(app.state.embedder)
    assert len(app.state.embedder.queue) == 0
    assert memory() < between * 1.05
    assert between < before * 1.05
    statuses = first + second
    assert set(statuses) == {0, 200}
    assert statuses[::2].count(200) == 250, "who stayed was answered"
    assert statuses.count(0) > 50
    shown = httpx.get(f"{server.url}/metrics").text
    assert 'hybridr_requests_total{route="/v1/embeddings",status="499"}' in shown
    assert "hybridr_queue_texts 0.0" in shown


def test_the_encoder_never_sees_the_texts_of_a_client_that_left():
    encoder = SlowEncoder()
    app = create_app(encoder, ServeSettings(batch_tokens=100))
    server = Server(app, listen("127.0.0.1", 0))
    Thread(target=server.run, daemon=True).start()
    port = server.listener.getsockname()[1]
    body = json.dumps({"model": "x-passage", "input": ["word " * 20] * 2000}).encode()
    assert asyncio.run(ask(port, body, leave_after=0.3)) == 0
    deadline = time.monotonic() + 5
    while len(app.state.embedder.queue) and time.monotonic() < deadline:
        time.sleep(0.01)
    seen = encoder.seen
    assert seen < 1500
    assert len(app.state.embedder.queue) == 0
    small = json.dumps({"model": "x-passage", "input": "word"}).encode()
    assert asyncio.run(ask(port, small, None)) == 200
    assert encoder.seen <= seen + 4 + 1  # the batch under way, and the one text


def test_a_single_client_waits_for_nothing_but_the_encoder():
    server = Server(create_app(HashingEncoder(DIM)), listen("127.0.0.1", 0))
    Thread(target=server.run, daemon=True).start()
    with httpx.Client(base_url=server.url) as client:
        body = {"model": "x-passage", "input": "a cat"}
        seconds = [client.post("/v1/embeddings", json=body).elapsed.total_seconds() for _ in range(20)]
    assert sorted(seconds)[10] < 0.03, "a delayed acknowledgement costs 0.04 s"


SLOW_SERVER = """
import sys, time
import numpy as np
from hybridr.serving import Server, create_app, listen

class Slow:
    dim, similarity, max_tokens, fingerprint = 4, "cosine", 256, "f"
    def encode_queries(self, texts, *, max_tokens=None):
        time.sleep(1.0)
        return np.ones((len(texts), 4), dtype=np.float32)
    encode_documents = encode_queries

server = Server(create_app(Slow()), listen("127.0.0.1", 0))
print(server.url, flush=True)
server.run("info")
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_stops_answers_what_is_under_way(ending):
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
        time.sleep(0.5)
    finally:
        process.send_signal(ending)
    client.join(20)
    _, said = process.communicate(timeout=20)
    assert answers[0].status_code == 200
    assert len(answers[0].json()["data"][0]["embedding"]) == 4
    lines = [json.loads(line) for line in said.decode().splitlines()]
    assert [line["status"] for line in lines if line["event"] == "request"] == [200]
    assert b"secret" not in said
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")
