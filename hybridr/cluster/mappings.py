"""Finds the limits of an index and its cluster (fields, shards, windows, blocks) that would stop a job.
Compares the mapping of a copy with that of its source, and adds the fields that the copy lacks.

The settings of an index come with its description (`IndexInfo`). Those of the cluster need the right
`cluster:monitor/state`. Without it they are unknown, and no job is refused because of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
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
"""Defaults of OpenSearch. Elasticsearch's default allows more nested fields."""
CLAUSE_COUNT = "indices.query.bool.max_clause_count"
USUAL_CLAUSES = 1_024
SHARDS_PER_NODE = "cluster.max_shards_per_node"
USUAL_SHARDS_PER_NODE = 1_000
ALLOCATED_PER_NODE = "routing.allocation.total_shards_per_node"  # of a cluster, and of an index
ALLOCATION = "routing.allocation.enable"  # of a cluster, and of an index
INDEX_BLOCKS = ("read_only", "read_only_allow_delete", "metadata", "read")
"""Blocks that stop reading an index, or changing its mapping and aliases."""
ALLOWING_BLOCKS = ("read_only", "metadata", "read")
"""The same in Elasticsearch, where `read_only_allow_delete` allows changes of a mapping."""
IN_PLACE_BLOCKS = (*INDEX_BLOCKS, "write")
USUAL_WINDOW = 200
"""Hits per shard that a search of hybridr usually rescores."""
CLUSTER_BLOCKS = ("cluster.blocks.read_only", "cluster.blocks.read_only_allow_delete")
CREATE_BLOCK = "cluster.blocks.create_index"
UNITS = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50}
WATERMARK = "cluster.routing.allocation.disk.watermark.flood_stage"
HIGH_WATERMARK = "cluster.routing.allocation.disk.watermark.high"
THRESHOLD = "cluster.routing.allocation.disk.threshold_enabled"


def watermark_of(settings: Mapping[str, str], name: str) -> str:
    """Return a disk watermark of the cluster: how full a disk may be (`95%`), or the space to keep free
    (`10gb`). `100%` if watermarks are off.
    """
    if str(settings.get(THRESHOLD)).lower() == "false":
        return "100%"
    return settings.get(name, "95%" if name == WATERMARK else "90%")


def bytes_kept_free(settings: Mapping[str, str], name: str, total: int) -> int:
    """Return the bytes of a disk that a watermark keeps free, at most Elasticsearch's `max_headroom`."""
    reserve = reserved_bytes(watermark_of(settings, name), total)
    headroom = settings.get(f"{name}.max_headroom", "-1")
    return reserve if headroom == "-1" else min(reserve, reserved_bytes(headroom, total))


def reserved_bytes(watermark: str, total: int) -> int:
    """Return the bytes of a disk of `total` bytes that a watermark (`95%`, `0.95` or `10gb`) keeps free."""
    text = watermark.strip().lower()
    if text.endswith("%"):
        return round(total * (1 - float(text[:-1]) / 100))
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgtp]?b)", text)
    return round(float(match[1]) * UNITS[match[2]]) if match else round(total * (1 - float(text)))


def index_limit(info: IndexInfo, setting: str) -> int:
    """Return the value of a limit of an index: the index's own setting, else the default."""
    if (value := info.settings.get(setting)) is not None:
        return int(value)
    return info.result_window if setting == RESCORE_WINDOW else DEFAULTS[setting]


def rescore_window(info: IndexInfo) -> int:
    """Return how many hits of a shard one `rescore` may score again."""
    return index_limit(info, RESCORE_WINDOW)


def narrow_window_warnings(info: IndexInfo) -> list[str]:
    """Return a list of one warning if the index's windows are too narrow for usual searches, else none."""
    window = min(rescore_window(info), info.result_window)
    if window >= USUAL_WINDOW:
        return []
    name = RESULT_WINDOW if info.result_window == window else RESCORE_WINDOW
    return [
        f"{name} is {window}: searches score no more than {window} hits of a shard by meaning, where "
        f"{USUAL_WINDOW} are usual; what ranks below keeps the order in which it was found. Raise it: "
        f"{index_put('INDEX', name, str(USUAL_RESULT_WINDOW))} in the source before, in the copy after"
    ]


