"""A node with a write queue of two, which dies and is started again."""

from __future__ import annotations

import threading

import psutil
import pytest

from hybridr import connect
from hybridr.cluster.embedded import process
from hybridr.cluster.settings import NodeSettings

NODE = "chaos"
SMALL = {"thread_pool.write.size": 1, "thread_pool.write.queue_size": 2}
LONGEST_S = 400.0  # the machine may be busy


class ChaosNode:
    """A node that takes few writes at once, and can be killed and started again."""

    def __init__(self) -> None:
        self.kills = 0
        self.too_busy = 0
        self.up = threading.Event()
        self.start()

    def start(self) -> None:
        """Start it on the data it has, at the port it had, and wait until every shard is there."""
        original = process.node_settings
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process, "START_S", LONGEST_S)
            patch.setattr(process, "node_settings", lambda *given: original(*given) | SMALL)
            self.state = process.start(NodeSettings(name=NODE))
        self.cluster = connect(self.state.url)
        query = "?wait_for_status=yellow&wait_for_no_initializing_shards=true&timeout=60s"
        self.cluster.with_patience(60).request("GET", "/_cluster/health" + query)
        self.up.set()

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.count_refusals()
        self.up.clear()
        self.kills += 1
        victim = psutil.Process(self.state.pid)
        victim.kill()
        psutil.wait_procs([victim], timeout=30)

    def count_refusals(self) -> None:
        """Add up the writes that found the queue full (429) since the last start."""
        found = self.cluster.request("GET", "/_nodes/stats/thread_pool")["nodes"].values()
        self.too_busy += sum(each["thread_pool"]["write"]["rejected"] for each in found)

    @property
    def life(self) -> int | None:
        """Tell lives apart: the kills before this one, None while it is down."""
        return self.kills if self.up.is_set() else None

    def excuses(self, life: int | None) -> bool:
        """Tell whether a request that began in this life may have failed: it was none, or has ended."""
        return life is None or self.life != life
