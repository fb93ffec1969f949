"""Parts of an index with vectors that may outlive it: its deployment, models and sidecars; and the verb
rollback, which can drop an index with all of these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..cluster.connection import OWNER, PATTERNS, Cluster, path_of
from ..cluster.default_pipeline import stored_pipeline
from ..cluster.destinations import (
    claiming_indices,
    destination_pattern,
    destinations,
    forget_destinations,
    view_of,
    write_record,
)
from ..cluster.record import IndexInfo, Record, parse_index_info
from ..cluster.remote_models import pipeline_model_deletions, send_deletions
from ..errors import AccessDenied, NotFound
from ..families import load_member, member_names
from ..files.remembered import delete_texts, index_texts
from ..indexing import rollback as alias_moves
from ..indexing.client_writes import Writes, find_writes, require_one_option
from ..indexing.final_pipelines import delete_requests, wrapper_deletions
from ..indexing.semantic_models import model_deletions, models_name
from ..serving.deploy.deploying import undeploy_requests
from ..serving.deploy.ingesting import ingest_pipeline_of, stored_ingest
from ..serving.deploy.preconditions import is_ours, search_pipeline_of
from .sidecars import FAMILY, Sidecar

PIPELINES = (("_search", "pipeline"), ("_ingest", "pipeline"))


def sidecars() -> list[type[Sidecar]]:
    """Return the classes of all sidecars: of all that hybridr keeps beside an index."""
    return [load_member(FAMILY, name) for name in member_names(FAMILY)]


def delete_sidecars(
    cluster: Cluster, infos: Sequence[IndexInfo], kinds: Sequence[type[Sidecar]], *, dry_run: bool
) -> dict[str, Any]:
    """Delete the sidecars of the given indices that are of these kinds; nothing with `dry_run`.

    Returns their names by the `result_key` of each kind, and a description of each as `beside`.
    """
    names_by_key: dict[str, Any] = {}
    descriptions: list[str] = []
    for kind in kinds:
        names = kind.stored_names(cluster, infos) if dry_run else kind.drop(cluster, infos)
        names_by_key[kind.result_key] = names
        descriptions += map(kind.description.format, names)
    return {**names_by_key, "beside": descriptions}


def rollback(
    cluster: Cluster,
    name: str,
    *,
    copy_back: bool = False,
    discard: bool = False,
    drop: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Point the alias of `name` back; with `drop` delete the index that it left, and its own sidecars.

    What belongs to the source (its rules) stays. The index is not dropped if a document was changed on both
    sides, if other aliases stay on it, or if clients wrote into it while the alias moved (`late` writes).

    Returns the result of `indexing.rollback.rollback` with further keys: `dropped`, the counts of `late`
    writes, the `requests` that delete its deployment and models, and what `delete_sidecars` returns.

    Raises the errors of that function, and AccessDenied if this user may not read the pipelines of a deployed
    index to drop; then nothing is changed.
    """
    require_one_option(copy_back, discard)
    current = alias_moves.index_to_leave(view_of(cluster, name), name) if drop else None
    requests = cleanup_requests(cluster, current) if current else []
    result = alias_moves.rollback(cluster, name, copy_back=copy_back, discard=discard, dry_run=dry_run)
    late_writes = Writes()
    if current and not (copy_back or discard or dry_run):
        late_writes = find_writes(cluster, cluster.index_info(current.name))
    hindrances = late_writes or result["returned"]["conflicts"] or result["stays"]
    droppable = None if hindrances else current
    if droppable is not None and not dry_run:
        source = cluster.index_info(droppable.record.source)
        for info in destinations(cluster, source):
            if info.record.carried_into == droppable.uuid:  # these writes were copied back, or discarded
                write_record(cluster, info.name, carried_into="")
        cluster.request("DELETE", path_of(droppable.name))
        forget_destinations(cluster, source, {droppable.uuid})
    parts = delete_index_parts(cluster, [droppable] if droppable else [], requests, dry_run=dry_run)
    requests = requests if droppable else []
    dropped = droppable is not None and not dry_run
    return {**result, "dropped": dropped, "late": late_writes.counts(), "requests": requests, **parts}


