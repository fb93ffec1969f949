"""Memories: the past queries that searches of an index remember, in a hidden index beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...search.past_queries import drop_memory, memory_of
from . import Sidecar


@dataclass(frozen=True)
class KeptMemory:
    """How many past queries an index remembers, where; `usable` where all are there, of its encoder."""

    memory: str
    queries: int
    usable: bool


class Memories(Sidecar):
    """Names the hidden indices of past queries; each is of one index alone."""

    name = "memories"
    listed = "memories"
    label = "memory"
    where = "INDEX-hybridr*"

    @staticmethod
    def state(cluster: Cluster, info: IndexInfo) -> KeptMemory | None:
        """Return what the record tells of."""
        if (remembered := info.record.memory) is None:
            return None
        memory = memory_of(info.name)
        there = cluster.count(memory) if cluster.exists(memory) else 0
        return KeptMemory(memory, remembered.queries, info.record.remembers and there == remembered.queries)

    @staticmethod
    def lines(memory: KeptMemory) -> list[str]:
        """Return how many there are, or that searches go without."""
        fine = f"of this index alone, in {memory.memory}"
        where = fine if memory.usable else "NOT USABLE: hybridr learn makes it anew"
        return [f"memory: {memory.queries:,} past queries, {where}"]

    @staticmethod
    def named(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Name the memories that are there."""
        return [memory_of(info.name) for info in infos if cluster.exists(memory_of(info.name))]

    @staticmethod
    def drop(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Delete them."""
        return [memory_of(info.name) for info in infos if drop_memory(cluster, info.name)]
