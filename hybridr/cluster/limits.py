"""Limits of an index and its cluster (fields, shards, windows, blocks), and which of them would stop some
work.

The settings of an index come with its description (`IndexInfo`). Those of the cluster need the right
`cluster:monitor/state`; without it they are unknown, and nothing is refused because of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ClusterError
from .connection import Cluster, path_of
from .record import RESULT_WINDOW, USUAL_RESULT_WINDOW, IndexInfo

TOTAL_FIELDS = "index.mapping.total_fields.limit"
NESTED_FIELDS = "index.mapping.nested_fields.limit"
NESTED_OBJECTS = "index.mapping.nested_objects.limit"
MAPPING_DEPTH = "index.mapping.depth.limit"
FIELD_NAME_LENGTH = "index.mapping.field_name_length.limit"
RESCORE_WINDOW = "index.max_rescore_window"
TERMS_COUNT = "index.max_terms_count"
ANALYZED_OFFSET = "index.highlight.max_analyzed_offset"
DEFAULTS = {
    TOTAL_FIELDS: 1_000,
    NESTED_FIELDS: 50,
    NESTED_OBJECTS: 10_000,
    MAPPING_DEPTH: 20,
    FIELD_NAME_LENGTH: 2**31 - 1,
    RESULT_WINDOW: USUAL_RESULT_WINDOW,
    TERMS_COUNT: 65_536,
    ANALYZED_OFFSET: 1_000_000,
}
"""Of OpenSearch. Elasticsearch allows more nested fields; what is set by hand is set on both."""
CLAUSE_COUNT = "indices.query.bool.max_clause_count"
USUAL_CLAUSES = 1_024
SHARDS_PER_NODE = "cluster.max_shards_per_node"
USUAL_SHARDS_PER_NODE = 1_000
ALLOCATED_PER_NODE = "routing.allocation.total_shards_per_node"  # of a cluster, and of an index
ALLOCATION = "routing.allocation.enable"  # of a cluster, and of an index
INDEX_BLOCKS = ("read_only", "read_only_allow_delete", "metadata", "read")
"""Blocks of an index that is read, and whose mapping gets a note."""
ALLOWING_BLOCKS = ("read_only", "metadata", "read")
"""The same in Elasticsearch, where `read_only_allow_delete` lets a mapping grow."""
IN_PLACE_BLOCKS = (*INDEX_BLOCKS, "write")
USUAL_WINDOW = 200
"""Hits of a shard that a usual search of hybridr scores again."""
CLUSTER_BLOCKS = ("cluster.blocks.read_only", "cluster.blocks.read_only_allow_delete")
CREATE_BLOCK = "cluster.blocks.create_index"


def limit(info: IndexInfo, setting: str) -> int:
    """Return the value of a limit of an index: the index's own setting, else the default."""
    if (value := info.settings.get(setting)) is not None:
        return int(value)
    return info.result_window if setting == RESCORE_WINDOW else DEFAULTS[setting]


def rescore_window(info: IndexInfo) -> int:
    """Return how many hits of a shard one `rescore` may score again."""
    return limit(info, RESCORE_WINDOW)


def narrow_windows(info: IndexInfo) -> list[str]:
    """Return a warning, as a list of lines, if the index's windows are too narrow for usual searches."""
    window = min(rescore_window(info), info.result_window)
    if window >= USUAL_WINDOW:
        return []
    name = RESULT_WINDOW if info.result_window == window else RESCORE_WINDOW
    return [
        f"{name} is {window}: searches score no more than {window} hits of a shard by meaning, where "
        f"{USUAL_WINDOW} are usual; what ranks below keeps the order in which it was found. Raise it: "
        f"{index_put('INDEX', name, str(USUAL_RESULT_WINDOW))} in the source before, in the copy after"
    ]


def mapping_size(properties: Mapping[str, Any], depth: int = 1) -> dict[str, int]:
    """Return limit setting -> the value that a mapping needs (fields, nested fields, depth, name length).

    Fields are counted as OpenSearch does: objects, multi-fields and aliases too.
    """
    fields = nested = longest = 0
    deepest = depth if properties else 0
    for path, field in properties.items():
        names, multi = path.split("."), field.get("fields", {})  # a dot makes objects
        inner = mapping_size(field.get("properties", {}), depth + len(names))
        fields += len(names) + inner[TOTAL_FIELDS] + len(multi)
        nested += inner[NESTED_FIELDS] + (field.get("type") == "nested")
        deepest = max(deepest, depth + len(names) - 1, inner[MAPPING_DEPTH])
        longest = max(longest, inner[FIELD_NAME_LENGTH], *map(len, (*names, *multi)))
    counts = (fields, nested, deepest, longest)
    return dict(zip((TOTAL_FIELDS, NESTED_FIELDS, MAPPING_DEPTH, FIELD_NAME_LENGTH), counts, strict=True))