def mapping_size(properties: Mapping[str, Any], depth: int = 1, *, is_stored: bool = False) -> dict[str, int]:
    """Return limit setting -> the value that a mapping needs (fields, nested fields, depth, name length).

    Objects, multi-fields and aliases count as fields, as in OpenSearch. In a mapping that the cluster has
    stored, a name with a dot is one field (`subobjects: false`). In a new mapping each dot makes an object.
    """
    fields = nested = longest = 0
    deepest = depth if properties else 0
    for path, field in properties.items():
        names, multi = [path] if is_stored else path.split("."), field.get("fields", {})
        inner = mapping_size(field.get("properties", {}), depth + len(names), is_stored=is_stored)
        fields += len(names) + inner[TOTAL_FIELDS] + len(multi)
        nested += inner[NESTED_FIELDS] + (field.get("type") == "nested")
        deepest = max(deepest, depth + len(names) - 1, inner[MAPPING_DEPTH])
        longest = max(longest, inner[FIELD_NAME_LENGTH], *map(len, (*names, *multi)))
    counts = (fields, nested, deepest, longest)
    return dict(zip((TOTAL_FIELDS, NESTED_FIELDS, MAPPING_DEPTH, FIELD_NAME_LENGTH), counts, strict=True))


def stored_size(info: IndexInfo) -> dict[str, int]:
    """Return `mapping_size` of an index's mapping; fields that searches compute count as fields too."""
    size = mapping_size(info.properties, is_stored=True)
    computed = sum(len(info.mappings.get(section, {})) for section in COMPUTED)
    return size | {TOTAL_FIELDS: size[TOTAL_FIELDS] + computed}


SUMMED = (TOTAL_FIELDS, NESTED_FIELDS)
"""Limits of a whole mapping; the others apply to each field or each document."""


def raised_limits(
    source: IndexInfo, copy: IndexInfo | None, added: Mapping[str, Any], nested_objects: int = 0
) -> dict[str, str]:
    """Return the settings that a copy of an index needs so that it can take every document of its source.

    `copy` None means a new index with the settings of the source. `added` holds the copy's extra fields,
    `nested_objects` counts the extra nested objects of a document. A limit that the source leaves at its
    default is raised only for the copy's own fields.
    """
    target = copy or source
    sizes, growth = stored_size(source), mapping_size(added)
    needed = {NESTED_OBJECTS: index_limit(source, NESTED_OBJECTS) + nested_objects}
    for name, size in growth.items():
        bound = index_limit(source, name)
        needed[name] = max(bound, sizes[name]) + size if name in SUMMED else max(bound, size)
    return {
        name: str(value)
        for name, value in needed.items()
        if value > index_limit(target, name)
        and (name in source.settings or sizes.get(name, 0) + growth.get(name, 0) > index_limit(target, name))
    }


@dataclass(frozen=True)
class Obstacle:
    """A limit that would stop a job: the setting, its value, the needed value, and the remedy."""

    setting: str
    value: str
    needed: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.setting} is {self.value}, needed: {self.needed}"


def require_no_obstacle(obstacles: Iterable[Obstacle], job: str) -> None:
    """Raise ClusterError if there are obstacles to `job`; the message names each with its remedy."""
    obstacle_list = list(obstacles)
    if obstacle_list:
        problems = "; ".join(map(str, obstacle_list))
        remedies = "; ".join(dict.fromkeys(obstacle.remedy for obstacle in obstacle_list))
        raise ClusterError(f"limits would stop {job}: {problems}", hint=remedies)


def index_put(index: str, setting: str, value: str) -> str:
    """Return the request, as text for people, that changes a setting of an index."""
    return f'PUT /{index}/_settings {{"{setting}": {value}}}'


