"""Everything that belongs to an index with vectors and may be left behind: its deployment, models and
sidecars; and the verb rollback, which can drop an index with all of that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..cluster.connection import OWNER, PATTERNS, Cluster, path_of
from ..cluster.default_pipeline import found_pipeline
from ..cluster.destinations import destinations, forget_destinations, generations_of, write_record
from ..cluster.record import IndexInfo, Record, as_described
from ..cluster.remote_models import deletions_of, send_all
from ..errors import AccessDenied, NotFound
from ..families import load_member, member_names
from ..files.remembered import delete_texts, index_texts
from ..indexing import rollback as alias_moves
from ..indexing.client_writes import Writes, find_writes, require_one_option
from ..indexing.final_pipelines import delete_requests, wrapper_deletions
from ..indexing.semantic_models import model_deletions, models_name
from ..serving.deploy.deploying import withdrawal
from ..serving.deploy.ingesting import ingest_pipeline_of, stored_ingest
from ..serving.deploy.preconditions import is_ours, search_pipeline_of
from .sidecars import FAMILY, Sidecar

PIPELINES = (("_search", "pipeline"), ("_ingest", "pipeline"))


def sidecars() -> list[type[Sidecar]]:
    """Return all sidecars."""
    return [load_member(FAMILY, name) for name in member_names(FAMILY)]


def sidecar_parts(
    cluster: Cluster, infos: Sequence[IndexInfo], kinds: Sequence[type[Sidecar]], *, dry_run: bool
) -> dict[str, Any]:
    """Delete what these kinds of sidecars store beside indices, with `dry_run` only name it.

    Return the names by kind, and as `beside` a description of each.
    """
    names = {kind: (kind.named if dry_run else kind.drop)(cluster, infos) for kind in kinds}
    descriptions = [kind.described.format(name) for kind, stored in names.items() for name in stored]
    return {**{kind.listed: stored for kind, stored in names.items()}, "beside": descriptions}


def rollback(
    cluster: Cluster,
    name: str,
    *,
    copy_back: bool = False,
    discard: bool = False,
    drop: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Point the alias of `name` back; with `drop` delete the index that is left, and what is beside it alone.

    What belongs to the source (its rules) stays, and so does the whole index if a document was changed on
    both sides, clients wrote into it while the alias moved, or other aliases stay on it. Returns what
    `indexing.rollback.rollback` returns, whether the index was `dropped`, counts of such `late` writes, the
    requests that take its deployment and models away, the names of deleted sidecars by kind, and `beside`, a
    description of each. Raises its errors, and AccessDenied before anything is changed if a deployed index is
    to be dropped and its pipelines may not be read.
    """
    require_one_option(copy_back, discard)
    current = alias_moves.index_to_leave(cluster, name)
    requests = requests_beside(cluster, current) if drop else []
    done = alias_moves.rollback(cluster, name, copy_back=copy_back, discard=discard, dry_run=dry_run)
    late = Writes()
    if drop and not (copy_back or discard or dry_run):
        late = find_writes(cluster, cluster.index_info(current.name))
    goes = drop and not (late or done["returned"]["conflicts"] or done["stays"])
    dropped = goes and not dry_run
    if dropped:
        source = cluster.index_info(current.record.source)
        for info in destinations(cluster, source):
            if info.record.carried_into == current.uuid:  # what it held was copied back, or given up
                write_record(cluster, info.name, carried_into="")
        cluster.request("DELETE", path_of(current.name))
        forget_destinations(cluster, source, {current.uuid})
    parts = drop_beside(cluster, [current] if goes else [], requests, dry_run=dry_run)
    return {**done, "dropped": dropped, "late": late.counts(), "requests": requests if goes else [], **parts}


def requests_beside(cluster: Cluster, info: IndexInfo) -> list[dict[str, Any]]:
    """Return the requests that delete the pipelines and models made for an index, once it is gone.

    Raises AccessDenied if it is deployed or has a final pipeline, and its pipelines may not be read.
    """
    requests: list[dict[str, Any]] = []
    try:
        requests = deployment_left(cluster, stand_in_of(info))
    except AccessDenied:
        if info.record.deployment:
            raise
    return [*requests, *wrapper_deletions(cluster, [info]), *model_deletions(cluster, [info])]


