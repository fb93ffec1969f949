"""Checks before a new index is made: templates, policies, roles, shard limits, disk space, language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..cluster.connection import Cluster, json_bytes, path_of
from ..cluster.destinations import destination_pattern
from ..cluster.mappings import (
    DEFAULTS,
    HIGH_WATERMARK,
    SHARDS_PER_NODE,
    WATERMARK,
    Obstacle,
    bytes_kept_free,
    cluster_obstacles,
    cluster_put,
    cluster_settings,
    copies_per_shard,
    index_put,
    require_no_obstacle,
    room_for_shards,
    script_obstacles,
    shard_counts,
    shard_obstacles,
    watermark_of,
)
from ..cluster.record import IndexInfo
from ..encoders.registry import knows_language, suggested_encoders
from ..errors import AccessDenied, ClusterError, ModelError
from ..languages import foreign_language

COPIED = (
    "allocation.max_retries analysis.* analyze.max_token_count auto_expand_replicas codec codec.* "
    "default_pipeline fielddata.* final_pipeline gc_deletes hidden highlight.* indexing.slowlog.* "
    "knn.* load_fixed_bitset_filters_eagerly mapping.* max_* merge.* number_of_replicas "
    "number_of_routing_shards number_of_shards percolator.* priority queries.cache.enabled query.* "
    "query_string.* refresh_interval requests.cache.enable routing.allocation.enable "
    "routing.allocation.exclude.* routing.allocation.include.* routing.allocation.require.* "
    "routing.allocation.total_shards_per_node routing.rebalance.enable routing_partition_size "
    "search.* similarity.* soft_deletes.* sort.* store.preload translog.* unassigned.* write.*"
).split()
"""Settings of the source that its copy gets, as patterns without the prefix `index.`."""
SERVER_SETTINGS = ("creation_date*", "history.uuid", "provided_name", "resize.*", "uuid", "version.*")
"""Index settings that the server assigns to each new index."""
OWN_SETTINGS = ("knn",)
CHANGED_HERE = (
    *("mapping.*", "knn.*", "default_pipeline", "final_pipeline", "search.default_pipeline"),
    "requests.cache.enable",
)
"""Settings that hybridr sets differently in a copy than in its source."""
OF_PLUGIN = {"merge.policy.floor_segment": "2mb", "merge.policy.max_merge_at_once": "10"}
"""Settings that the k-NN plugin itself gives to each new index with `index.knn` (seen on 3.6.0)."""
RUINOUS = "analysis.* similarity.* blocks.* hidden mapping.* sort.* routing_partition_size".split()
"""Template settings that change which documents a copy finds or accepts, or that prevent its creation."""
LIFECYCLE = "index.lifecycle.name"
UNKNOWN_LIMITS = "limits of the cluster are unknown: this user may not read"
LANGUAGE_SAMPLE = 200  # documents
FOREIGN = 2 / 3  # share of the texts that are in a language unknown to the encoder


def copied_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the flat settings of an index that its copy gets, without the prefix `index.`."""
    named = ((name.removeprefix("index."), value) for name, value in settings.items())
    return {name: value for name, value in named if matches(name, COPIED)}


