"""Sidecar memories: the past queries that an index has learnt, in a hidden index beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...search.past_queries import current_memory, drop_memories, list_memories
from . import Sidecar


@dataclass(frozen=True)
class MemoryState:
    """The number of learnt queries of an index, and `memory`, their hidden index; `usable` if all exist and
    were encoded by the index's encoder.
    """

    memory: str
    queries: int
    usable: bool


class Memories(Sidecar):
    """The hidden indices of past queries; each belongs to one index."""

    name = "memories"
    result_key = "memories"
    label = "memory"
    where = "INDEX-hybridr*"
    description = "memory of past queries {}"

    @staticmethod
    def state(cluster: Cluster, info: IndexInfo) -> MemoryState | None:
        """Return the learnt queries that the record names; None without any."""
        if (memory_record := info.record.memory) is None:
            return None
        memory = current_memory(info)
        stored = cluster.count(memory) if cluster.exists(memory) else 0
        usable = info.record.remembers and stored == memory_record.queries
        return MemoryState(memory, memory_record.queries, usable)

    @staticmethod
    def lines(memory: MemoryState) -> list[str]:
        """Return a line with the number of learnt queries, or that they are not usable."""
        where = f"in {memory.memory}" if memory.usable else "NOT USABLE: hybridr learn makes it anew"
        return [f"memory: {memory.queries:,} past queries, {where}"]

    @staticmethod
    def stored_names(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Return the names of the existing hidden indices."""
        return [memory for info in infos for memory in list_memories(cluster, info.name)]

    @staticmethod
    def drop(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Delete the hidden indices; return their names."""
        return [memory for info in infos for memory in drop_memories(cluster, info.name)]
