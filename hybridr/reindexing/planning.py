"""Checks a reindex before its first write, and says exactly what it would send."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..cluster.connection import Cluster, path_of
from ..cluster.destinations import (
    alias_target,
    command_for,
    default_alias,
    destinations,
    free_name,
    is_destination,
    is_in_place,
    job_of,
    switch_actions,
)
from ..cluster.fields import choose_text_fields, searchable_fields
from ..cluster.legs.dense import (
    FORMS,
    Cost,
    Form,
    cost_of,
    form_of,
    obstacle,
    passages_mapping,
    require_form,
    vector_mapping,
)
from ..cluster.reading import require_source
from ..cluster.record import ENCODER_FIELD, ROLE, SEQ_NO_FIELD, IndexInfo, Record
from ..encoding.contract import Encoder
from ..errors import ClusterError, DataError, ModelError
from ..records import Windows
from .job import chosen_windows
from .preflight import (
    Disk,
    check_disk,
    check_templates,
    estimate_disk,
    passages_per_document,
    seconds_to_encode,
)
from .settings import ReindexSettings

MAX_DIM = 16_000
USUAL = {"precision": "fp32", "backend": "onnx"}
DURING_FILL: dict[str, Any] = {"refresh_interval": "-1", "number_of_replicas": 0, "final_pipeline": "_none"}
# What the server sets itself and refuses or misreads in a new index.
PRIVATE_SETTINGS = (
    "uuid",
    "version.",
    "creation_date",
    "provided_name",
    "history.uuid",
    "resize.",
    "blocks.",
    "verified_before_close",
    "routing.allocation.initial_recovery.",
    "shard.",
    "knn",
    "replication.",
)


@dataclass(frozen=True)
class Plan:
    """What a reindex will do.

    `live`: the destination is complete and only caught up. `before` and `after` are the settings it has
    while it is filled, and then. `requests` are the exact bodies, in order. `templates` says what index
    templates would add; `disk` is None for an index that exists, or without the rights to ask; `seconds` are
    those of the encoder, in a preview only. `costs` has the chosen form of vectors first, then all others
    that the cluster takes. `vector_count` is estimated from a sample of documents where there are `passages`.
    `arithmetic` is precision and backend of the encoder: recorded, but whatever they are, the vectors are
    compatible.
    """

    source: str
    destination: str
    exists: bool
    live: bool
    alias: str
    alias_made: bool
    previous: str
    documents: int
    fields: tuple[str, ...]
    lexical_fields: tuple[str, ...]
    encoder: str
    vector_bytes: int
    before: dict[str, Any]
    after: dict[str, Any]
    requests: list[dict[str, Any]] = field(repr=False)
    templates: list[str] = field(default_factory=list)
    disk: Disk | None = None
    seconds: float | None = None
    costs: list[Cost] = field(default_factory=list)
    passages: Windows | None = None
    vector_count: int = 0
    arithmetic: dict[str, str] = field(default_factory=dict)


def plan(cluster: Cluster, source: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Check everything that can be checked before the first write, and say what would be sent.

    Raises ClusterError (engine, plugin, alias), DataError (empty, no text, no `_source`, field taken),
    ModelError (dimension), NotFound.
    """
    info = source_of(cluster, source)
    if is_in_place(info):
        raise ClusterError(
            f"'{info.name}' holds its vectors itself",
            hint=f"{command_for(info)} goes on there; hybridr remove {info.name}   takes them away first",
        )
    check_engine(cluster, encoder, settings)
    count = check_source(cluster, info, encoder, settings)
    windows = chosen_windows(settings, encoder)
    fields = choose_text_fields(cluster, info, settings.fields)
    alias = settings.alias or recorded_alias(cluster, source)
    target = check_alias(cluster, alias, info)
    job = job_of(info, encoder.fingerprint, job_settings(settings, fields, windows))
    known = next((found for found in destinations(cluster, info) if found.record.job == job), None)
    name = known.name if known else free_name(cluster, info.name)
    live = known is not None and known.record.state == "complete" and not left_filling(known)
    original = known.record.original if known else original_settings(info)
    record = Record(
        **record_of(info, encoder, settings, fields, job),
        state="filling",
        alias=alias,
        previous=previous_of(target, known, info),
        aliases={alias: "moved" if target else "made"},
        original=original,
        passages=windows,
    )
    # A live destination keeps what its owner made of it, but no pipeline may change the copies.
    changed = ("final_pipeline",) if live else tuple(DURING_FILL)
    before = {setting: DURING_FILL[setting] for setting in changed}
    after = {setting: original[setting] for setting in changed}
    vector = vector_mapping(encoder.dim, encoder.similarity, settings, cluster.version)
    vector = passages_mapping(vector) if windows else vector
    first = (
        {"method": "PUT", "path": path_of(name, "_settings"), "body": {"index": before}}
        if known
        else {"method": "PUT", "path": path_of(name), "body": new_index(info, vector, record)}
    )
    vectors = (
        round(count * passages_per_document(cluster, info, encoder, fields, windows)) if windows else count
    )
    costs = costs_of(cluster, encoder, settings, vectors)
    size = costs[0].disk_bytes
    templates = [] if known else check_templates(cluster, name)
    disk = None if known else estimate_disk(cluster, info, size)
    check_disk(disk, name)
    return Plan(
        info.name,
        name,
        known is not None,
        live,
        alias,
        target is None,
        record.previous,
        count,
        fields,
        record.lexical_fields,
        encoder.fingerprint,
        size,
        before,
        after,
        [
            first,
            {"method": "POST", "path": path_of(name, "_bulk"), "documents": count},
            {"method": "PUT", "path": path_of(name, "_settings"), "body": {"index": after}},
            {"method": "POST", "path": "/_aliases", "body": {"actions": switch_actions(alias, target, name)}},
        ],
        templates,
        disk,
        costs=costs,
        passages=windows,
        vector_count=vectors,
        arithmetic=arithmetic_of(encoder),
    )


