"""Writes an encoder's vectors into a new index beside the old one, and moves an alias when all is there.

The destination is the checkpoint: beside every vector stand the encoder's fingerprint and the source's
`_seq_no`, so a restart asks the destination what it has and encodes only the rest.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .bodies import (
    ENCODER_FIELD,
    SEQ_NO_FIELD,
    copied_settings,
    destination_mappings,
    vector_mapping,
)
from .cluster import Cluster, IndexInfo, path_of
from .destinations import (
    ROLE,
    alias_target,
    default_alias,
    destinations,
    free_name,
    is_destination,
    job_of,
    rollback,
    switch,
    switch_actions,
    write_meta,
)
from .encoder import Encoder, load_encoder
from .errors import ClusterError, DataError, ModelError
from .filling import Filling, fill
from .folders import state_folder
from .inspection import choose_text_fields
from .known_encoders import remember_encoder
from .progress import Progress, silent
from .reading import require_source
from .settings import ReindexSettings
from .writing import Rejects

MAX_DIM = 16_000
DURING_FILL = {
    "refresh_interval": "-1",
    "number_of_replicas": 0,
    "final_pipeline": None,
    "default_pipeline": None,
}
BYTES_PER_LINK = 4
__all__ = ["Plan", "Reindexing", "plan", "reindex", "rollback"]


@dataclass(frozen=True)
class Plan:
    """What a reindex will do; `requests` are the exact bodies, in order."""

    source: str
    destination: str
    exists: bool
    alias: str
    previous: str
    documents: int
    fields: tuple[str, ...]
    lexical_fields: tuple[str, ...]
    encoder: str
    vector_bytes: int
    requests: list[dict[str, Any]] = field(repr=False)
    restore: dict[str, Any] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class Reindexing:
    """What a reindex did: counts of documents, and whether the alias was switched."""

    source: str
    destination: str
    alias: str
    documents: int
    encoded: int
    skipped: int
    without_text: int
    rejected: int
    deleted: int
    rejects_file: Path | None
    switched: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return {**asdict(self), "rejects_file": str(self.rejects_file) if self.rejects_file else None}


def reindex(
    cluster: Cluster,
    source: str,
    encoder: Encoder | Path | str,
    settings: ReindexSettings | None = None,
    *,
    progress: Progress = silent,
) -> Reindexing:
    """Fill an index with the documents of `source` and their vectors, verify it, then switch the alias.

    Running it again goes on where it stopped, or brings in what changed. Documents without text are copied
    without a vector. Documents that the engine refuses go to a rejects file, and the alias is switched only
    with `accept_rejects`. Raises the errors of `plan`, and ClusterError when the count is wrong at the end.
    """
    started = time.monotonic()
    settings = settings or ReindexSettings()
    encoder = encoder if not isinstance(encoder, (str, Path)) else load_encoder(encoder)
    todo = plan(cluster, source, encoder, settings)
    rejects = Rejects(state_folder() / "rejects" / f"{todo.destination}.jsonl")
    rejects.clear()
    create(cluster, todo, settings.patience_s)
    remember_encoder(encoder)
    filling = fill(
        cluster, todo.source, todo.destination, encoder, todo.fields, settings, rejects, progress=progress
    )
    whole = settings.slice is None
    if whole:
        finish(cluster, todo, filling, settings)
    switched = whole and (filling.rejected == 0 or settings.accept_rejects)
    if switched:
        switch(cluster, todo.alias, alias_target(cluster, todo.alias), todo.destination)
    return Reindexing(
        todo.source, todo.destination, todo.alias, cluster.count(todo.destination), filling.encoded,
        filling.skipped, filling.without_text, filling.rejected, filling.deleted,
        rejects.file if filling.rejected else None, switched, time.monotonic() - started,
    )  # fmt: skip


def plan(cluster: Cluster, source: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Check everything that can be checked before the first write, and say what would be sent.

    Raises ClusterError (engine, plugin, alias), DataError (empty, no text, no `_source`, field taken),
    ModelError (dimension), NotFound.
    """
    info = source_of(cluster, source)
    check_engine(cluster, settings)
    count = check_source(cluster, info, encoder, settings)
    fields = choose_text_fields(cluster, info.name, settings.fields)
    alias = settings.alias or default_alias(source)
    target = check_alias(cluster, alias, info)
    job = job_of(info, encoder.fingerprint, job_settings(settings, fields))
    known = next((found for found in destinations(cluster, info) if found.meta["job"] == job), None)
    name = known.name if known else free_name(cluster, info.name)
    lexical = tuple(info.meta.get("lexical_fields", fields))
    meta: dict[str, Any] = {
        "role": ROLE, "source": info.name, "source_uuid": info.uuid, "job": job, "state": "filling",
        "alias": alias, "previous": previous_of(target, known, info), "encoder": encoder.fingerprint,
        "dim": encoder.dim, "similarity": encoder.similarity, "vector_field": settings.vector_field,
        "fields": list(fields), "lexical_fields": list(lexical), "max_tokens": settings.max_tokens,
    }  # fmt: skip
    body = destination_body(info, encoder, settings, meta)
    return Plan(
        info.name, name, known is not None, alias, meta["previous"], count, fields, lexical,
        encoder.fingerprint, vector_bytes(count, encoder.dim, settings.m),
        [
            {"method": "PUT", "path": path_of(name), "body": body},
            {"method": "POST", "path": path_of(name, "_bulk"), "documents": count},
            {"method": "POST", "path": "/_aliases", "body": {"actions": switch_actions(alias, target, name)}},
        ],
        meta.get("restore", original_settings(info)),
    )  # fmt: skip


