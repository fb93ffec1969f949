"""What does a transparent deployment cost while its embedding server is dead, slow or overloaded?

    hybridr node start --name failures --with-ml --heap 1g
    python benchmarks/run.py serving-failures [--node failures] [--requests 200]

An index of 2,000 short documents is deployed by `--way transparent`. In each state of the server, one client
and then 60 at once send `match` queries, each text once, in turn to the deployed index and to the same one
with `?search_pipeline=_none`, which is plain BM25. Told are the quantiles of both in milliseconds, what the
deployment adds to the 99th, and how many of the answers were plain BM25's own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import orjson
import urllib3

from hybridr import connect, reindex
from hybridr.cluster.connection import Cluster, path_of
from hybridr.deploying.deploying import deploy, undeploy
from hybridr.deploying.settings import DeploySettings
from hybridr.exporting.exporting import minilm_encoder
from hybridr.node.state import running_node
from hybridr.search.settings import SearchSettings
from hybridr.serving.settings import ServeSettings
from study import Section, add_json, machine_record, own_process, write_result

INDEX, DOCUMENTS, CLIENTS = "serving-failures", 2_000, (1, 60)
STATES = ("well", "dead", "answers 500", "wants a token", "encoder hangs", "encodes passages", "stopped")
WORDS = [f"{start}{end}" for start in "basket cellar dragon engine falcon".split() for end in range(200)]


def options(parser: argparse.ArgumentParser) -> None:
    """Take the node, and how much is asked."""
    parser.add_argument("--node", default="failures")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES)
    add_json(parser, "serving-failures")
    parser.add_argument("--serve", nargs=3, metavar=("URL", "PORT", "STATE"), help=argparse.SUPPRESS)


def measure(given: argparse.Namespace) -> None:
    """Ask in every state and write what it took; or be the server of a state."""
    if given.serve:
        return serve(*given.serve)
    state = running_node(given.node)
    if state is None:
        raise SystemExit(f"no node '{given.node}' runs")
    cluster = connect(state.url)
    found: dict[str, Any] = {"machine": machine_record()}
    with deployed(cluster) as (index, port):
        for name in given.states:
            with server_in(name, cluster, port):
                found[name] = {
                    f"{clients} clients": race(cluster, index, clients, given.requests) for clients in CLIENTS
                }
                print(json.dumps({name: found[name]}), flush=True)
    write_result(given.json, found)


@contextmanager
def deployed(cluster: Cluster) -> Iterator[tuple[str, int]]:
    """Give a deployed index and the port that its server is expected at; both are removed again."""
    with fill(cluster, INDEX):
        made, port = reindex(cluster, INDEX, minilm_encoder()).destination, free_port()
        with server_in("well", cluster, port):
            address = f"http://127.0.0.1:{port}"
            settings = DeploySettings(
                way="transparent", server=address, set_cluster_settings=True, recall="all"
            )
            deploy(cluster, INDEX, settings, SearchSettings())
        yield made, port
        undeploy(cluster, INDEX)


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


def free_port() -> int:
    """Find a port that nobody listens to."""
    from hybridr.serving.application import listen

    with listen("127.0.0.1", 0) as found:
        return int(found.getsockname()[1])


@contextmanager
def server_in(state: str, cluster: Cluster, port: int) -> Iterator[None]:
    """Let a server in some state answer at the port."""
    if state == "dead":
        yield
    elif state == "answers 500":
        ThreadingHTTPServer.request_queue_size = 1024
        with ThreadingHTTPServer(("127.0.0.1", port), Failing) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield
            server.shutdown()
    else:
        command = own_process("serving-failures", "--serve", cluster.url, str(port), state)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert process.stdout
            assert process.stdout.readline()
            with busy_with_passages(port) if state == "encodes passages" else nullcontext():
                if state == "stopped":
                    os.kill(process.pid, signal.SIGSTOP)
                yield
        finally:
            process.kill()
            process.wait()


class Failing(BaseHTTPRequestHandler):
    """Answers every request with 500."""

    def do_POST(self) -> None:
        """Read and fail."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(500)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def serve(url: str, port: str, state: str) -> None:
    """Run a server in a state, and say when it listens."""
    from hybridr.encoding.opening import load_encoder
    from hybridr.serving.application import Server, create_app, listen

    encoder: Any = load_encoder(minilm_encoder())
    if state == "encoder hangs":
        encoder.read_queries = encoder.encode_queries = lambda *_, **__: threading.Event().wait()
    settings = ServeSettings(index=INDEX, token="new" if state == "wants a token" else None)  # type: ignore[arg-type]
    app = create_app(encoder, settings, cluster=connect(url))
    server = Server(app, listen("127.0.0.1", int(port)), settings)
    print("here", flush=True)
    server.run("critical")


@contextmanager
def busy_with_passages(port: int) -> Iterator[None]:
    """Let five clients send passages without a pause."""
    over = threading.Event()
    texts = [" ".join(random.Random(number).choices(WORDS, k=150)) for number in range(150)]
    body = {"model": "x-passage", "input": texts}

    def send() -> None:
        pool = urllib3.PoolManager()
        while not over.is_set():
            with suppress(urllib3.exceptions.HTTPError):
                pool.request("POST", f"http://127.0.0.1:{port}/v1/embeddings", json=body, retries=False)

    senders = [threading.Thread(target=send, daemon=True) for _ in range(5)]
    for sender in senders:
        sender.start()
    time.sleep(2)
    yield
    over.set()


def race(cluster: Cluster, index: str, clients: int, requests: int) -> dict[str, Any]:
    """Ask the deployed index and plain BM25 in turn; give both in milliseconds."""
    chance = random.Random(f"{clients} {time.time()}")
    pool = urllib3.PoolManager(maxsize=clients)
    turns = [" ".join(chance.choices(WORDS, k=3)) for _ in range(max(requests, 5 * clients))]

    def ask(text: str, params: str) -> tuple[float, list[str]]:
        started = time.perf_counter()
        body = {"query": {"match": {"text": text}}, "_source": False}
        answer = pool.request("POST", f"{cluster.url}/{index}/_search{params}", json=body, retries=False)
        taken = time.perf_counter() - started
        assert answer.status == 200, answer.data
        return 1000 * taken, [hit["_id"] for hit in answer.json()["hits"]["hits"]]

    def both(text: str) -> tuple[float, float, bool]:
        (here, hits), (plain, expected) = ask(text, ""), ask(text, "?search_pipeline=_none")
        return here, plain, hits == expected

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(both, turns[:clients]))  # the first of a connection
        found = list(threads.map(both, turns))
    here, plain = (np.array([one[side] for one in found]) for side in (0, 1))
    quantiles = {f"p{q}": [round(float(np.percentile(one, q)), 1) for one in (here, plain)] for q in (50, 99)}
    added = quantiles["p99"][0] - quantiles["p99"][1]
    return {
        **quantiles,
        "added_p99": round(added, 1),
        "bm25": sum(same for *_, same in found),
        "of": len(found),
    }


SECTIONS: list[Section] = []