COUNTED = (TOTAL_FIELDS, NESTED_FIELDS)
"""Limits of what a mapping has in all; the others are of each field, or of each document."""


def raised_limits(
    source: IndexInfo, copy: IndexInfo | None, added: Mapping[str, Any], nested_objects: int = 0
) -> dict[str, str]:
    """Return the settings that a copy of an index needs so that it can take every document of its source.

    `copy` None means a new index with the settings of the source. `added` are the fields that the copy has
    besides, `nested_objects` how many nested objects a document gets besides. A limit that the source leaves
    at its default is raised only for the copy's own fields.
    """
    there = copy or source
    used, more = mapping_size(properties_of(source)), mapping_size(added)
    needed = {NESTED_OBJECTS: limit(source, NESTED_OBJECTS) + nested_objects}
    for name, size in more.items():
        bound = limit(source, name)
        needed[name] = max(bound, used[name]) + size if name in COUNTED else max(bound, size)
    return {
        name: str(value)
        for name, value in needed.items()
        if value > limit(there, name)
        and (name in source.settings or used.get(name, 0) + more.get(name, 0) > limit(there, name))
    }


def properties_of(info: IndexInfo) -> Mapping[str, Any]:
    """Return field name -> mapping, for the top-level fields of an index."""
    properties: Mapping[str, Any] = info.mappings.get("properties", {})
    return properties


@dataclass(frozen=True)
class Obstacle:
    """A limit that would stop the work: the setting, its value, what is needed, and the request that
    helps.
    """

    setting: str
    value: str
    needed: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.setting} is {self.value}, needed: {self.needed}"


def require_none(obstacles: Iterable[Obstacle], what: str) -> None:
    """Raise ClusterError if there are obstacles to `what`; the message names each with its remedy."""
    listed = list(obstacles)
    if listed:
        named = "; ".join(map(str, listed))
        remedies = "; ".join(dict.fromkeys(obstacle.remedy for obstacle in listed))
        raise ClusterError(f"limits would stop {what}: {named}", hint=remedies)


def index_put(index: str, setting: str, value: str) -> str:
    """Return the request, as text for people, that changes a setting of an index."""
    return f'PUT /{index}/_settings {{"{setting}": {value}}}'


def cluster_put(setting: str, value: str) -> str:
    """Return the request, as text for people, that changes a setting of the cluster."""
    return f'PUT /_cluster/settings {{"persistent": {{"{setting}": {value}}}}}'


def mapping_obstacles(info: IndexInfo, added: Mapping[str, Any]) -> list[Obstacle]:
    """Return the limits that keep an index from getting the fields `added` beside its own.

    With no `added` fields: those that keep it from any change of its mapping, since a limit may be below what
    the index has.
    """
    there = mapping_size(properties_of(info))
    new = {name: field for name, field in added.items() if name not in properties_of(info)}
    more = mapping_size(new)
    needed = {
        name: there[name] + more[name] if name in COUNTED else max(there[name], more[name]) for name in there
    }
    obstacles = []
    for name, value in needed.items():
        bound, wish = limit(info, name), f"{value:,} for '{info.name}'"
        if value > bound and (name in info.settings or name != NESTED_FIELDS):
            remedy = index_put(info.name, name, str(value))
            obstacles.append(Obstacle(name, f"{bound:,}", wish, remedy))
    return obstacles


def block_obstacles(info: IndexInfo, blocks: Iterable[str]) -> list[Obstacle]:
    """Return an obstacle for each of these blocks that an index has."""
    names = [f"index.blocks.{block}" for block in blocks]
    return [
        Obstacle(name, "true", f"no such block on '{info.name}'", index_put(info.name, name, "null"))
        for name in names
        if str(info.settings.get(name)).lower() == "true"
    ]


