"""The search pipeline that an index uses by default."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import AccessDenied, ClusterError, NotFound, SettingsError
from .connection import Cluster, path_of
from .record import IndexInfo

CACHE = "index.requests.cache.enable"
DEFAULT = "index.search.default_pipeline"
OFF = "false"
PHASE = "phase_results_processors"
"""Key of a pipeline's definition for the processors that fuse result lists."""


def is_searchable(cluster: Cluster, info: IndexInfo) -> bool:
    """Return whether searches of an index can work: they fail if its default search pipeline does not exist.

    Raises AccessDenied without the right to read pipelines.
    """
    default = info.settings.get(DEFAULT, "_none")
    return default == "_none" or stored_pipeline(cluster, default) is not None


def require_searchable(cluster: Cluster, info: IndexInfo) -> None:
    """Raise ClusterError if the default search pipeline of an index no longer exists.

    Without the right to read pipelines it is assumed to exist.
    """
    searchable = True
    with suppress(AccessDenied):
        searchable = is_searchable(cluster, info)
    if not searchable:
        raise ClusterError(
            f"the default search pipeline of '{info.name}', {info.settings[DEFAULT]}, does not exist: no "
            "search of the index works",
            hint=f'PUT /{info.name}/_settings {{"{DEFAULT}": "_none"}}, or create the pipeline again',
        )


def default_pipeline_settings(pipeline: str, fusing: bool = True) -> dict[str, Any]:
    """Return the index settings that make a search pipeline the default one.

    With `fusing` the request cache is switched off. On 3.6.0 a hybrid query with `pagination_depth` fails
    with HTTP 500 when the request cache of a single shard answers it (neural-search#601 without
    `pagination_depth`), and a search with `size: 0` uses that cache by default.
    """
    return {DEFAULT: pipeline} | ({CACHE: OFF} if fusing else {})


def earlier_cache_setting(info: IndexInfo) -> str | None:
    """Return an index's setting of the request cache from before any deployment; None if it has none."""
    deployment = info.record.deployment
    return deployment.cache_before if deployment and deployment.fuses else info.settings.get(CACHE)


def restored_cache_setting(info: IndexInfo) -> dict[str, Any]:
    """Return the index setting that restores the request cache as before the deployment.

    Empty if the deployment did not change it, or if it was changed later.
    """
    deployment = info.record.deployment
    if not deployment or not deployment.fuses or info.settings.get(CACHE) != OFF:
        return {}
    return {CACHE: deployment.cache_before}


def pipeline_path(name: str) -> str:
    """Return the URL path of a search pipeline. Raises SettingsError for an empty name or a pattern."""
    if not name or set(name) & set("*,"):
        raise SettingsError(f"'{name}' is not the name of one pipeline", hint="name one, without * and ,")
    return path_of("_search", "pipeline", name)


def stored_pipeline(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """Return the definition of a search pipeline in the cluster; None if it does not exist."""
    try:
        return dict(cluster.request("GET", pipeline_path(name))[name])
    except NotFound:
        return None
