"""The final pipeline of an index with vectors: its owner's, run on what clients write and never on copies.

No request can skip a final pipeline, and a live index must never be without it. So the index has a wrapper
for its final pipeline, which calls the owner's unless the document bears hybridr's mark. The record keeps
the owner's pipeline in `original`, by the name of the setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..cluster.connection import Cluster, path_of
from ..cluster.destinations import write_record
from ..cluster.record import SEQ_NO_FIELD, IndexInfo
from ..cluster.remote_models import MARK, send_deletions
from ..errors import AccessDenied, ClusterError, HybridrError, NotFound

FINAL = "final_pipeline"  # the index setting, without the prefix `index.`
NONE = "_none"
HINT = (
    "an index with a final pipeline needs the rights cluster:admin/ingest/pipeline/get, put and delete, so "
    "that the pipeline runs on what clients write and not on copies: docs/security.md"
)

NO_SCRIPTS = (
    "a final pipeline is kept from copies by a condition: that needs ingest-common and lang-painless on each "
    "node, and inline scripts (script.allowed_types, script.allowed_contexts: ingest)"
)
BAD_REQUEST = 400


def wrapper_name(index: str) -> str:
    """Return the name of the wrapper of an index."""
    return f"hybridr-{index}-final"


def owners_pipeline(original: Mapping[str, Any]) -> str | None:
    """Return the final pipeline among the `original` settings of a record; None without one."""
    name = str(original.get(FINAL) or NONE)
    return None if name == NONE else name


def final_pipeline(info: IndexInfo) -> str | None:
    """Return the final pipeline in the settings of an index; None without one."""
    return owners_pipeline({FINAL: info.settings.get(f"index.{FINAL}")})


def store_request(index: str, owners: str) -> dict[str, Any]:
    """Return the request that stores the wrapper of an index around its owner's pipeline."""
    processor = {"pipeline": {"name": owners, "if": f"ctx.{SEQ_NO_FIELD} == null"}}
    description = f"{MARK}calls {owners} for what clients write, not for copies"
    body = {"description": description, "processors": [processor]}
    return {"method": "PUT", "path": path_of("_ingest", "pipeline", wrapper_name(index)), "body": body}


def wrap_requests(index: str, owners: str | None, current: IndexInfo | None = None) -> list[dict[str, Any]]:
    """Return the requests that wrap the owner's final pipeline.

    For a `current` index, whose settings a fill leaves alone, they wrap the final pipeline that it has now.
    """
    if current is None:
        return [store_request(index, owners)] if owners else []
    setting = final_pipeline(current)
    if setting in (None, wrapper_name(index)):
        return []
    body = {"index": {FINAL: wrapper_name(index)}}
    return [
        store_request(index, str(setting)),
        {"method": "PUT", "path": path_of(index, "_settings"), "body": body},
    ]


@contextmanager
def explaining_denial() -> Iterator[None]:
    """Add a hint to an AccessDenied of the block: the rights that an index with a final pipeline needs."""
    try:
        yield
    except AccessDenied as denied:
        raise AccessDenied(denied.message, hint=HINT, status=denied.status) from None


def stored_description(cluster: Cluster, index: str) -> str | None:
    """Return the description of the pipeline named like the wrapper of an index; None if there is none.

    Raises AccessDenied without the right to read it.
    """
    name = wrapper_name(index)
    try:
        with explaining_denial():
            stored = cluster.request("GET", path_of("_ingest", "pipeline", name))[name]
    except NotFound:
        return None
    return str(stored.get("description", ""))


def has_wrapper(cluster: Cluster, index: str) -> bool:
    """Return whether the wrapper of an index exists.

    Raises AccessDenied without the right to read it, ClusterError for a pipeline of its name that hybridr did
    not make.
    """
    description = stored_description(cluster, index)
    if description is None or description.startswith(MARK):
        return description is not None
    raise ClusterError(
        f"there is an ingest pipeline '{wrapper_name(index)}' that is not hybridr's",
        hint="store it under another name, then delete this one",
    )


def store_wrapper(cluster: Cluster, index: str, owners: str) -> None:
    """Store the wrapper of an owner's pipeline. Raises as `has_wrapper`, and ClusterError without scripts."""
    has_wrapper(cluster, index)
    request = store_request(index, owners)
    try:
        with explaining_denial():
            cluster.request(request["method"], request["path"], request["body"])
    except ClusterError as refused:
        if refused.status != BAD_REQUEST:
            raise
        raise ClusterError(refused.message, hint=NO_SCRIPTS, status=refused.status) from None


@contextmanager
def wrapper_for_new_index(cluster: Cluster, index: str, owners: str | None) -> Iterator[None]:
    """Store the wrapper of an index that the block creates; delete it if the block creates none."""
    if owners:
        store_wrapper(cluster, index, owners)
    try:
        yield
    except HybridrError:
        with suppress(HybridrError):
            if owners and not cluster.exists(index):
                send_deletions(cluster, delete_requests(cluster, index))
        raise


def ensure_wrapped(cluster: Cluster, info: IndexInfo) -> IndexInfo:
    """Wrap a final pipeline that a user has set on an index with vectors, and store a missing wrapper
    again; return the new description, or `info` if no setting was changed.

    Clients' writes run the same pipeline before and after. Raises as `has_wrapper`.
    """
    setting, name = final_pipeline(info), wrapper_name(info.name)
    if setting is None:
        return info
    owners = owners_pipeline(info.record.original)
    if setting == name:
        with suppress(AccessDenied):
            if not has_wrapper(cluster, info.name) and owners:
                store_wrapper(cluster, info.name, owners)
        return info
    store_wrapper(cluster, info.name, setting)
    write_record(cluster, info.name, original={**info.record.original, FINAL: setting})
    request = wrap_requests(info.name, None, info)[-1]
    cluster.request(request["method"], request["path"], request["body"])
    return cluster.index_info(info.name)


def delete_requests(cluster: Cluster, index: str) -> list[dict[str, Any]]:
    """Return the request that deletes an index's wrapper, if it has one. Raises as `stored_description`."""
    path = path_of("_ingest", "pipeline", wrapper_name(index))
    is_ours = (stored_description(cluster, index) or "").startswith(MARK)
    return [{"method": "DELETE", "path": path}] if is_ours else []


def wrapper_deletions(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[dict[str, Any]]:
    """Return the requests that delete the wrappers of indices, to be sent once these are gone.

    An index without a final pipeline costs no request. Raises AccessDenied without the right to look.
    """
    names = [
        info.name
        for info in infos
        if final_pipeline(info) == wrapper_name(info.name) or owners_pipeline(info.record.original)
    ]
    return [request for name in names for request in delete_requests(cluster, name)]


def pipeline_difference(info: IndexInfo, source: IndexInfo) -> str:
    """Return a line if a complete index and its source run different final pipelines; else ""."""
    setting = final_pipeline(info)
    current = owners_pipeline(info.record.original) if setting == wrapper_name(info.name) else setting
    original = final_pipeline(source)
    if current == original or info.record.state != "complete":
        return ""
    return (
        f"what clients write there runs the final pipeline {current or 'none'}, in '{source.name}' "
        f"{original or 'none'}; PUT /{info.name}/_settings changes it, and hybridr sync keeps it from copies"
    )