def source_of(cluster: Cluster, name: str) -> IndexInfo:
    """Find the index to read: `name` itself, or the source of the destination it stands for."""
    info = cluster.index_info(name)
    if info.name.startswith(".ds-"):
        raise ClusterError(
            f"'{name}' is a data stream, which only takes new documents", hint="copy it into an index first"
        )
    return cluster.index_info(info.meta["source"]) if is_destination(info) else info


def check_engine(cluster: Cluster, settings: ReindexSettings) -> None:
    """Refuse what would fail later, or kill the node."""
    if settings.engine == "faiss" and cluster.is_embedded():
        raise ClusterError(
            "--engine faiss would kill this embedded node: its k-NN plugin has no native library",
            hint="--engine lucene (the default)",
        )
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
    if target is not None and info.name not in (target.name, target.meta.get("source")):
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
        return str(known.meta["previous"])
    return target.name


def job_settings(settings: ReindexSettings, fields: tuple[str, ...]) -> dict[str, Any]:
    """Name the settings that decide what the vectors are; the others may change between two runs."""
    return {
        "fields": fields,
        **settings.model_dump(include={"vector_field", "engine", "m", "ef_construction", "max_tokens"}),
    }


def original_settings(info: IndexInfo) -> dict[str, Any]:
    """Give the values that the fill changes, None where the source leaves the default."""
    return {name: info.settings.get(f"index.{name}") for name in DURING_FILL}


def destination_body(
    info: IndexInfo, encoder: Encoder, settings: ReindexSettings, meta: dict[str, Any]
) -> dict[str, Any]:
    """Build the new index from the source's settings, mappings and analysis, plus the vector field."""
    meta["restore"] = original_settings(info)
    index = {name: value for name, value in copied_settings(info.settings).items() if name not in DURING_FILL}
    index |= {name: value for name, value in DURING_FILL.items() if value is not None} | {"knn": True}
    vector = vector_mapping(encoder.dim, encoder.similarity, settings)
    return {
        "settings": {"index": index},
        "mappings": destination_mappings(info.mappings, settings.vector_field, vector, meta),
    }


def vector_bytes(documents: int, dim: int, m: int) -> int:
    """Estimate what vectors and graph take on disk, per copy."""
    return documents * (4 * dim + 2 * m * BYTES_PER_LINK)


def create(cluster: Cluster, todo: Plan, patience_s: float) -> None:
    """Create the destination, or make the one from an earlier run ready to take documents."""
    if todo.exists:
        path = path_of(todo.destination, "_settings")
        cluster.request("PUT", path, {"index": {"refresh_interval": "-1"}}, patience_s=patience_s)
        changes = {"alias": todo.alias, "previous": todo.previous, "state": "filling"}
        write_meta(cluster, todo.destination, changes, patience_s=patience_s)
    else:
        cluster.request("PUT", path_of(todo.destination), todo.requests[0]["body"], patience_s=patience_s)
    cluster.wait_until_usable(todo.destination)


def finish(cluster: Cluster, todo: Plan, filling: Filling, settings: ReindexSettings) -> None:
    """Restore the original settings and check that every document is there.

    Raises ClusterError when the counts differ; the alias then stays where it is.
    """
    patience_s = settings.patience_s
    restored = {name: value for name, value in todo.restore.items()}
    path = path_of(todo.destination, "_settings")
    cluster.request("PUT", path, {"index": restored}, patience_s=patience_s)
    cluster.refresh(todo.destination, patience_s=patience_s)
    expected, found = cluster.count(todo.source), cluster.count(todo.destination)
    if found + filling.rejected != expected:
        raise ClusterError(
            f"'{todo.destination}' holds {found} documents and {filling.rejected} were refused, but "
            f"'{todo.source}' holds {expected}: the alias was not switched",
            hint="if documents are being written right now, run the same command again",
        )
    write_meta(cluster, todo.destination, {"state": "complete", "rejected": filling.rejected},
               patience_s=patience_s)  # fmt: skip
