"""Checks a reindex in place before its first write, and says exactly what it would send."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from ...cluster.connection import Cluster, path_of
from ...cluster.destinations import destinations, is_destination, is_in_place
from ...cluster.fields import choose_text_fields
from ...cluster.legs.dense import Cost, vector_mapping
from ...cluster.reading import require_source, sample_documents
from ...cluster.record import IndexInfo
from ...encoding.contract import Encoder
from ...errors import ClusterError, DataError, ModelError, SettingsError
from ...files.manifest import fingerprint
from ..planning import (
    MAX_DIM,
    check_engine,
    costs_of,
    job_settings,
    record_of,
    source_of,
)
from ..preflight import Disk, check_disk, estimate_disk, seconds_to_encode
from ..settings import ReindexSettings
from .in_place import MARK_FIELD, Marks, both, held_query, marked_query, other_than, require_own_versions

MARK_MAPPING = {"type": "keyword"}
BLOCKS = ("write", "read_only", "read_only_allow_delete", "metadata")
SAMPLE = 1000
CONSEQUENCES = (
    "every document is written anew: its old copy stays on disk until segments merge",
    "vector and mark are part of _source: searches that return it whole return them too",
    "every _version rises by one: do not do this where writers number versions (version_type=external)",
    "whoever writes a whole document drops its vector, until hybridr sync encodes it again",
)


@dataclass(frozen=True)
class InPlacePlan:
    """What a reindex in place will do.

    `exists`: an earlier run began it; `live`: it is complete and only caught up. `requests` are the exact
    bodies, in order. `disk` is None without the rights to ask; `seconds` are those of the encoder, in a
    preview only. `costs` has the chosen form of vectors first.
    """

    index: str
    exists: bool
    live: bool
    documents: int
    fields: tuple[str, ...]
    lexical_fields: tuple[str, ...]
    encoder: str
    vector_bytes: int
    requests: list[dict[str, Any]] = field(repr=False)
    disk: Disk | None = None
    seconds: float | None = None
    costs: list[Cost] = field(default_factory=list)
    consequences: tuple[str, ...] = CONSEQUENCES


def plan_in_place(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> InPlacePlan:
    """Check everything that can be checked before the first write, and say what would be sent.

    Raises SettingsError (options without a meaning here), ClusterError (engine, plugin, no `index.knn`,
    blocks, disk, other vectors), DataError (empty, no text, `_source` not whole, field taken, external
    versions), ModelError (dimension), NotFound.
    """
    check_options(settings)
    source_of(cluster, name)
    info = cluster.index_info(name)
    check_index(cluster, info)
    check_engine(cluster, encoder, settings)
    if encoder.dim > MAX_DIM:
        raise ModelError(f"the encoder gives {encoder.dim} dimensions, OpenSearch takes at most {MAX_DIM}")
    count = cluster.count(info.name)
    if count == 0:
        raise DataError(f"index '{info.name}' is empty", hint=f"hybridr load FOLDER --index {info.name}")
    known = is_in_place(info)
    given = settings.fields or (tuple(info.record.fields) if known else ())
    fields = choose_text_fields(cluster, info, given)
    job = fingerprint([encoder.fingerprint, job_settings(settings, fields)])
    vector = vector_mapping(encoder.dim, encoder.similarity, settings, cluster.version)
    if known:
        check_known(info, job)
    else:
        marks = Marks(encoder.fingerprint, settings.max_tokens, fields)
        check_fields(cluster, info, {settings.vector_field: vector, MARK_FIELD: MARK_MAPPING}, marks)
        require_own_versions(info.name, sample_documents(cluster, info, SAMPLE, fields=()))
    live = known and info.record.state == "complete"
    record = info.record.changed(
        **record_of(info, encoder, settings, fields, job),
        in_place=True,
        state="complete" if live else "filling",
    )
    costs = costs_of(cluster, encoder, settings, count)
    disk = None if live else estimate_disk(cluster, info, costs[0].disk_bytes)
    check_disk(disk, info.name)
    mapping = {
        "_meta": info.meta_with(record),
        "properties": {settings.vector_field: vector, MARK_FIELD: MARK_MAPPING},
    }
    return InPlacePlan(
        info.name,
        known,
        live,
        count,
        fields,
        record.lexical_fields,
        encoder.fingerprint,
        costs[0].disk_bytes,
        [
            {"method": "PUT", "path": path_of(info.name, "_mapping"), "body": mapping},
            {"method": "POST", "path": path_of(info.name, "_bulk"), "documents": count},
        ],
        disk,
        costs=costs,
    )


def preview_in_place(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> InPlacePlan:
    """Plan as `plan_in_place` does, and time the encoder on some documents of the index."""
    todo = plan_in_place(cluster, name, encoder, settings)
    info = cluster.index_info(todo.index)
    seconds = seconds_to_encode(cluster, info, encoder, todo.fields, todo.documents, settings.max_tokens)
    if settings.max_docs_per_second:
        seconds = max(seconds, todo.documents / settings.max_docs_per_second)
    return replace(todo, seconds=round(seconds, 1))


def check_options(settings: ReindexSettings) -> None:
    """Refuse options that speak of a second index."""
    for option, given in (("--alias", settings.alias), ("--slice", settings.slice)):
        if given:
            raise SettingsError(
                f"{option} has no meaning with --in-place: there is one index, and its name stays",
                hint="--workers N shares the work on this machine" if option == "--slice" else None,
            )
    if settings.passages:
        raise SettingsError("--passages needs a new index: leave --in-place out")
    if "." in settings.vector_field:
        raise SettingsError(
            f"--vector-field {settings.vector_field}: in place it must be a name without dots"
        )


def check_index(cluster: Cluster, info: IndexInfo) -> None:
    """Refuse an index that cannot take vectors, or could lose something by an update."""
    beside = f"without --in-place a new index is made: hybridr reindex {info.name}"
    if info.settings.get("index.verified_before_close") == "true":
        raise ClusterError(f"index '{info.name}' is closed", hint="open it first")
    if is_destination(info) and not is_in_place(info):
        raise ClusterError(
            f"'{info.name}' was made by hybridr and holds the vectors of '{info.record.source}'",
            hint="name an index of your own",
        )
    if made := destinations(cluster, info):
        raise ClusterError(
            f"'{info.name}' has its vectors in '{made[-1].name}' already",
            hint=f"go on there: hybridr reindex {info.name}   or take that away: hybridr remove {info.name}",
        )
    if info.settings.get("index.knn") != "true":
        raise ClusterError(
            f"index '{info.name}' was made without index.knn, which cannot be switched on later", hint=beside
        )
    if blocked := [name for name in BLOCKS if info.settings.get(f"index.blocks.{name}") == "true"]:
        raise ClusterError(
            f"index '{info.name}' has the block index.blocks.{blocked[0]}",
            hint=f"lift it first, or {beside}",
        )
    require_source(info)
    if any(info.mappings.get("_source", {}).get(kind) for kind in ("includes", "excludes")):
        raise DataError(
            f"index '{info.name}' does not keep its documents whole (_source.includes or excludes): every "
            "update would lose what is left out",
            hint="load the documents again from where they came",
        )


def check_known(info: IndexInfo, job: str) -> None:
    """Refuse to mix vectors of two encoders, or two ways to make them, in one index."""
    if info.record.source_uuid != info.uuid:
        raise ClusterError(
            f"'{info.name}' is a copy of '{info.record.source}', with its record",
            hint=f"hybridr sync {info.name}   looks at every document and makes the record its own",
        )
    if info.record.job != job:
        raise ClusterError(
            f"'{info.name}' holds vectors of encoder {info.record.encoder[:12]} in "
            f"'{info.record.vector_field}', made from other settings or by another encoder",
            hint=f"take them away first: hybridr remove {info.name}",
        )


def check_fields(cluster: Cluster, info: IndexInfo, ours: dict[str, dict[str, Any]], marks: Marks) -> None:
    """Refuse fields that are mapped to something else, or hold what hybridr did not write."""
    properties = info.mappings.get("properties", {})
    there = {name: properties[name] for name in ours if name in properties}
    taken = [name for name, mapping in there.items() if in_lower_case(mapping) != in_lower_case(ours[name])]
    if there and not taken:
        # What `remove` leaves in the mapping may be used again; and whoever puts a `_meta` of his own takes
        # our record away, while the marks still prove what is ours.
        foreign = both(held_query(next(iter(ours))), other_than(marked_query(marks)))
        found = cluster.search(info.name, {"query": foreign, "size": 0, "terminate_after": 1})
        taken = list(ours) if found["hits"]["total"]["value"] else []
    if taken:
        kind = properties.get(taken[0], {}).get("type", "object")
        raise DataError(
            f"index '{info.name}' has a field '{taken[0]}' already ({kind}), which is not free",
            hint="--vector-field NAME chooses another" if taken[0] != MARK_FIELD else None,
        )


def in_lower_case(mapping: dict[str, Any]) -> str:
    """Write a mapping so that equal ones are equal text: the server gives `byte` back as `BYTE`."""
    return json.dumps(mapping, sort_keys=True).lower()
