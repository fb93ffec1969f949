"""Asks the cluster for a routing value of each shard.

Only the cluster knows the shard of a value. An index made by `_shrink` or `_split` routes by a number that no
setting shows, and versions of Elasticsearch compute shards differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import ClusterError
from .connection import Cluster
from .record import IndexInfo, Scope
from .routing import routing_values

TRIES = 64
"""Most routing values that are tried per shard."""
NOTHING = {"size": 0, "track_total_hits": False}


def routing_by_shard(cluster: Cluster, info: IndexInfo) -> list[str]:
    """Return a routing value for each shard in an index's scope. Raises ClusterError if one is missing.

    Computed values are returned if they reach all these shards; else values are tried.
    """

    def reached(values: Sequence[str]) -> int:
        """Return how many shards a search with these routing values reaches."""
        routed = replace(info, scope=Scope(routing=",".join(values)))
        [answer] = cluster.msearch(routed, [NOTHING])
        with cluster.reading_answer("_msearch"):
            return int(answer["_shards"]["total"])

    values = routing_values(info)
    if info.shards == 1:
        return values
    scope = info.scope.routing.split(",") if info.scope.routing else []
    shards = reached(scope) if scope else info.shards
    if len(values) == shards == reached(values) and (not scope or reached([*scope, *values]) == shards):
        return values
    selection, count = list[str](), 0
    for value in [*scope, *map(str, range(TRIES * info.shards))]:
        if count == shards:
            return selection
        is_in_scope = not scope or reached([*scope, value]) == shards
        if is_in_scope and (new_count := reached([*selection, value])) > count:
            selection, count = [*selection, value], new_count
    raise ClusterError(
        f"the cluster leads no routing value to {shards - count} of the {shards} shards of '{info.name}'",
        hint="hybridr doctor",
    )
