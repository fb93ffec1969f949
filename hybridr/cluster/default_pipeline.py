"""The search pipeline that an index uses by default; small hidden indices beside those of users."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..errors import AccessDenied, ClusterError, NotFound, SettingsError
from .connection import Cluster, path_of
from .failures import EXISTS, understood
from .record import IndexInfo

CACHE = "index.requests.cache.enable"
DEFAULT = "index.search.default_pipeline"


def is_searchable(cluster: Cluster, info: IndexInfo) -> bool:
    """Return whether an index can be searched: it has no default pipeline, or one that exists."""
    default = info.settings.get(DEFAULT, "_none")
    return default == "_none" or found_pipeline(cluster, default) is not None


def require_searchable(cluster: Cluster, info: IndexInfo) -> None:
    """Raise ClusterError for an index whose default pipeline is gone: not even a point in time works."""
    there = True
    with suppress(AccessDenied):
        there = is_searchable(cluster, info)
    if not there:
        raise ClusterError(
            f"the default search pipeline of '{info.name}', {info.settings[DEFAULT]}, does not exist: no "
            "search of the index works",
            hint=f'PUT /{info.name}/_settings {{"{DEFAULT}": "_none"}}, or make the pipeline again',
        )


def asked_through(pipeline: str | None, fusing: bool = True) -> dict[str, Any]:
    """Return the settings of an index that is asked through a pipeline; None takes them away.

    A hybrid query with `pagination_depth` that the request cache of a single shard answers is HTTP 500 on
    3.6.0 (as neural-search#601 without it), and `size: 0` asks that cache by itself.
    """
    return {DEFAULT: pipeline, CACHE: "false" if pipeline and fusing else None}


def pipeline_path(name: str) -> str:
    """Name the path of a pipeline. Raises SettingsError for a name that stands for several."""
    if not name or set(name) & set("*,"):
        raise SettingsError(f"'{name}' is no name of one pipeline", hint="leave * and , out of it")
    return path_of("_search", "pipeline", name)


def found_pipeline(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """Read a stored pipeline; None where there is none of that name."""
    try:
        return dict(cluster.request("GET", pipeline_path(name))[name])
    except NotFound:
        return None


def default_pipelines(cluster: Cluster) -> dict[str, str]:
    """Return the default pipeline of every index that has one."""
    response = cluster.request("GET", f"/_all/_settings/{DEFAULT}", params={"flat_settings": "true"})
    with understood(cluster.url, "GET /_all/_settings"):
        held = [(name, index["settings"].get(DEFAULT, "_none")) for name, index in sorted(response.items())]
    return {name: default for name, default in held if default != "_none"}


def hidden_body(properties: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Return what a hidden index of one shard is made with that maps these fields alone."""
    index = {"hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1", **settings}
    mappings = {"dynamic": False, "properties": properties, "_meta": {"owner": "hybridr"}}
    return {"settings": {"index": index}, "mappings": mappings}


def make_index(cluster: Cluster, index: str, body: Mapping[str, Any]) -> None:
    """Make an index, unless somebody just did. Raises AccessDenied."""
    try:
        cluster.request("PUT", path_of(index), body)
    except ClusterError as error:
        if error.kind != EXISTS:
            raise


def drop_index(cluster: Cluster, index: str) -> bool:
    """Delete an index; tell whether there was one. Raises AccessDenied."""
    try:
        cluster.request("DELETE", path_of(index))
    except NotFound:
        return False
    return True