def drop_beside(
    cluster: Cluster, dropped: Sequence[IndexInfo], requests: list[dict[str, Any]], *, dry_run: bool
) -> dict[str, Any]:
    """Send the requests and delete the sidecars and refused documents of dropped indices alone, not those of
    their source, with `dry_run` only name them; return what `sidecar_parts` returns.
    """
    kinds = [kind for kind in sidecars() if not kind.of_source]
    parts = sidecar_parts(cluster, [stand_in_of(info) for info in dropped], kinds, dry_run=dry_run)
    if dropped and not dry_run:
        send_all(cluster, requests)
        uuids = {info.uuid for info in dropped}
        delete_texts([text for text in index_texts() if text.uuid in uuids])
    return parts


def stand_in_of(info: IndexInfo) -> IndexInfo:
    """Return a description that stands for an index once it is gone."""
    return stand_in(info.name, info.record.changed(deployment=None), {"index.uuid": info.uuid})


def stand_in(name: str, record: Record, settings: dict[str, Any]) -> IndexInfo:
    """Return a description that stands for an index with vectors that is gone."""
    return IndexInfo(name, settings, {"_meta": {"hybridr": record.to_json()}}, {})


def gone_indices(cluster: Cluster, source: str, generations: Sequence[IndexInfo] = ()) -> list[IndexInfo]:
    """Return stand-ins, without a uuid, for the indices with vectors of a source that are gone while hidden
    indices or pipelines that were made for them are left, as far as this user may see.

    A name that somebody's index has now is left out. Where no `generations` are left, one stand-in is the
    source itself, which may have held its vectors once.
    """
    numbered = re.compile(rf"({re.escape(source)}-hybridr-\d+)(-.+)?")
    there: dict[str, Any] = {}
    with suppress(AccessDenied, NotFound):
        there = cluster.request("GET", path_of(generations_of(source)), params=PATTERNS)
    with cluster.understood(f"GET /{generations_of(source)}"):
        infos = [as_described(name, index) for name, index in there.items()]
    ours = [info.name for info in infos if info.other_meta.get("owner") == OWNER]
    for kind in PIPELINES:
        with suppress(AccessDenied, NotFound):
            stored = cluster.request("GET", path_of(*kind, f"hybridr-{generations_of(source)}"))
            ours += [name.removeprefix("hybridr-") for name, body in stored.items() if is_ours(body)]
    names = {match[1] for name in ours if (match := numbered.fullmatch(name))} - there.keys()
    settings: dict[str, dict[str, Any]] = {name: {} for name in sorted(names)}
    if not generations:
        settings |= {source: {}, **{info.name: info.settings for info in cluster.indices(source)}}
    record = Record(source=source)
    return [stand_in(name, record, {**held, "index.uuid": ""}) for name, held in settings.items()]


def deployment_left(cluster: Cluster, gone: IndexInfo) -> list[dict[str, Any]]:
    """Return the requests that delete the pipelines and models made for an index that is gone."""
    requests: list[dict[str, Any]] = []
    stored, pipeline = found_pipeline(cluster, search_pipeline_of(gone)), ingest_pipeline_of(gone)
    if stored is None or is_ours(stored):
        requests += withdrawal(cluster, gone)
    ingest = stored_ingest(cluster, pipeline)
    if ingest is not None and is_ours(ingest):
        requests.append({"method": "DELETE", "path": path_of("_ingest", "pipeline", pipeline)})
    requests += deletions_of(cluster, pipeline)
    return requests


def left_requests(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[dict[str, Any]]:
    """Return the requests that delete the pipelines and models that indices which are gone left, as far as
    this user may see.
    """
    requests: list[dict[str, Any]] = []
    for gone in infos:
        with suppress(AccessDenied):
            requests += deployment_left(cluster, gone)
            requests += deletions_of(cluster, models_name(gone.name))
        with suppress(AccessDenied):
            requests += delete_requests(cluster, gone.name)
    return requests