def cluster_settings(cluster: Cluster) -> dict[str, str]:
    """Return the settings of a cluster by flat name, defaults included. Raises AccessDenied."""
    params = {"include_defaults": "true", "flat_settings": "true"}
    layers = cluster.request("GET", "/_cluster/settings", params=params)
    settings: dict[str, str] = {}
    for layer in ("defaults", "persistent", "transient"):
        settings |= layers.get(layer, {})
    return settings


def cluster_obstacles(settings: Mapping[str, str], *, creates: bool) -> list[Obstacle]:
    """Return the blocks of the whole cluster that forbid writing; with `creates` also creating an index."""
    names = [*CLUSTER_BLOCKS, *([CREATE_BLOCK] if creates else [])]
    return [
        Obstacle(name, "true", "false", cluster_put(name, "null"))
        for name in names
        if str(settings.get(name)).lower() == "true"
    ]


def clause_limit(cluster: Cluster) -> int:
    """Return how many clauses a query may have; the default value if this user may not read the setting.

    Elasticsearch works its limit out by its heap, and takes more than the default.
    """
    try:
        settings = cluster_settings(cluster)
    except ClusterError:
        return USUAL_CLAUSES
    return int(settings.get(CLAUSE_COUNT, USUAL_CLAUSES))


@dataclass(frozen=True)
class Shards:
    """Counts of a cluster: shards of all indices, shards that nodes hold, and data nodes."""

    all: int
    held: int
    data_nodes: int


def shards_of(cluster: Cluster) -> Shards:
    """Return the shard counts of a cluster. Raises AccessDenied."""
    health = cluster.request("GET", path_of("_cluster", "health"))
    held = health["active_shards"] + health["initializing_shards"]
    return Shards(held + health["unassigned_shards"], held, health["number_of_data_nodes"])


def copies_of(settings: Mapping[str, Any]) -> int:
    """Return how many copies of each shard (primary and replicas) these flat index settings ask for.

    Replicas that expand by themselves are counted against no limit when an index is created.
    """
    expands = str(settings.get("index.auto_expand_replicas", "false")) != "false"
    return 1 if expands else 1 + int(settings.get("index.number_of_replicas", 1))


def room_for_shards(settings: Mapping[str, str], shards: Shards) -> int:
    """Return how many more shards a cluster may hold."""
    return int(settings.get(SHARDS_PER_NODE, USUAL_SHARDS_PER_NODE)) * max(1, shards.data_nodes) - shards.all


def shard_obstacles(
    settings: Mapping[str, str], shards: Shards, index: Mapping[str, Any], primaries: int, added: int
) -> list[Obstacle]:
    """Return the limits that keep a cluster from holding the new shards of an index.

    `index` are its flat settings, `primaries` its new primary shards, `added` all its new shards with
    replicas.
    """
    obstacles = []
    nodes = max(1, shards.data_nodes)
    on_nodes = f"on {nodes} data node" + "s" * (nodes > 1)
    each = int(settings.get(SHARDS_PER_NODE, USUAL_SHARDS_PER_NODE))
    if added > max(0, room_for_shards(settings, shards)):
        raised = cluster_put(SHARDS_PER_NODE, str(-(-(shards.all + added) // nodes)))
        value = f"{each:,} {on_nodes}, where {shards.all:,} shards are open"
        needed = f"room for {added:,} more"
        remedy = f"hybridr remove NAME deletes indices that hybridr status names, or {raised}"
        obstacles.append(Obstacle(SHARDS_PER_NODE, value, needed, remedy))
    name = f"cluster.{ALLOCATED_PER_NODE}"
    limit = int(settings.get(name, -1))
    if limit > 0 and primaries and shards.held + primaries > limit * nodes:
        value = f"{limit:,} {on_nodes}, which hold {shards.held:,} shards"
        needed = f"room for {primaries:,} more"
        obstacles.append(Obstacle(name, value, needed, cluster_put(name, "null")))
    own, whole = index.get(f"index.{ALLOCATION}"), settings.get(f"cluster.{ALLOCATION}")
    if primaries and (own or whole) == "none":
        name = f"index.{ALLOCATION}" if own else f"cluster.{ALLOCATION}"
        remedy = index_put("SOURCE", name, "null") if own else cluster_put(name, "null")
        obstacles.append(Obstacle(name, "none", "new_primaries or all, for a new index", remedy))
    return obstacles
