"""What does the model inside the cluster cost against `hybridr serve` beside it?

    hybridr node start --name ways --with-ml --with-natives --heap 2g
    python benchmarks/run.py query-ways FOLDER [--node ways] [--rounds 3]

FOLDER is a collection in BEIR layout; 100 of its documents are loaded, so that searching costs little beside
encoding the query. No text is asked twice: the server remembers vectors. CPU time is that of the node, and of
the server for `neural`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import urllib3

from hybridr import connect, reindex
from hybridr.cluster.connection import Cluster, path_of
from hybridr.deploying.deploying import deploy, undeploy
from hybridr.deploying.settings import DeploySettings
from hybridr.encoding.machine import read_cpu
from hybridr.exporting.exporting import minilm_encoder
from hybridr.files.formats import read_beir
from hybridr.files.manifest import versions
from hybridr.node.state import running_node
from hybridr.search.settings import SearchSettings
from study import Section, add_json, write_result

INDEX, DOCUMENTS, CLIENTS, WARM_UP = "query-ways", 100, 8, 5
QUERIES = {"one client": 40, "eight clients": 80}


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collection and the node."""
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--node", default="ways")
    parser.add_argument("--rounds", type=int, default=3)
    add_json(parser, "query-ways")


def measure(given: argparse.Namespace) -> None:
    """Ask in turns by both ways and write what it took."""
    state = running_node(given.node)
    if state is None:
        raise SystemExit(f"no node '{given.node}' runs")
    cluster, node = connect(state.url), psutil.Process(state.pid)
    corpus, queries, _ = read_beir(given.folder)
    texts = iter(dict.fromkeys([query.text for query in queries] + [document.title for document in corpus]))
    load(cluster, [document.text for document in corpus[:DOCUMENTS]])
    rounds: list[dict[str, Any]] = []
    try:
        with serving() as (server, url):
            for _ in range(given.rounds):
                for way, processes in (("local", [node]), ("neural", [node, server])):
                    rounds.append({"way": way, **measure_way(cluster, way, url, processes, texts)})
                    print(rounds[-1], flush=True)
    finally:
        for info in cluster.indices(f"{INDEX}*"):
            cluster.request("DELETE", path_of(info.name))
    write_result(
        given.json,
        {
            "machine": {"cpu": read_cpu().model, "cores": os.cpu_count()},
            "versions": versions(),
            "collection": given.folder.name,
            "documents": DOCUMENTS,
            "queries": QUERIES,
            "rounds": rounds,
        },
    )


def load(cluster: Cluster, texts: list[str]) -> None:
    """Make the index with its vectors."""
    cluster.request("PUT", path_of(INDEX), {"mappings": {"properties": {"text": {"type": "text"}}}})
    lines = [line for text in texts for line in ({"index": {}}, {"text": text})]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    cluster.request("POST", path_of(INDEX, "_bulk"), body, {"refresh": "true"})
    reindex(cluster, INDEX, minilm_encoder())


@contextmanager
def serving() -> Iterator[tuple[psutil.Process, str]]:
    """Run `hybridr serve` for the length of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "hybridr_cli", "serve"]
    command += ["--encoder", str(minilm_encoder()), "--port", str(port)]
    with psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            pool = urllib3.PoolManager(retries=urllib3.Retry(connect=100, backoff_factor=0.1, backoff_max=1))
            pool.request("GET", f"{url}/healthz")
            yield process, url
        finally:
            process.terminate()


def measure_way(
    cluster: Cluster, way: str, url: str, processes: list[psutil.Process], texts: Iterator[str]
) -> dict[str, Any]:
    """Deploy one way, ask by one client and by eight, and take it away."""
    done = deploy(
        cluster, INDEX, DeploySettings(way=way, server=url, set_cluster_settings=True), SearchSettings()
    )
    shape = json.loads(done.example)

    def ask(text: str) -> float:
        body = json.loads(json.dumps(shape))
        match, neural = body["query"]["hybrid"]["queries"]
        match["match"]["text"] = neural["neural"]["hybridr_vector"]["query_text"] = text
        started = time.perf_counter()
        cluster.request("POST", path_of(done.index, "_search"), body)
        return time.perf_counter() - started

    try:
        for _ in range(WARM_UP):
            ask(next(texts))
        return {
            name: timed(ask, [next(texts) for _ in range(count)], clients, processes)
            for (name, count), clients in zip(QUERIES.items(), (1, CLIENTS), strict=True)
        }
    finally:
        undeploy(cluster, INDEX)


def timed(ask: Any, texts: list[str], clients: int, processes: list[psutil.Process]) -> dict[str, float]:
    """Ask all texts; give queries per second, the median in ms and CPU ms per query."""
    before, started = cpu_seconds(processes), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        seconds = list(pool.map(ask, texts))
    wall, cpu = time.perf_counter() - started, cpu_seconds(processes) - before
    return {
        "queries_per_second": round(len(texts) / wall, 1),
        "median_ms": round(1000 * statistics.median(seconds), 1),
        "cpu_ms_per_query": round(1000 * cpu / len(texts), 1),
    }


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """Sum the CPU time that processes took so far."""
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


SECTIONS: list[Section] = []
