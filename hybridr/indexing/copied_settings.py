"""Which settings of an index its copy gets: those that decide what it finds, and how it is kept.

Only what is named here is copied. A plugin may keep whatever it likes in an index's settings, where its
objects lie or who fills and deletes it: in a copy that is refused, or does to the copy what was meant for the
original.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

COPIED = (
    "allocation.max_retries",
    "analysis.*",
    "analyze.max_token_count",
    "auto_expand_replicas",
    "codec",
    "codec.*",
    "default_pipeline",
    "fielddata.*",
    "final_pipeline",
    "gc_deletes",
    "hidden",
    "highlight.*",
    "indexing.slowlog.*",
    "knn.*",
    "load_fixed_bitset_filters_eagerly",
    "mapping.*",
    "max_*",
    "merge.*",
    "number_of_replicas",
    "number_of_routing_shards",
    "number_of_shards",
    "percolator.*",
    "priority",
    "queries.cache.enabled",
    "query.*",
    "query_string.*",
    "refresh_interval",
    "requests.cache.enable",
    "routing.allocation.enable",
    "routing.allocation.exclude.*",
    "routing.allocation.include.*",
    "routing.allocation.require.*",
    "routing.allocation.total_shards_per_node",
    "routing.rebalance.enable",
    "routing_partition_size",
    "search.*",
    "similarity.*",
    "soft_deletes.*",
    "sort.*",
    "store.preload",
    "translog.*",
    "unassigned.*",
    "write.*",
)
SERVERS = ("creation_date*", "history.uuid", "provided_name", "resize.*", "uuid", "version.*")
"""What the server gives to each index anew."""
OURS = ("knn",)


def copied_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what a copy gets of an index's flat settings, without the prefix `index.`."""
    return {name: value for name, value in bare(settings) if matches(name, COPIED)}


def left_out(settings: Mapping[str, Any]) -> list[str]:
    """Name the settings that somebody gave an index, and that its copy does not get."""
    usual = {("replication.type", "DOCUMENT")}
    return sorted(
        name
        for name, value in bare(settings)
        if not matches(name, (*COPIED, *SERVERS, *OURS)) and (name, value) not in usual
    )


def bare(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Give settings without the prefix `index.`."""
    return ((name.removeprefix("index."), value) for name, value in settings.items())


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tell whether one of the patterns stands for a name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
