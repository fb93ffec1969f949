"""Asking many times: one client or several at once, latencies and throughput, on cores of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hybridr.records import Progress, silent

Ask = Callable[[int], object]
PERCENTILES = (50, 95, 99)


class Timing(NamedTuple):
    """How long each request of one turn took, in milliseconds, and the turn by the clock, in seconds."""

    latencies_ms: tuple[float, ...]
    seconds: float


class Lane:
    """One way to ask, timed in turns; `ask(n)` asks the n-th query and waits for the answer."""

    def __init__(self, name: str, ask: Ask) -> None:
        self.name, self.ask = name, ask
        self.turns: dict[int, list[Timing]] = {}

    def p50(self, clients: int) -> list[float]:
        """Give the median latency of each turn in milliseconds."""
        return [median(turn.latencies_ms) for turn in self.turns[clients]]

    def records(self) -> list[dict[str, Any]]:
        """Give the figures as JSON, one entry for each number of clients."""
        return [self.record(clients) for clients in self.turns]

    def record(self, clients: int) -> dict[str, Any]:
        """Give the figures of one number of clients over all turns."""
        turns = self.turns[clients]
        latencies = np.concatenate([turn.latencies_ms for turn in turns])  # (n,)
        percentiles = np.percentile(latencies, PERCENTILES)
        return {
            "name": self.name,
            "clients": clients,
            "requests": len(latencies),
            **{f"p{p}_ms": round(float(value), 3) for p, value in zip(PERCENTILES, percentiles, strict=True)},
            "per_second": round(len(latencies) / sum(turn.seconds for turn in turns), 2),
        }


class Times(NamedTuple):
    """How much is timed: `requests` in a turn, turns, how many clients ask at once, and turns before that."""

    requests: int = 200
    rounds: int = 5
    clients: tuple[int, ...] = (1, 8)
    warm_up: int = 5


def take_turns(lanes: Sequence[Lane], times: Times, progress: Progress = silent) -> None:
    """Warm every lane up, then time it once in each round, another lane first every time.

    So a machine that slows down slows all lanes; ratios are of medians of the same round. The server compiles
    what it runs often: after one turn of 100 a way through ml-commons takes twice what it takes after ten.
    """
    for lane in lanes:
        for _ in range(times.warm_up):
            time_requests(lane.ask, times.requests, max(times.clients))
    for turn in range(times.rounds):
        for many in times.clients:
            for place in range(len(lanes)):
                lane = lanes[(place + turn) % len(lanes)]
                lane.turns.setdefault(many, []).append(time_requests(lane.ask, times.requests, many))
        progress("rounds", turn + 1, times.rounds)


def time_requests(ask: Ask, requests: int, clients: int) -> Timing:
    """Send `requests`, by `clients` of which each sends its next when it has an answer."""
    numbers = count()

    def client() -> list[float]:
        taken = []
        while (number := next(numbers)) < requests:
            began = time.perf_counter()
            ask(number)
            taken.append(1000 * (time.perf_counter() - began))
        return taken

    started = time.perf_counter()
    if clients == 1:
        return Timing(tuple(client()), time.perf_counter() - started)
    with ThreadPoolExecutor(clients) as pool:
        latencies = [one for work in [pool.submit(client) for _ in range(clients)] for one in work.result()]
    return Timing(tuple(latencies), time.perf_counter() - started)


def ratio(values: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Divide round by round; give the median of the ratios, the least and the most."""
    found = sorted(a / b for a, b in zip(values, others, strict=True))
    return {"median": round(median(found), 3), "least": round(found[0], 3), "most": round(found[-1], 3)}


def difference(values: Sequence[float], others: Sequence[float]) -> float:
    """Subtract round by round and give the median, in milliseconds."""
    return round(median(a - b for a, b in zip(values, others, strict=True)), 3)


@contextmanager
def apart(process: int | None) -> Iterator[bool]:
    """Keep `process` to one half of the cores and this process to the other; give whether that was done.

    Nothing is done with one core, with a process that is not ours, or where the system has no such call.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    before: Mapping[int, set[int]] = {}
    if process is not None and len(cores) > 1:
        half = len(cores) // 2
        try:
            before = {
                thread: os.sched_getaffinity(thread) for thread in (*threads(process), *threads(os.getpid()))
            }
            pin(process, set(cores[half:]))
            pin(os.getpid(), set(cores[:half]))
        except OSError:
            restore(before)
            before = {}
    try:
        yield bool(before)
    finally:
        restore(before)


def threads(process: int) -> list[int]:
    """List the threads of a process."""
    return [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]


def pin(process: int, cores: set[int]) -> None:
    """Keep every thread of a process, and those it starts later, to some cores."""
    for thread in threads(process):
        os.sched_setaffinity(thread, cores)


def restore(before: Mapping[int, set[int]]) -> None:
    """Give threads their cores back; one that has ended needs none."""
    for thread, cores in before.items():
        try:
            os.sched_setaffinity(thread, cores)
        except OSError:
            continue