def record_of(
    info: IndexInfo, encoder: Encoder, settings: ReindexSettings, fields: tuple[str, ...], job: str
) -> dict[str, Any]:
    """Give what an index with vectors remembers of where they are from, wherever they are written."""
    return {
        "role": ROLE,
        "source": info.name,
        "source_uuid": info.uuid,
        "job": job,
        "encoder": encoder.fingerprint,
        "dim": encoder.dim,
        "similarity": encoder.similarity,
        "vector_field": settings.vector_field,
        "fields": fields,
        "lexical_fields": lexical_fields_of(info, fields),
        "max_tokens": settings.max_tokens,
        "engine": settings.engine,
        "vectors": settings.vectors,
        "compression": form_of(settings).compression,
        **arithmetic_of(encoder),
    }


def arithmetic_of(encoder: Encoder) -> dict[str, str]:
    """Name precision and backend of an encoder on documents."""
    return {name: str(getattr(encoder, name, usual)) for name, usual in USUAL.items()}


def preview(cluster: Cluster, source: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Plan as `plan` does, and time the encoder on some documents of the source."""
    todo = plan(cluster, source, encoder, settings)
    info = cluster.index_info(todo.source)
    seconds = seconds_to_encode(
        cluster, info, encoder, todo.fields, todo.documents, settings.max_tokens, todo.passages
    )
    if settings.max_docs_per_second:
        seconds = max(seconds, todo.documents / settings.max_docs_per_second)
    return replace(todo, seconds=round(seconds, 1))


def recorded_alias(cluster: Cluster, name: str) -> str:
    """Name the alias when none is given: that of a destination, or one made from the source's name."""
    named = cluster.index_info(name)
    return str(named.record.alias) if is_destination(named) else default_alias(name)


def source_of(cluster: Cluster, name: str) -> IndexInfo:
    """Find the index to read: `name` itself, or the source of the destination it stands for."""
    info = cluster.index_info(name)
    if info.name.startswith(".ds-"):
        raise ClusterError(
            f"'{name}' is a data stream, which only takes new documents", hint="copy it into an index first"
        )
    return cluster.index_info(info.record.source) if is_destination(info) else info


def check_engine(cluster: Cluster, encoder: Encoder, settings: ReindexSettings) -> None:
    """Refuse what would fail later, or kill the node."""
    form, embedded = form_of(settings), cluster.is_embedded()
    require_form(form, encoder.similarity, cluster.version, embedded=embedded)
    if cluster.plugins() and "opensearch-knn" not in cluster.plugins():
        raise ClusterError("the plugin opensearch-knn is not on every node", hint="hybridr doctor")


def check_source(cluster: Cluster, info: IndexInfo, encoder: Encoder, settings: ReindexSettings) -> int:
    """Refuse a source that cannot be copied with vectors; give its number of documents."""
    require_source(info)
    ours = {settings.vector_field, ENCODER_FIELD, SEQ_NO_FIELD}
    if taken := ours & info.mappings.get("properties", {}).keys():
        raise DataError(
            f"index '{info.name}' has a field '{min(taken)}' already",
            hint="--vector-field NAME chooses another",
        )
    if encoder.dim > MAX_DIM:
        raise ModelError(f"the encoder gives {encoder.dim} dimensions, OpenSearch takes at most {MAX_DIM}")
    count = cluster.count(info.name)
    if count == 0:
        raise DataError(f"index '{info.name}' is empty", hint=f"hybridr load FOLDER --index {info.name}")
    return count


def check_alias(cluster: Cluster, alias: str, info: IndexInfo) -> IndexInfo | None:
    """Refuse to take an alias away from an index that has nothing to do with the source."""
    target = alias_target(cluster, alias)
    if target is not None and info.name not in (target.name, target.record.source):
        raise ClusterError(
            f"alias '{alias}' stands for '{target.name}', which does not come from '{info.name}'",
            hint="--alias NAME chooses another name",
        )
    return target


def previous_of(target: IndexInfo | None, known: IndexInfo | None, info: IndexInfo) -> str:
    """Name what a rollback returns to: what the alias stands for now, at first the source."""
    if target is None:
        return info.name
    if known is not None and target.name == known.name:
        return str(known.record.previous)
    return target.name


def job_settings(
    settings: ReindexSettings, fields: tuple[str, ...], windows: Windows | None = None
) -> dict[str, Any]:
    """Name the settings that decide what the vectors are; the others may change between two runs.

    One vector a document goes unnamed, as before there were passages: older destinations are still known.
    """
    return {
        **({"passages": windows.to_json()} if windows else {}),
        "fields": fields,
        "compression": form_of(settings).compression,
        **settings.model_dump(
            include={"vector_field", "engine", "vectors", "m", "ef_construction", "max_tokens"}
        ),
    }


def lexical_fields_of(info: IndexInfo, fields: tuple[str, ...]) -> list[str]:
    """Name what the lexical leg searches: what was recorded, else the fields that a query sees."""
    return list(info.record.lexical_fields or searchable_fields(info, fields))


def original_settings(info: IndexInfo) -> dict[str, Any]:
    """Give the values that the fill changes, None where the source leaves the default."""
    return {name: info.settings.get(f"index.{name}") for name in DURING_FILL}


def left_filling(known: IndexInfo) -> bool:
    """Tell whether a killed run left a complete index with the settings of a fill, as one of two can do."""
    never = DURING_FILL["refresh_interval"]
    now, original = known.settings.get("index.refresh_interval"), known.record.original["refresh_interval"]
    return bool(now == never != original)


def new_index(info: IndexInfo, vector: dict[str, Any], record: Record) -> dict[str, Any]:
    """Build the new index from the source's settings, mappings and analysis, plus the vector field."""
    index = {name: value for name, value in copied_settings(info.settings).items() if name not in DURING_FILL}
    index |= {name: value for name, value in DURING_FILL.items() if value is not None} | {"knn": True}
    return {
        "settings": {"index": index},
        "mappings": destination_mappings(info, vector, record),
    }


def costs_of(cluster: Cluster, encoder: Encoder, settings: ReindexSettings, vectors: int) -> list[Cost]:
    """Estimate the chosen form of vectors first, then each other one that this cluster takes."""
    form, embedded = form_of(settings), cluster.is_embedded()

    def free(other: Form) -> bool:
        return obstacle(other, encoder.similarity, cluster.version, embedded=embedded) is None

    forms = [form, *(other for other in FORMS if other != form and free(other))]
    return [
        cost_of(one, vectors, encoder.dim, settings.m, cluster.version, chosen=one == form) for one in forms
    ]


def copied_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Keep what the user chose of an index's flat settings, without the prefix `index.`."""
    chosen = {name.removeprefix("index."): value for name, value in settings.items()}
    return {
        name: value
        for name, value in chosen.items()
        if not any(name == key or (key.endswith(".") and name.startswith(key)) for key in PRIVATE_SETTINGS)
    }


def destination_mappings(info: IndexInfo, vector: dict[str, Any], record: Record) -> dict[str, Any]:
    """Add the vector and its two companions to the mappings of the source.

    The companions are stored but left out of `_source`: a client's partial update then drops them and
    keeps the vector, so that stale vectors can be found.
    """
    source, hidden = info.mappings, [ENCODER_FIELD, SEQ_NO_FIELD]
    kept_source = dict(source.get("_source", {}))
    kept_source["excludes"] = [*kept_source.get("excludes", []), *hidden]
    return {
        **source,
        "_source": kept_source,
        "_meta": info.meta_with(record),
        "properties": {
            **source.get("properties", {}),
            record.vector_field: vector,
            ENCODER_FIELD: {"type": "keyword", "store": True},
            SEQ_NO_FIELD: {"type": "long", "store": True},
        },
    }