def cluster_put(setting: str, value: str) -> str:
    """Return the request, as text for people, that changes a setting of the cluster."""
    return f'PUT /_cluster/settings {{"persistent": {{"{setting}": {value}}}}}'


def mapping_obstacles(info: IndexInfo, added: Mapping[str, Any]) -> list[Obstacle]:
    """Return the limits that keep an index from getting the fields `added`.

    Without `added` fields: the limits that forbid any change of its mapping, since the index may already
    exceed one.
    """
    size = stored_size(info)
    new_fields = {name: field for name, field in added.items() if name not in info.properties}
    growth = mapping_size(new_fields)
    needed = {
        name: size[name] + growth[name] if name in SUMMED else max(size[name], growth[name]) for name in size
    }
    obstacles = []
    for name, value in needed.items():
        bound, wish = index_limit(info, name), f"{value:,} for '{info.name}'"
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


def alias_obstacles(cluster: Cluster, info: IndexInfo) -> list[Obstacle]:
    """Return the blocks of an index that forbid moving its aliases or writing the `_meta` of its mapping."""
    return block_obstacles(info, INDEX_BLOCKS if cluster.dialect.name == "plain" else ALLOWING_BLOCKS)


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


def script_obstacles(settings: Mapping[str, Any]) -> list[Obstacle]:
    """Return the settings, from the configuration of nodes, that forbid inline scripts in updates."""
    allowing = {"script.allowed_types": ("inline", "both"), "script.allowed_contexts": ("update",)}
    remedy = (
        "script.allowed_types: inline and script.allowed_contexts: update, in the configuration of each node"
    )
    return [
        Obstacle(name, " ".join(values), f"one of {', '.join(needed)}", remedy)
        for name, needed in allowing.items()
        if (values := settings.get(name)) and not {*needed} & {*values}
    ]


def clause_limit(cluster: Cluster) -> int:
    """Return how many clauses a query may have; the default value if this user may not read the setting.

    Elasticsearch computes its limit from the heap; it is above the default.
    """
    try:
        settings = cluster_settings(cluster)
    except ClusterError:
        return USUAL_CLAUSES
    return int(settings.get(CLAUSE_COUNT, USUAL_CLAUSES))


@dataclass(frozen=True)
class Shards:
    """Counts of a cluster: shards of all indices, shards that are assigned to nodes, and data nodes."""

    all: int
    assigned: int
    data_nodes: int


def shard_counts(cluster: Cluster) -> Shards:
    """Return the shard counts of a cluster. Raises AccessDenied."""
    health = cluster.request("GET", path_of("_cluster", "health"))
    assigned = health["active_shards"] + health["initializing_shards"]
    return Shards(assigned + health["unassigned_shards"], assigned, health["number_of_data_nodes"])


