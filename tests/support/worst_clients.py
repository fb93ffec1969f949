"""Forty of the worst clients at once: the largest bodies of every kind, clients that leave, send a byte now
and then, or never read their answer; beside them one that asks for vectors, and one for `/healthz`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import urllib3

CLIENTS, LARGEST, LEAVE_AFTER_S = 40, 2 * 2**20 - 200, 1.0
WORDS = [f"{start}{end}" for start in "basket cellar dragon engine falcon".split() for end in range(200)]
HEAD = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


def attacked(encoder: Path, seconds: float) -> dict[str, Any]:
    """Ask a fresh server under attack; give what was measured."""
    command = [sys.executable, "-m", "hybridr_cli", "serve", "--encoder", str(encoder), "--port", "0"]
    command += ["--json", "--quiet"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout
        address = json.loads(server.stdout.readline())["url"]
        port, of = int(address.rpartition(":")[2]), psutil.Process(server.pid)
        watch(port, of, min(3.0, seconds / 4))  # the first requests load what later ones find
        attackers = [sys.executable, __file__, "--attack", str(port), str(seconds + 2)]
        foes = subprocess.Popen(attackers, stdout=subprocess.PIPE, text=True)
        assert foes.stdout
        assert foes.stdout.readline(), "they have begun"
        time.sleep(1.0)
        under = watch(port, of, seconds)
        counted = json.loads(foes.stdout.readline())
    finally:
        server.kill()
        server.wait(30)
    return {"under_attack": under, "attacks": counted}


def watch(port: int, server: psutil.Process, seconds: float) -> dict[str, Any]:
    """Ask for health and vectors for a time, and look at the server's memory."""
    health: list[tuple[float, int]] = []
    ordinary: list[tuple[float, int]] = []
    until = time.monotonic() + seconds
    numbers = itertools.count()
    chance = random.Random(time.time())

    def asked() -> tuple[str, dict[str, Any]]:
        text = f"{' '.join(chance.choices(WORDS, k=4))} {next(numbers)}"
        return "/v1/embeddings", {"model": "x-query", "input": text}

    loops = [
        threading.Thread(target=repeat, args=(port, lambda: ("/healthz", None), health, until)),
        threading.Thread(target=repeat, args=(port, asked, ordinary, until)),
    ]
    for loop in loops:
        loop.start()
    memory = []
    while time.monotonic() < until:
        memory.append(server.memory_info().rss)
        time.sleep(0.1)
    for loop in loops:
        loop.join()
    quarter = max(1, len(memory) // 4)
    early, late = max(memory[quarter : 2 * quarter], default=memory[0]), max(memory[-quarter:])
    return {
        "healthz": quantiles(health),
        "ordinary": quantiles(ordinary),
        "peak_bytes": max(memory),
        "growth": round(late / early - 1, 3),
    }


def repeat(
    port: int, asked: Callable[[], tuple[str, Any]], found: list[tuple[float, int]], until: float
) -> None:
    """Ask again and again, each time on a connection of its own, 20 times a second at most."""
    while time.monotonic() < until:
        path, body = asked()
        started, status = time.perf_counter(), 0
        with suppress(urllib3.exceptions.HTTPError):
            options: dict[str, Any] = {"json": body} if body else {}
            address = f"http://127.0.0.1:{port}{path}"
            with urllib3.PoolManager() as pool:
                method = "POST" if body else "GET"
                status = pool.request(method, address, retries=False, timeout=30, **options).status
        found.append((1000 * (time.perf_counter() - started), status))
        time.sleep(0.05)


def quantiles(found: list[tuple[float, int]]) -> dict[str, Any]:
    """Give what was answered, and how soon."""
    statuses = dict(Counter(str(status) for _, status in found))
    p99 = float(np.percentile([taken for taken, _ in found], 99))
    return {"p99": p99, "count": len(found), "statuses": statuses}


async def attack(port: int, seconds: float) -> None:
    """Send requests of every kind from 40 clients, each of which begins a new one when one has ended."""
    bodies = list(worst_bodies())
    sys.stdout.write("here\n")
    sys.stdout.flush()
    until = time.monotonic() + seconds

    sent: Counter[int] = Counter()

    async def client(number: int) -> None:
        while time.monotonic() < until:
            kind = number % 8
            sent[kind] += 1
            with suppress(OSError, asyncio.TimeoutError):
                if kind == 6:
                    await send_slowly(port, bodies[0], until)
                elif kind == 7:
                    await read_nothing(port)
                else:
                    await ask(port, bodies[kind % len(bodies)], LEAVE_AFTER_S if number % 2 else 20.0)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    sys.stdout.write(json.dumps(sent) + "\n")


def worst_bodies() -> Iterator[bytes]:
    """Give requests of the largest size, each costly in a way of its own."""
    short = json.dumps({"model": "x-passage", "input": ["a b " * 250] * 2000})
    yield embedding(short[:LARGEST] if len(short) > LARGEST else short)
    yield embedding(json.dumps({"model": "x-query", "input": ["a b " * 2000] * 240}))
    yield embedding('{"model": "x-passage", "input": [' + "0," * (LARGEST // 2 - 50) + "0]}")
    yield embedding('{"model": "x-passage", "input": [' + "[]," * 33_000 + '"' + "[" * 1000 + '"]}')
    yield embedding(json.dumps({"model": "x-passage", "input": ["é" * 1000] * 900}, ensure_ascii=False))
    clause = json.dumps({"term": {"text": "x"}})
    yield request(
        "/search", '{"query": "x", "filter": {"bool": {"must": [' + f"{clause}," * 30_000 + clause + "]}}}"
    )


def embedding(body: str) -> bytes:
    """Write a request for vectors."""
    return request("/v1/embeddings", body)


def request(path: str, body: str) -> bytes:
    """Write a request as it is sent."""
    content = body.encode()
    return HEAD.format(path, len(content)).encode() + content


async def ask(port: int, content: bytes, leave_after_s: float) -> None:
    """Send a request and read its answer, or leave."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await asyncio.wait_for(converse(reader, writer, content), leave_after_s)
    finally:
        writer.close()


async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes) -> None:
    """Send, and read the beginning of what comes."""
    writer.write(content)
    await writer.drain()
    await reader.read(65536)


async def send_slowly(port: int, content: bytes, until: float) -> None:
    """Send a byte now and then until the server has enough of it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for start in range(len(content)):
            writer.write(content[start : start + 1])
            await writer.drain()
            await asyncio.sleep(0.05)
            if time.monotonic() > until:
                return
    finally:
        writer.close()


async def read_nothing(port: int) -> None:
    """Ask for the largest answer, and never read it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(embedding(json.dumps({"model": "x-query", "input": ["a"] * 2048})))
    await asyncio.sleep(5)
    writer.close()


if __name__ == "__main__":  # the attackers
    asyncio.run(attack(int(sys.argv[2]), float(sys.argv[3])))
