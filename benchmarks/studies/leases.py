"""What do 64 workers ask of the leases they share, and do they keep each other waiting?

    python benchmarks/run.py leases [--workers 64] [--shares 8] [--seconds 10] [--url URL] [--json FILE]

Each worker is a thread with connections of its own and all that runs on Ray: leases, pages, bulk requests.
Only the encoder is none: it sleeps, so that a share takes about --seconds, no two the same. --shares is for
each worker. The ideal time is that of all sleep divided by the workers. Requests to the lease index and its
alias count, the driver's among them; the write queue of the node is looked at five times a second.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from hybridr import ReindexSettings, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import Position
from hybridr.cluster.writing import by_bytes, index_action, rejects_of, write
from hybridr.files.manifest import release
from hybridr.progress import silent
from hybridr.reindexing.filling import Fill, ledger_of, next_stretch
from hybridr.reindexing.job import Job, Meter
from hybridr.reindexing.recipe import TextRecipe
from hybridr.reindexing.reindexing import prepare
from hybridr.reindexing.runners.ray import Worker
from hybridr.reindexing.targets.beside import COPYING
from hybridr.sharing import board, leases, shares
from hybridr.sharing.dealing import Done, Leased
from hybridr.standing.standing import remove
from study import Section, machine_record, write_result

INDEX, DOCUMENTS, DIM = "hybridr-leases", 40, 8
SECTIONS: list[Section] = []


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command line takes."""
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--shares", type=int, default=8, help="of each worker")
    parser.add_argument("--seconds", type=float, default=10.0, help="that a share takes")
    parser.add_argument("--url", help="of a cluster; without: the running embedded node")
    parser.add_argument("--json", type=Path)


class Sleeper:
    """Takes its time and gives ones."""

    dim, similarity, max_tokens, fingerprint, slept = DIM, "cosine", 256, "5" * 64, 0.0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        """Sleep as long as these would take, more or less."""
        seconds = self.seconds * len(texts) / DOCUMENTS * random.uniform(0.7, 1.3)
        Sleeper.slept += seconds
        time.sleep(seconds)
        return np.ones((len(texts), DIM), dtype=np.float32)

    encode_queries = encode_documents


class Watch:
    """Counts requests to the lease index by second, who holds what, and how full the write queue is."""

    def __init__(self, cluster: Cluster) -> None:
        self.began, self.asked, self.held = time.monotonic(), Counter[int](), Counter[int]()
        self.twice, self.queue, self.refused = 0, [], 0
        self._cluster, self._guard, self._end = cluster, threading.Lock(), threading.Event()
        self._plain, self._fill = Cluster.request, Worker._fill
        threading.Thread(target=self._look, daemon=True).start()

    def __enter__(self) -> Watch:
        watch, plain, fill = self, self._plain, self._fill

        def request(cluster: Cluster, method: str, path: str, *given: Any, **more: Any) -> Any:
            if path.startswith((path_of(board.lease_index("")), path_of(board.ALIAS))):
                with watch._guard:
                    watch.asked[int(time.monotonic() - watch.began)] += 1
            return plain(cluster, method, path, *given, **more)

        def hold(worker: Worker, errand: Any, holder: Any, lease: board.Lease) -> Done | None:
            with watch._guard:
                watch.held[lease.number] += 1
                watch.twice += watch.held[lease.number] > 1
            try:
                return fill(worker, errand, holder, lease)
            finally:
                with watch._guard:
                    watch.held[lease.number] -= 1

        Cluster.request, Worker._fill = request, hold  # type: ignore[method-assign]
        return self

    def __exit__(self, *given: object) -> None:
        Cluster.request, Worker._fill = self._plain, self._fill  # type: ignore[method-assign]
        self._end.set()

    def _look(self) -> None:
        while not self._end.wait(0.2):
            nodes = self._plain(self._cluster, "GET", "/_nodes/stats/thread_pool")["nodes"].values()
            pools = [node["thread_pool"]["write"] for node in nodes]
            self.queue.append(max(pool["queue"] for pool in pools))
            self.refused = max(self.refused, sum(pool["rejected"] for pool in pools))


