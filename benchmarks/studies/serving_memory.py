"""What does an embedding server keep of clients that leave: does its memory grow over many requests?

    python benchmarks/run.py serving-memory [--requests 10000] [--json FILE]

A server of its own process, with an encoder that takes 20 microseconds a text, is asked with 1 to 20 texts of
100 words on both sides, 32 requests at once; every second client leaves after a random time. Memory is the
resident memory of that process after a fifth of the requests, and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from study import Section, machine_record, own_process, write_result

DIM = 384
AT_ONCE = 32
LEAVE_WITHIN_S = 0.1
SECONDS_A_TEXT = 20e-6


class FastEncoder:
    """Stands for an encoder of 384 dimensions."""

    dim, similarity, max_tokens, fingerprint = DIM, "cosine", 256, "fast"

    def encode_queries(self, texts: list[str], *, max_tokens: int | None = None) -> np.ndarray:
        """Give ones after a while."""
        time.sleep(SECONDS_A_TEXT * len(texts))
        return np.ones((len(texts), DIM), dtype=np.float32)

    encode_documents = encode_queries


def serve() -> None:
    """Run the server, and say where it is."""
    from hybridr.serving import embeddings
    from hybridr.serving.application import Server, create_app, listen
    from hybridr.serving.settings import ServeSettings

    embeddings.BATCH_TOKENS = 500
    app = create_app(FastEncoder(), ServeSettings(cache_queries=200))  # type: ignore[arg-type]
    server = Server(app, listen("127.0.0.1", 0))
    print(server.listener.getsockname()[1], flush=True)
    server.run()


async def ask(port: int, body: bytes, leave_after_s: float | None) -> int:
    """Send a request; give the status, or 0 for one that was left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body)
        return int((await asyncio.wait_for(reader.read(), leave_after_s)).split()[1])
    except asyncio.TimeoutError:
        return 0
    finally:
        writer.close()


async def ask_many(port: int, count: int, chance: random.Random) -> list[int]:
    """Send `count` requests; give their statuses, those of clients that never leave at even places."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> int:
        async with room:
            texts = [f"{chance.random()} {'word ' * 100}" for _ in range(chance.randint(1, 20))]
            body = {"model": chance.choice(["x-query", "x-passage"]), "input": texts}
            leave_after_s = chance.uniform(0, LEAVE_WITHIN_S) if number % 2 else None
            return await ask(port, json.dumps(body).encode(), leave_after_s)

    return await asyncio.gather(*(one(number) for number in range(count)))


def ask_server(requests: int, *, seed: int = 5) -> dict[str, Any]:
    """Ask a fresh server; give its memory in bytes, after a fifth and at the end, and what became of all."""
    chance, started = random.Random(seed), time.monotonic()
    command = own_process("serving-memory", "--serve")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        port, of = int(process.stdout.readline()), psutil.Process(process.pid)
        statuses = asyncio.run(ask_many(port, requests // 5, chance))
        before = of.memory_info().rss
        statuses += asyncio.run(ask_many(port, requests - requests // 5, chance))
        shown = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        after, threads = of.memory_info().rss, of.num_threads()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    gone = re.search(r'hybridr_requests_total\{route="/v1/embeddings",status="499"\} ([\d.]+)', shown)
    waiting = re.search(r"^hybridr_queue_texts ([\d.]+)", shown, re.M)
    return {
        "requests": requests,
        "answered": statuses.count(200),
        "left": statuses.count(0),
        "noticed": int(float(gone[1])) if gone else 0,
        "other": len(statuses) - statuses.count(200) - statuses.count(0),
        "waiting": int(float(waiting[1])) if waiting else None,
        "threads": threads,
        "bytes_after_a_fifth": before,
        "bytes_at_the_end": after,
        "growth": after / before - 1,
        "seconds": time.monotonic() - started,
    }


def options(parser: argparse.ArgumentParser) -> None:
    """Take the number of requests."""
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)


def measure(given: argparse.Namespace) -> None:
    """Ask a server and print what became of its memory; or be that server."""
    if given.serve:
        return serve()
    found = {**ask_server(given.requests), "machine": machine_record()}
    print(json.dumps(found, indent=2))
    if given.json:
        write_result(given.json, found)


SECTIONS: list[Section] = []