def settings_not_copied(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that a user set on the index and that its copy does not get."""
    usual = {("replication.type", "DOCUMENT")}
    named = ((name.removeprefix("index."), value) for name, value in settings.items())
    return sorted(
        name
        for name, value in named
        if not matches(name, (*COPIED, *SERVER_SETTINGS, *OWN_SETTINGS)) and (name, value) not in usual
    )


def differing_settings(copy: IndexInfo, source: IndexInfo) -> list[str]:
    """Return the names of settings that a user changed on a copy or on its source after copying."""
    copied, original = copied_settings(copy.settings), copied_settings(source.settings)
    expected = {name: value for name, value in OF_PLUGIN.items() if copied.get(name) == value} | original
    names = {name for name in copied.keys() | original.keys() if copied.get(name) != expected.get(name)}
    return sorted(f"index.{name}" for name in names if not matches(name, CHANGED_HERE))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name matches one of the wildcard patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class MatchingTemplate:
    """An index template for the new index, with the flat settings, mappings and aliases that it would add."""

    name: str
    settings: dict[str, Any]
    mappings: dict[str, Any]
    aliases: dict[str, Any]


@dataclass(frozen=True)
class Disk:
    """Bytes that an index needs with its replicas, and bytes that the data nodes can take below the
    flood-stage watermark.

    `takes_shards` says that at least one data node is below the `high` watermark, above which it gets no new
    shard.
    """

    needed_bytes: int
    usable_bytes: int
    flood_stage: str
    takes_shards: bool = True
    high: str = ""


def check_templates(
    cluster: Cluster, index: str, source: IndexInfo, templates: Sequence[MatchingTemplate] | None
) -> list[str]:
    """Return lines on what the index templates that match this name would add to a copy of `source`. Raises
    ClusterError for a template that would ruin the copy.

    Settings and fields that the copy sets itself win over a template's; an alias would be added.
    """
    if templates is None:
        return ["index templates could not be looked at: the right to read them is missing"]
    stored = stored_template(cluster, index) if templates else {}
    empty = {"index_patterns": [destination_pattern(source.name)], "priority": stored.get("priority", 0) + 1}
    effects, stream = [], f"makes '{index}' a data stream, which only takes new documents"
    for template in templates:
        if reason := ruin(template, index, source) or ("data_stream" in stored and stream):
            raise ClusterError(
                f"index {template.name} {reason}",
                hint=f"let its index_patterns leave '{index}' out, or put an empty one over it: "
                f"PUT /_index_template/{source.name}-hybridr {json_bytes(empty).decode()}",
            )
        parts = {
            "settings": template.settings,
            "fields": template.mappings.get("properties", {}),
            "to the mapping": template.mappings.keys() - {"properties", "_source", "_meta"},
        }
        added = [f"{part} {', '.join(sorted(names))}" for part, names in parts.items() if names]
        effects.append(f"{template.name} adds {' and '.join(added) or 'nothing'}")
    return effects


def ruin(template: MatchingTemplate, index: str, source: IndexInfo) -> str:
    """Return how a template would make a new index differ from its source, or prevent it; "" if neither."""
    if template.aliases:
        alias = min(template.aliases)
        return f"would put '{index}' behind the alias '{alias}': searches of it would find documents twice"
    stored = template.mappings.get("_source", {})
    if stored.get("enabled") in (False, "false") or stored.get("mode") == "synthetic":
        return f"switches _source off in '{index}'"
    differing = [
        name
        for name, value in template.settings.items()
        if matches(name.removeprefix("index."), RUINOUS)
        and name not in source.settings
        and not (name in DEFAULTS and int(value) >= DEFAULTS[name])
    ]
    required = [
        mappings.get("_routing", {}).get("required") for mappings in (template.mappings, source.mappings)
    ]
    if str(required[0]).lower() == "true" and not required[1]:
        differing.append("_routing.required")
    for name, field in template.mappings.get("properties", {}).items():
        if name in source.properties and ("properties" in field) != ("properties" in source.properties[name]):
            differing.append(f"an object '{name}'" if "properties" in field else f"no object '{name}'")
    return (
        f"gives '{index}' what '{source.name}' has not: {', '.join(sorted(differing))}" if differing else ""
    )


def stored_template(cluster: Cluster, index: str) -> dict[str, Any]:
    """Return the stored composable template that applies to an index of this name; {} if there is none.
    Without the right to read templates, only a high `priority` is returned.
    """
    try:
        answer = cluster.request("GET", "/_index_template")
    except AccessDenied:
        return {"priority": 999}
    with cluster.reading_answer("GET /_index_template"):
        templates = [entry["index_template"] for entry in answer["index_templates"]]
        matching = [template for template in templates if matches(index, template["index_patterns"])]
    return max(matching, key=lambda template: int(template.get("priority", 0)), default={})


def matching_templates(cluster: Cluster, index: str) -> list[MatchingTemplate] | None:
    """Return the composable template that applies to this name, else every legacy template whose pattern
    matches; None without the right to read them.
    """
    try:
        simulated = cluster.request("POST", path_of("_index_template", "_simulate_index", index))
        template = simulated.get("template")
        legacy = {} if template else cluster.request("GET", "/_template", params={"flat_settings": "true"})
    except AccessDenied:
        return None
    if template:
        settings, mappings, aliases = (template.get(part, {}) for part in ("settings", "mappings", "aliases"))
        return [MatchingTemplate("template (composable)", flat_settings(settings), mappings, aliases)]
    return [
        MatchingTemplate(
            f"template '{name}'", template["settings"], template["mappings"], template["aliases"]
        )
        for name, template in sorted(legacy.items(), key=lambda item: item[1].get("order", 0))
        if matches(index, template["index_patterns"])
    ]


def policies_for(cluster: Cluster, index: str, settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return warnings about policies of index state management (Elasticsearch: of index lifecycle management)
    that will apply to an index of this name.

    `settings` are the flat ones of the index, or of the templates that match its name. Such a policy can roll
    the index over, block its writes or delete it. Returns nothing without the plugin or the right to read
    policies.
    """
    try:
        policies = cluster.request("GET", "/_plugins/_ism/policies", params={"size": "1000"})
    except ClusterError:
        return [
            f"policy '{policy}' of index lifecycle management will take '{index}': "
            f"{index_put(index, LIFECYCLE, 'null')} takes it off again"
            for policy in filter(None, (values.get(LIFECYCLE) for values in settings))
        ]
    with cluster.reading_answer("GET /_plugins/_ism/policies"):
        templates_by_policy = {
            policy["_id"]: policy["policy"].get("ism_template") or []
            for policy in policies.get("policies", ())
        }
        matching = [
            name
            for name, templates in sorted(templates_by_policy.items())
            if any(matches(index, template["index_patterns"]) for template in templates)
        ]
    return [
        f"policy '{name}' of index state management will take '{index}': let its ism_template leave it out"
        for name in matching
    ]


def protections_lost(cluster: Cluster, source: str, destination: str) -> list[str]:
    """Return warnings about document- and field-level security of the source that does not cover its copy.

    Roles bind such rights to names of indices. Without the right to read roles, a general warning is
    returned.
    """
    try:
        cluster.request("GET", "/_plugins/_security/authinfo")
    except ClusterError:
        return []  # no security plugin
    try:
        roles = cluster.request("GET", "/_plugins/_security/api/roles")
    except ClusterError:
        return [
            f"document- and field-level security of '{source}', if there is any, does not hold for "
            f"'{destination}': roles that see a part of the one must be given the same part of the other"
        ]
    lines = {}
    for name, role in sorted(roles.items()):
        for permission in role.get("index_permissions", ()):
            is_narrowing = any(permission.get(kind) for kind in ("dls", "fls", "masked_fields"))
            patterns = permission.get("index_patterns", ())
            if is_narrowing and matches(source, patterns) and not matches(destination, patterns):
                lines[name] = (
                    f"role '{name}' sees a part of '{source}'; give it the same dls, fls and masked_fields "
                    f"for '{destination}', or no right to it"
                )
    return list(lines.values())


def flat_settings(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one dictionary with dotted names."""
    flattened: dict[str, Any] = {}
    for name, value in settings.items():
        path = prefix + name
        flattened |= flat_settings(value, f"{path}.") if isinstance(value, dict) else {path: value}
    return flattened


def check_limits(
    cluster: Cluster,
    source: IndexInfo,
    *,
    current: IndexInfo | None = None,
    in_place: bool = False,
    side_index: str = "",
) -> list[str]:
    """Return lines on cluster limits that could not be read, or that leave no room for the term table.

    Limits are checked for a new index beside `source` (`current` if an earlier run made it), or for writes
    `in_place`. `side_index` is the hidden index of the term table, which is optional. Raises
    ClusterError that names every cluster setting that would stop the reindex.
    """
    try:
        settings = cluster_settings(cluster)
    except AccessDenied:
        return [f"{UNKNOWN_LIMITS} its settings (cluster:monitor/state)"]
    creates = current is None and not in_place
    obstacles: list[Obstacle] = cluster_obstacles(settings, creates=creates)
    obstacles += script_obstacles(settings) if in_place else []  # `remove` takes vectors out by a script
    try:
        shards = shard_counts(cluster)
    except AccessDenied:
        require_no_obstacle(obstacles, f"vectors for '{source.name}'")
        return [f"{UNKNOWN_LIMITS} how many shards it has (cluster:monitor/health)"]
    added = 0
    if not in_place:
        existing_copies = copies_per_shard(current.settings) if current else 0
        added = source.shards * max(0, copies_per_shard(source.settings) - existing_copies)
        primaries = source.shards if creates else 0
        obstacles += shard_obstacles(settings, shards, source.settings, primaries, added)
    require_no_obstacle(obstacles, f"vectors for '{source.name}'")
    if side_index and added + 1 > room_for_shards(settings, shards) and not cluster.exists(side_index):
        return [f"{SHARDS_PER_NODE} leaves no room for {side_index}: searches would go without soft terms"]
    return []


def estimate_disk(cluster: Cluster, source: IndexInfo, vector_bytes: int) -> Disk | None:
    """Return the bytes that the new index will take, with its replicas, and those that the data nodes have
    free below their watermarks; None if the user may not read these figures.
    """
    try:
        stats = cluster.request("GET", path_of(source.name, "_stats", "store"))
        nodes = cluster.request("GET", "/_nodes/stats/fs")["nodes"].values()
        settings = cluster_settings(cluster)
    except AccessDenied:
        return None
    copies = 1 + int(source.settings.get("index.number_of_replicas", 1))
    needed = copies * (int(stats["_all"]["primaries"]["store"]["size_in_bytes"]) + vector_bytes)
    disks = [node["fs"]["total"] for node in nodes if any("data" in role for role in node["roles"])]

    def usable(watermark: str) -> list[int]:
        """Return how many bytes each data node can still take before its disk reaches a watermark."""
        free = ((disk["available_in_bytes"], disk["total_in_bytes"]) for disk in disks)
        return [max(0, available - bytes_kept_free(settings, watermark, total)) for available, total in free]

    flood_stage, high = (watermark_of(settings, name) for name in (WATERMARK, HIGH_WATERMARK))
    return Disk(needed, sum(usable(WATERMARK)), flood_stage, any(usable(HIGH_WATERMARK)), high)


def check_disk(disk: Disk | None, index: str) -> None:
    """Raise ClusterError if the index would not fit on disk, or if no data node would accept its shards."""
    if disk is None:
        return
    if disk.needed_bytes > disk.usable_bytes:
        raise ClusterError(
            f"'{index}' needs about {disk.needed_bytes / 1e9:.1f} GB, but the data nodes have "
            f"{disk.usable_bytes / 1e9:.1f} GB below the flood stage ({disk.flood_stage}, {WATERMARK})",
            hint="free disk space, or take fewer replicas on the source's settings",
        )
    if not disk.takes_shards:
        raise ClusterError(
            f"no data node would take '{index}': all are above {HIGH_WATERMARK} ({disk.high})",
            hint=f"free disk space, or {cluster_put(HIGH_WATERMARK, '...')}",
        )


def check_language(texts: Sequence[str], languages: tuple[str, ...], index: str, *, force: bool) -> str:
    """Return a warning if at least two thirds of the texts are in a language that the encoder does not know;
    empty otherwise.

    Without `force`, ModelError is raised instead. Texts without a clear language (program code, formulas,
    names, a few words) count as known. No `languages` means that the encoder's languages are unknown.
    """
    guess = foreign_language(texts, lambda code: knows_language(languages, code))
    if guess.share < FOREIGN:
        return ""
    warning = (
        f"{guess.share:.0%} of the texts of '{index}' are in a language that the encoder does not know, most "
        f"in '{guess.code}'; it knows {', '.join(languages)}"
    )
    if force:
        return warning
    raise ModelError(
        f"{warning}: its vectors would make the ranking worse",
        hint=f"{suggested_encoders(guess.code)}; --force goes on all the same",
    )