def filled(cluster: Cluster, count: int) -> None:
    """Make the source."""
    if cluster.exists(INDEX):
        remove(cluster, INDEX, discard=True) if cluster.exists(f"{INDEX}-hybridr-1") else None
        cluster.request("DELETE", path_of(INDEX))
    body = {"settings": {"number_of_replicas": 0}, "mappings": {"properties": {"text": {"type": "text"}}}}
    cluster.request("PUT", path_of(INDEX), body)
    actions = (index_action(f"d{number}", {"text": f"document {number}"}) for number in range(count))
    for group in by_bytes(actions, 1_000_000):
        write(cluster, INDEX, group, rejects=rejects_of(INDEX))
    cluster.refresh(INDEX)


def run_all(errand: Fill, workers: int) -> None:
    """Do as the crew on Ray does, with threads in the place of processes."""
    assert isinstance(errand.leases, leases.Ledger)
    deal = Leased(errand.leases, workers, errand.meter.add)
    idle = [Worker(release(), 1, []) for _ in range(workers)]
    for worker in idle:
        worker._errand = errand.packed(workers).open(1)
    calls: dict[Future[Any], Worker] = {}
    with ThreadPoolExecutor(workers) as pool:
        while not deal.finished():
            for worker in list(idle):
                if (call := deal.ask(worker)) is not None:
                    idle.remove(worker)
                    calls[pool.submit(worker.lease, *call.given)] = worker
            done = wait(list(calls), timeout=0.2, return_when=FIRST_COMPLETED)[0]
            for future in done:
                worker, answer = calls.pop(future), future.result()
                if not (answer is None or isinstance(answer, Done)):
                    raise answer.error()
                idle.append(worker)
                deal.heard(worker, answer)
            time.sleep(0 if done else 0.05)
        deal.results()


def measure(given: argparse.Namespace) -> int | None:
    """Share out a job among sleepers, and say what it took."""
    shares.SHARE = DOCUMENTS
    cluster, encoder = connect(given.url), Sleeper(given.seconds)
    filled(cluster, given.workers * given.shares * DOCUMENTS)
    settings = ReindexSettings(runner="ray", workers=given.workers, slow_search_ms=0, fields=("text",))
    todo = prepare(cluster, INDEX, encoder, settings)
    recipe = TextRecipe(encoder, settings, ("text",))
    job = Job(cluster, INDEX, todo.destination, recipe, rejects_of(todo.destination))
    ledger = ledger_of(job, COPYING, None)
    stretch = next_stretch(job, Position(), ledger)
    with Watch(cluster) as watch:
        run_all(Fill(job, COPYING, Meter(silent, 0), ledger), given.workers)
        seconds = time.monotonic() - watch.began
    cluster.refresh(todo.destination)
    record = {
        "workers": given.workers,
        "shares": len(stretch.shares),
        "seconds": round(seconds, 1),
        "ideal_seconds": round(Sleeper.slept / given.workers, 1),
        "documents": cluster.count(todo.destination),
        "held_twice": watch.twice,
        "requests": sum(watch.asked.values()),
        "requests_a_second": round(sum(watch.asked.values()) / seconds, 1),
        "busiest_seconds": sorted(watch.asked.values(), reverse=True)[:5],
        "longest_queue": max(watch.queue),
        "longest_with_a_queue_s": round(0.2 * max_run(watch.queue), 1),
        "refused_by_the_queue": watch.refused,
        "machine": machine_record(),
    }
    print({name: value for name, value in record.items() if name != "machine"})
    if given.json:
        write_result(given.json, record)
    remove(cluster, INDEX, discard=True)
    cluster.request("DELETE", path_of(INDEX))
    return None


def max_run(queue: list[int]) -> int:
    """Count the looks in a row that found somebody waiting, at most."""
    return max((len(list(group)) for waiting, group in groupby(queue, bool) if waiting), default=0)