def cleanup_requests(cluster: Cluster, info: IndexInfo) -> list[dict[str, Any]]:
    """Return the requests that delete the pipelines and models made for an index, to be sent after its
    deletion.

    Raises AccessDenied if it is deployed or has a final pipeline, and this user may not read its pipelines.
    """
    requests: list[dict[str, Any]] = []
    try:
        requests = deployment_cleanup(cluster, deleted_stand_in(info))
    except AccessDenied:
        if info.record.deployment:
            raise
    return [*requests, *wrapper_deletions(cluster, [info]), *model_deletions(cluster, [info])]


def delete_index_parts(
    cluster: Cluster, dropped: Sequence[IndexInfo], requests: list[dict[str, Any]], *, dry_run: bool
) -> dict[str, Any]:
    """Send the requests, and delete the sidecars and files of refused documents of dropped indices.

    Those of their source stay. With `dry_run` nothing is changed. Returns what `delete_sidecars` returns.
    """
    kinds = [kind for kind in sidecars() if not kind.of_source]
    parts = delete_sidecars(cluster, [deleted_stand_in(info) for info in dropped], kinds, dry_run=dry_run)
    if dropped and not dry_run:
        send_deletions(cluster, requests)
        uuids = {info.uuid for info in dropped}
        delete_texts([text for text in index_texts() if text.uuid in uuids])
    return parts


def deleted_stand_in(info: IndexInfo) -> IndexInfo:
    """Return a stand-in for an index that is or will be deleted."""
    return stand_in(info.name, info.record.changed(deployment=None), {"index.uuid": info.uuid})


def stand_in(name: str, record: Record, settings: dict[str, Any]) -> IndexInfo:
    """Return a stand-in for a deleted index with vectors."""
    return IndexInfo(name, settings, {"_meta": {"hybridr": record.to_json()}}, {})


def gone_indices(cluster: Cluster, source: str, generations: Sequence[IndexInfo] = ()) -> list[IndexInfo]:
    """Return stand-ins, without a uuid, for deleted indices with vectors of a source.

    Their hidden indices or pipelines still exist, and this user may see them. Names of existing indices are
    left out. Without any index with vectors of that name, one stand-in is the source, which may have held its
    vectors in place.
    """
    numbered = re.compile(rf"({re.escape(source)}-hybridr-\d+)(-.+)?")
    existing: dict[str, Any] = {}
    with suppress(AccessDenied, NotFound):
        existing = cluster.request("GET", path_of(destination_pattern(source)), params=PATTERNS)
    with cluster.reading_answer(f"GET /{destination_pattern(source)}"):
        infos = [parse_index_info(name, index) for name, index in existing.items()]
    own_names = [info.name for info in infos if info.other_meta.get("owner") == OWNER]
    for kind in PIPELINES:
        with suppress(AccessDenied, NotFound):
            pipelines = cluster.request("GET", path_of(*kind, f"hybridr-{destination_pattern(source)}"))
            own_names += [name.removeprefix("hybridr-") for name, body in pipelines.items() if is_ours(body)]
    names = {match[1] for name in own_names if (match := numbered.fullmatch(name))} - existing.keys()
    settings: dict[str, dict[str, Any]] = {name: {} for name in sorted(names)}
    if not generations and not claiming_indices(cluster, source):
        settings |= {source: {}, **{info.name: info.settings for info in cluster.indices(source)}}
    record = Record(source=source)
    return [stand_in(name, record, {**values, "index.uuid": ""}) for name, values in settings.items()]


def deployment_cleanup(cluster: Cluster, info: IndexInfo) -> list[dict[str, Any]]:
    """Return the requests that delete the pipelines and models made for a deleted index."""
    requests: list[dict[str, Any]] = []
    stored, pipeline = stored_pipeline(cluster, search_pipeline_of(info)), ingest_pipeline_of(info)
    if stored is None or is_ours(stored):  # without the pipeline, models of a deployment may still exist
        requests += undeploy_requests(cluster, info)
    ingest = stored_ingest(cluster, pipeline)
    if ingest is not None and is_ours(ingest):
        requests.append({"method": "DELETE", "path": path_of("_ingest", "pipeline", pipeline)})
    requests += pipeline_model_deletions(cluster, pipeline)
    return requests


def leftover_requests(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[dict[str, Any]]:
    """Return the requests that delete pipelines and models of deleted indices which this user may see."""
    requests: list[dict[str, Any]] = []
    for info in infos:
        with suppress(AccessDenied):
            requests += deployment_cleanup(cluster, info)
            requests += pipeline_model_deletions(cluster, models_name(info.name))
        with suppress(AccessDenied):
            requests += delete_requests(cluster, info.name)
    return requests