def copies_per_shard(settings: Mapping[str, Any]) -> int:
    """Return how many copies of each shard (primary and replicas) these flat index settings ask for.

    Auto-expanded replicas do not count, since no limit applies to them when an index is created.
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

    `index` holds its flat settings. `primaries` counts its new primary shards, `added` all its new shards
    with replicas.
    """
    obstacles = []
    nodes = max(1, shards.data_nodes)
    on_nodes = f"on {nodes} data node" + "s" * (nodes > 1)
    per_node = int(settings.get(SHARDS_PER_NODE, USUAL_SHARDS_PER_NODE))
    if added > max(0, room_for_shards(settings, shards)):
        request = cluster_put(SHARDS_PER_NODE, str(-(-(shards.all + added) // nodes)))
        value = f"{per_node:,} {on_nodes}, where {shards.all:,} shards are open"
        needed = f"room for {added:,} more"
        remedy = f"hybridr remove NAME deletes indices that hybridr status names, or {request}"
        obstacles.append(Obstacle(SHARDS_PER_NODE, value, needed, remedy))
    name = f"cluster.{ALLOCATED_PER_NODE}"
    limit = int(settings.get(name, -1))
    if limit > 0 and primaries and shards.assigned + primaries > limit * nodes:
        value = f"{limit:,} {on_nodes}, which hold {shards.assigned:,} shards"
        needed = f"room for {primaries:,} more"
        obstacles.append(Obstacle(name, value, needed, cluster_put(name, "null")))
    index_value, cluster_value = index.get(f"index.{ALLOCATION}"), settings.get(f"cluster.{ALLOCATION}")
    if primaries and (index_value or cluster_value) == "none":
        name = f"index.{ALLOCATION}" if index_value else f"cluster.{ALLOCATION}"
        remedy = index_put("SOURCE", name, "null") if index_value else cluster_put(name, "null")
        obstacles.append(Obstacle(name, "none", "new_primaries or all, for a new index", remedy))
    return obstacles


Fields = Mapping[str, Mapping[str, Any]]
INNER_KEYS = ("properties", "fields")
ROOT_KEYS = ("dynamic", "dynamic_templates", "date_detection", "numeric_detection", "dynamic_date_formats")
"""Keys of a mapping that apply to fields not mapped yet."""
COMPUTED = ("runtime", "derived")
"""Sections of a mapping whose fields are computed by each search: Elasticsearch's, OpenSearch's."""
CHANGEABLE = frozenset(
    "properties fields boost coerce copy_to dynamic eager_global_ordinals fielddata "
    "fielddata_frequency_filter ignore_above ignore_malformed max_input_length meta search_analyzer "
    "search_quote_analyzer split_queries_on_whitespace".split()
)
"""Parameters of a field that OpenSearch can change in an index with documents."""
IMPLIED = {"analyzer": "default"}  # shown only if the search analyser differs
ANALYSIS = "index.analysis"


def extend_copy_mapping(cluster: Cluster, source: IndexInfo, copy: IndexInfo) -> None:
    """Extend a copy's mapping to that of its source; `differing_fields` names what cannot be added.

    Limits are raised to those of the source, with room for the copy's own fields.
    """
    own_fields = {name: field for name, field in copy.properties.items() if name not in source.properties}
    passages = copy.record.passages
    if limits := raised_limits(source, copy, own_fields, passages.most if passages else 0):
        cluster.request("PUT", path_of(copy.name, "_settings"), limits)
    fields = addable_fields(source.properties, copy.properties)
    changes = {
        name: source.mappings[name]
        for name in ROOT_KEYS
        if name in source.mappings and source.mappings[name] != copy.mappings.get(name)
    }
    for section in COMPUTED:
        stored = copy.mappings.get(section, {})
        needed = source.mappings.get(section, {}).items()
        if differences := {name: field for name, field in needed if stored.get(name) != field}:
            changes[section] = differences
    if not (fields or changes):
        return
    if put_mapping(cluster, copy, changes | {"properties": fields}):
        return
    # A single refused field, say with an analyser that the copy lacks, makes the whole request fail.
    field_changes = ({"properties": {name: field}} for name, field in fields.items())
    for change in [*({name: value} for name, value in changes.items()), *field_changes]:
        put_mapping(cluster, copy, change)


def add_missing_fields(
    cluster: Cluster, target: IndexInfo, info: IndexInfo, ignored: Collection[str]
) -> None:
    """Add the fields that `target` has and `info` lacks to the mapping of `info`, except those `ignored`."""
    candidates = {name: field for name, field in target.properties.items() if name not in ignored}
    missing = {"properties": missing_fields(candidates, info.properties)}
    for section in COMPUTED:
        stored = info.mappings.get(section, {})
        missing[section] = missing_fields(target.mappings.get(section, {}), stored)
    added = {name: field for fields in missing.values() for name, field in fields.items()}
    if added and (limits := raised_limits(info, None, added)):
        cluster.request("PUT", path_of(info.name, "_settings"), limits)
    for section, fields in missing.items():
        for name, field in fields.items():
            put_mapping(cluster, info, {section: {name: field}})


def missing_fields(needed: Fields, existing: Fields) -> dict[str, Any]:
    """Return the `needed` fields that do not exist; for an existing object its missing inner fields."""
    missing: dict[str, Any] = {}
    for name, field in needed.items():
        mapping = existing.get(name)
        if mapping is None:
            missing[name] = field
        elif inner := missing_fields(field.get("properties", {}), mapping.get("properties", {})):
            missing[name] = without_inner_fields(mapping) | {"properties": inner}
    return missing


def put_mapping(cluster: Cluster, info: IndexInfo, mapping: dict[str, Any]) -> bool:
    """Add to the mapping of an index; return False if the cluster refuses the change."""
    try:
        cluster.request("PUT", path_of(info.name, "_mapping"), mapping)
    except ClusterError as error:
        if error.status != 400:
            raise
        return False
    return True


def addable_fields(needed: Fields, existing: Fields) -> dict[str, Any]:
    """Return the `needed` fields that are missing or mapped differently, if they can be added or changed."""
    added: dict[str, Any] = {}
    for name, field in needed.items():
        mapping = existing.get(name)
        if mapping is None:
            added[name] = field
        elif is_changeable(field, mapping):
            inner = {part: addable_fields(field.get(part, {}), mapping.get(part, {})) for part in INNER_KEYS}
            inner_changes = {part: fields for part, fields in inner.items() if fields}
            if inner_changes or without_inner_fields(field) != without_inner_fields(mapping):
                added[name] = without_inner_fields(field) | inner_changes
    return added


def differing_fields(source: IndexInfo, copy: IndexInfo) -> tuple[str, ...]:
    """Return the names of fields that a copy lacks or maps differently; `index.analysis` if that differs."""
    sections = ("properties", *COMPUTED)
    pairs = [(source.mappings.get(section, {}), copy.mappings.get(section, {})) for section in sections]
    fields = tuple(sorted({name for pair in pairs for name in differing_names(*pair)}))
    return fields if analysis_of(source) == analysis_of(copy) else (*fields, ANALYSIS)


def differing_names(needed: Fields, existing: Fields, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of `needed` fields that are missing or mapped differently."""
    for name, field in needed.items():
        mapping = existing.get(name)
        if mapping is None or without_inner_fields(field) != without_inner_fields(mapping):
            yield prefix + name
        else:
            for part in INNER_KEYS:
                yield from differing_names(field.get(part, {}), mapping.get(part, {}), f"{prefix}{name}.")


def is_incompatible(source: IndexInfo, copy: IndexInfo) -> bool:
    """Return whether a copy cannot index documents as its source does, however its mapping is changed."""
    return analysis_of(source) != analysis_of(copy) or has_clash(source.properties, copy.properties)


def has_clash(needed: Fields, existing: Fields) -> bool:
    """Return whether a `needed` field exists in a form that cannot be changed into the needed form."""
    return any(
        name in existing
        and (
            not is_changeable(field, existing[name])
            or any(has_clash(field.get(part, {}), existing[name].get(part, {})) for part in INNER_KEYS)
        )
        for name, field in needed.items()
    )


def is_changeable(field: Mapping[str, Any], mapping: Mapping[str, Any]) -> bool:
    """Return whether OpenSearch can change `mapping` into `field`: only changeable parameters differ."""
    names = (field.keys() | mapping.keys()) - CHANGEABLE
    return all(field.get(name, IMPLIED.get(name)) == mapping.get(name, IMPLIED.get(name)) for name in names)


def without_inner_fields(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping of a field without the fields inside it (`properties`, `fields`)."""
    return {name: value for name, value in field.items() if name not in INNER_KEYS}


def analysis_of(info: IndexInfo) -> dict[str, Any]:
    """Return the analysis settings of an index (analysers, tokenisers, filters)."""
    return {name: value for name, value in info.settings.items() if name.startswith(f"{ANALYSIS}.")}
