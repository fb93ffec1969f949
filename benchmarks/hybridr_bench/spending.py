"""What a piece of work takes: seconds, processors on both sides, memory; and what an index is made of."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import psutil

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.embedded.state import node_states
from hybridr.files.local import write_json

NOTED_S = 5.0
NAMES = ("seconds", "client_cpu_s", "node_cpu_s")


class Spent:
    """Seconds since `begin`, with those of earlier tries that were killed: every few seconds they are noted.

    It is called as `Progress`; `stages` has the seconds at which each stage was first heard of.
    """

    def __init__(self, file: Path, node: psutil.Process | None) -> None:
        self.file, self.node = file, node
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self.before = {name: known.get(name, 0.0) for name in NAMES}
        self.tries = known.get("tries", 0) + 1
        self.stages: dict[str, float] = {}
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self.began, self.noted = self.clocks(), time.monotonic()

    def clocks(self) -> dict[str, float]:
        """Read the clock, and the processors' seconds of this process and of the node."""
        node = sum(self.node.cpu_times()[:2]) if self.node else 0.0
        return dict(zip(NAMES, (time.monotonic(), time.process_time(), node), strict=True))

    def taken(self) -> dict[str, float]:
        """Give the seconds since `begin`, with those of earlier tries."""
        now = self.clocks()
        return {name: round(self.before[name] + now[name] - self.began[name], 3) for name in NAMES}

    def note(self) -> dict[str, Any]:
        """Write down and give what was taken, how often it was tried, and the peak of this process."""
        found = {**self.taken(), "tries": self.tries, "peak_mb": round(peak_kib() / 1024, 1)}
        write_json(self.file, found)
        return found

    def __call__(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Hear of progress."""
        now = time.monotonic()
        self.stages.setdefault(stage, round(now - self.began["seconds"], 3))
        if now - self.noted > NOTED_S:
            self.noted = now
            self.note()


def peak_kib() -> int:
    """Give the highest resident memory of this process; Linux counts that of the parent in `ru_maxrss`."""
    try:
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class TimedCluster(Cluster):
    """A connection that adds up the seconds of its requests by what they do; those of threads overlap."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.client, cluster.url)
        self.settings = cluster.settings
        self._lock, self._seconds = Lock(), dict[str, list[float]]()

    def request(self, method: str, path: str, *rest: Any, **options: Any) -> Any:
        """Send a request as every connection does; book its time."""
        began = time.perf_counter()
        try:
            return super().request(method, path, *rest, **options)
        finally:
            kind = path.partition("?")[0].rpartition("/")[2]
            with self._lock:
                self._seconds.setdefault(kind, []).append(time.perf_counter() - began)

    def told(self) -> dict[str, dict[str, float]]:
        """Give number and seconds of the requests by the last part of their path, if it is an action."""
        return {
            kind: {"requests": len(found), "seconds": round(sum(found), 2)}
            for kind, found in self._seconds.items()
            if kind.startswith("_")
        }


def node_of(cluster: Cluster) -> psutil.Process | None:
    """Find the process of the embedded node that a connection leads to; None for another cluster."""
    node = next((one for one in node_states() if one.running and one.url == cluster.url), None)
    return psutil.Process(node.pid) if node else None


def node_memory(cluster: Cluster) -> dict[str, Any]:
    """Tell the heap of all nodes in MB, in use and the peak of the old; of an embedded one all its memory."""
    nodes = cluster.request("GET", "/_nodes/stats/jvm")["nodes"].values()
    memories = [node["jvm"]["mem"] for node in nodes]
    found: dict[str, Any] = {
        "heap_used_mb": sum(one["heap_used_in_bytes"] for one in memories) >> 20,
        "heap_max_mb": sum(one["heap_max_in_bytes"] for one in memories) >> 20,
        "old_peak_mb": sum(one["pools"]["old"]["peak_used_in_bytes"] for one in memories) >> 20,
    }
    process = node_of(cluster)
    if process is not None:
        memory = process.memory_info()
        found |= {"own_mb": (memory.rss - memory.shared) >> 20, "mapped_mb": memory.shared >> 20}
    return found


def size_of(cluster: Cluster, index: str, kinds: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Tell the bytes of an index's primaries on disk, by kinds of files, with its segments and merges."""
    cluster.request("POST", path_of(index, "_flush"))
    path = path_of(index, "_stats", "store,docs,merge,segments")
    stats = cluster.request("GET", path, params={"include_segment_file_sizes": "true"})["_all"]["primaries"]
    files = {ending: one["size_in_bytes"] for ending, one in stats["segments"].get("file_sizes", {}).items()}
    named = {kind: sum(files.get(ending, 0) for ending in endings) for kind, endings in kinds.items()}
    return {
        "documents": stats["docs"]["count"],
        "deleted": stats["docs"]["deleted"],
        "store_bytes": stats["store"]["size_in_bytes"],
        "bytes": {**named, "rest": sum(files.values()) - sum(named.values())},
        "files": files,
        "segments": stats["segments"]["count"],
        "merges": stats["merges"]["total"],
        "merge_s": stats["merges"]["total_time_in_millis"] / 1000,
    }
