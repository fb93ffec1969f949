"""Asks the cluster for a routing value of each shard.

Only the cluster knows where a value leads. The target of a `_shrink` or `_split` routes by a number that no
setting shows, and versions of Elasticsearch compute shards in several ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import ClusterError
from .connection import Cluster
from .record import IndexInfo, Scope
from .routing import routing_values

TRIES = 64
"""Routing values that are tried for each shard, at most."""
NOTHING = {"size": 0, "track_total_hits": False}


def routing_by_shard(cluster: Cluster, info: IndexInfo) -> list[str]:
    """Return a routing value for each shard in an index's scope. Raises ClusterError if there is none.

    Computed values are taken if the cluster leads them to all these shards; else values are tried.
    """

    def reached(values: Sequence[str]) -> int:
        """Return how many shards a search with these routing values asks."""
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
    chosen, covered = list[str](), 0
    for value in [*scope, *map(str, range(TRIES * info.shards))]:
        if covered == shards:
            return chosen
        is_shown = not scope or reached([*scope, value]) == shards
        if is_shown and (more := reached([*chosen, value])) > covered:
            chosen, covered = [*chosen, value], more
    raise ClusterError(
        f"the cluster leads no routing value to {shards - covered} of the {shards} shards of '{info.name}'",
        hint="hybridr doctor",
    )
