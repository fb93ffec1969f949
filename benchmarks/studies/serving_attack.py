"""What do 40 of the worst clients at once do to an embedding server, and to ordinary clients?

    python benchmarks/run.py serving-attack [--seconds 120] [--node NAME]

`hybridr serve` with the packaged MiniLM is asked by one ordinary client after the other, first
alone, then while 40 others send the largest bodies of every kind, leave after a second, send a byte now and
then, or never read their answer. With a node, ordinary clients search an index of 2,000 short documents by
`/search`; without, they ask for the vector of a query. Told are the quantiles of both times in milliseconds,
those of `/healthz`, what the ordinary clients were answered, and the resident memory of the server: its peak,
and how much it grows from the second quarter of the time to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import urllib3

from hybridr.cluster.connection import Cluster, path_of
from study import HERE, Section, add_json, machine_record, write_result

CLIENTS, LARGEST, LEAVE_AFTER_S = 40, 2 * 2**20 - 200, 1.0
DOCUMENTS = 2_000
WORDS = [f"{start}{end}" for start in "basket cellar dragon engine falcon".split() for end in range(200)]
HEAD = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


def options(parser: argparse.ArgumentParser) -> None:
    """Take how long, and the node."""
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--node", help="a running node; without one nobody searches")
    add_json(parser, "serving-attack")


def measure(given: argparse.Namespace) -> None:
    """Attack a server and write what became of it."""
    from hybridr.encoders.export.exporting import minilm_encoder

    encoder = minilm_encoder()
    with searchable(given.node, encoder) if given.node else nullcontext(("", "")) as (url, index):
        found = {**attacked(encoder, given.seconds, url, index), "machine": machine_record()}
    print(json.dumps(found, indent=2))
    write_result(given.json, found)


@contextmanager
def searchable(node: str, encoder: Path) -> Iterator[tuple[str, str]]:
    """Give the address of a node and an index with vectors on it."""
    from hybridr import connect
    from hybridr.cluster.embedded.state import read_state
    from hybridr.indexing.reindexing import reindex

    state = read_state(node)
    if state is None or not state.running:
        raise SystemExit(f"no node '{node}' runs")
    cluster = connect(state.url)
    with fill(cluster, "serving-attack"):
        reindex(cluster, "serving-attack", encoder)
        yield state.url, "serving-attack"


@contextmanager
def fill(cluster: Cluster, index: str) -> Iterator[None]:
    """Make an index of short documents; it and what is made of it are deleted again."""
    chance = random.Random(4)
    cluster.request("PUT", path_of(index), {"mappings": {"properties": {"text": {"type": "text"}}}})
    lines: list[dict[str, Any]] = []
    for number in range(DOCUMENTS):
        lines += [{"index": {"_id": str(number)}}, {"text": " ".join(chance.choices(WORDS, k=20))}]
    try:
        body = b"\n".join(map(orjson.dumps, lines)) + b"\n"
        cluster.request("POST", path_of(index, "_bulk"), body, {"refresh": "true"})
        yield
    finally:
        for info in cluster.indices(f"{index}*"):
            cluster.request("DELETE", path_of(info.name))


def attacked(encoder: Path, seconds: float, url: str = "", index: str = "") -> dict[str, Any]:
    """Ask a fresh server, alone for a quarter of the time and then under attack; give what was measured."""
    command = [sys.executable, "-m", "hybridr_cli", "serve", "--encoder", str(encoder), "--port", "0"]
    command += ["--json", "--quiet", *(["--index", index, "--url", url] if index else [])]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout
        address = json.loads(server.stdout.readline())["url"]
        port, of = int(address.rpartition(":")[2]), psutil.Process(server.pid)
        watch(port, of, index, min(3.0, seconds / 4))  # the first requests load what later ones find
        alone = watch(port, of, index, seconds / 4)
        attackers = [sys.executable, __file__, "--attack", str(port), str(seconds + 2)]
        found_at = {**os.environ, "PYTHONPATH": str(HERE)}
        foes = subprocess.Popen(attackers, stdout=subprocess.PIPE, text=True, env=found_at)
        assert foes.stdout
        assert foes.stdout.readline(), "they have begun"
        time.sleep(1.0)
        under = watch(port, of, index, seconds)
        counted = json.loads(foes.stdout.readline())
    finally:
        server.kill()
        server.wait(30)
    return {"seconds": seconds, "alone": alone, "under_attack": under, "attacks": counted}


def watch(port: int, server: psutil.Process, index: str, seconds: float) -> dict[str, Any]:
    """Ask for health and searches for a time, and look at the server's memory."""
    health: list[tuple[float, int]] = []
    ordinary: list[tuple[float, int]] = []
    until = time.monotonic() + seconds
    numbers = itertools.count()
    chance = random.Random(time.time())

    def asked() -> tuple[str, dict[str, Any]]:
        text = f"{' '.join(chance.choices(WORDS, k=4))} {next(numbers)}"
        return (
            ("/search", {"query": text}) if index else ("/v1/embeddings", {"model": "x-query", "input": text})
        )

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
    times = [taken for taken, _ in found]
    p50, p99 = (round(float(np.percentile(times, q)), 1) for q in (50, 99))
    return {"p50": p50, "p99": p99, "most": round(max(times), 1), "count": len(found), "statuses": statuses}


async def attack(port: int, seconds: float) -> None:
    """Send requests of every kind from 40 clients, each of which begins a new one when one has ended."""
    bodies = list(worst_bodies())
    print("here", flush=True)
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
    print(json.dumps(sent), flush=True)


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


SECTIONS: list[Section] = []

if __name__ == "__main__":  # the attackers, without all that other studies import
    asyncio.run(attack(int(sys.argv[2]), float(sys.argv[3])))
