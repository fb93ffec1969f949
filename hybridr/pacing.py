"""Leaves the cluster room: at most so many documents a second, and pauses while searches are slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from .cluster import Cluster
from .errors import ClusterError

CHECK_S = 5.0
LONGEST_PAUSE_S = 30.0
FEWEST_QUERIES = 5  # fewer tell nothing about what users wait for
SLOWER = 5.0  # how many times slower than before counts as slow


class SearchLoad(NamedTuple):
    """What all nodes have searched since they started: shard queries, and milliseconds spent on them."""

    queries: int
    milliseconds: int

    def mean_ms(self, before: SearchLoad) -> float | None:
        """Give milliseconds per query since `before`; None when too few were asked."""
        queries = self.queries - before.queries
        return (self.milliseconds - before.milliseconds) / queries if queries >= FEWEST_QUERIES else None


NO_LOAD = SearchLoad(0, 0)


def search_load(cluster: Cluster) -> SearchLoad:
    """Ask the nodes; nothing is known without the right to, or while they are away."""
    try:
        nodes = cluster.request("GET", "/_nodes/stats/indices/search", patience_s=0.0)["nodes"].values()
    except ClusterError:
        return NO_LOAD
    found = [node["indices"]["search"] for node in nodes]
    return SearchLoad(
        sum(search["query_total"] for search in found),
        sum(search["query_time_in_millis"] for search in found),
    )


class Pace:
    """Says when the next documents may be written; shared by all workers.

    `per_second` limits documents. Searches are slow when they take `slow_ms` on average (0: never) and five
    times what they took before the work began: then it pauses, longer each time until they recover.
    """

    def __init__(
        self,
        per_second: float | None,
        slow_ms: float,
        load: Callable[[], SearchLoad],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._per_second, self._slow_ms = per_second, slow_ms
        self._load, self._clock, self._sleep = load, clock, sleep
        self._lock = Lock()
        self._free_at = self._checked_at = clock()
        self._pause_s = 0.0
        self._before = load() if slow_ms else NO_LOAD
        self._usual_ms = self._before.mean_ms(NO_LOAD) or 0.0

    def wait(self, documents: int) -> None:
        """Wait until that many documents may be written."""
        with self._lock:
            if self._slow_ms:
                self._give_way()
            if self._per_second:
                now = self._clock()
                begin = max(now, self._free_at)
                self._free_at = begin + documents / self._per_second
                if begin > now:
                    self._sleep(begin - now)

    def _give_way(self) -> None:
        if self._clock() - self._checked_at < CHECK_S:
            return
        load = self._load()
        mean_ms, self._before = load.mean_ms(self._before), load
        if mean_ms is not None and mean_ms > max(self._slow_ms, SLOWER * self._usual_ms):
            self._pause_s = min(max(1.0, 2 * self._pause_s), LONGEST_PAUSE_S)
            self._sleep(self._pause_s)
        else:
            self._pause_s /= 2
        self._checked_at = self._clock()
