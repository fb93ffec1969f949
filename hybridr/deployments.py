"""What of a deployment is still there, and what a new index takes over from the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .cluster import Cluster, IndexInfo, path_of
from .destinations import write_meta
from .errors import Unreachable
from .pipelines import DEFAULT, found_pipeline, pipeline_path
from .remote_models import ask_health, model_state

DEPLOYED = "DEPLOYED"
CACHE = "index.requests.cache.enable"


@dataclass(frozen=True)
class Deployed:
    """A way by which an index is asked; `missing` says what of it is not as `deploy` left it."""

    index: str
    way: str
    pipeline: str
    model: str | None
    server: str | None
    missing: list[str]


@dataclass(frozen=True)
class Succession:
    """What became of the deployment of an index whose alias moves to another: it was taken over into
    `pipeline`, or `command` deploys the new index."""

    way: str
    pipeline: str | None
    command: str | None


def deployment_of(cluster: Cluster, info: IndexInfo) -> Deployed | None:
    """Look at the deployment of an index; None where there is none."""
    known = info.meta.get("deployment")
    if not known:
        return None
    missing = list(missing_parts(cluster, info, known))
    return Deployed(
        info.name, known["way"], known["pipeline"], known.get("model_id"), known.get("server"), missing
    )


def missing_parts(cluster: Cluster, info: IndexInfo, known: Mapping[str, Any]) -> Iterator[str]:
    """Say what a record names and is not there, or not in use."""
    if (default := info.settings.get(DEFAULT, "_none")) != known["pipeline"]:
        yield f"the default pipeline of the index is {default}"
    if found_pipeline(cluster, known["pipeline"]) is None:
        yield f"the pipeline {known['pipeline']} is gone"
    if model := known.get("model_id"):
        state = model_state(cluster, model)
        if state is None:
            yield f"the model {model} is gone"
        elif state != DEPLOYED:
            yield f"the model {model} is {state}"


def server_problem(deployed: Deployed, encoder: str) -> str | None:
    """Ask the embedding server of a deployment; say what is wrong with it, as seen from this machine."""
    if deployed.server is None:
        return None
    try:
        found = ask_health(deployed.server).get("encoder")
    except Unreachable as error:
        lost = "searches are plain BM25" if deployed.way == "transparent" else "`neural` queries fail"
        return f"{error.message}: {lost}"
    if found != encoder:
        has = f"the server at {deployed.server} has encoder {str(found)[:12]}"
        return f"{has}, the vectors are of {encoder[:12]}"
    return None


def is_searchable(cluster: Cluster, info: IndexInfo) -> bool:
    """Tell whether the default pipeline of an index is there; without it no search of it works."""
    default = info.settings.get(DEFAULT, "_none")
    return default == "_none" or found_pipeline(cluster, default) is not None


def hand_over(cluster: Cluster, old: IndexInfo, new: str) -> Succession | None:
    """Give an index, before it gets the alias, the deployment of the one that has it now.

    Only what clients alone use can be copied: a model asks for vectors of the old index's encoder. The old
    index keeps its own, for a rollback. None where nothing is deployed, or the new index is already.
    """
    known, target = old.meta.get("deployment"), cluster.index_info(new)
    if not known or target.meta.get("deployment"):
        return None
    pipeline, body = f"hybridr-{new}", found_pipeline(cluster, known["pipeline"])
    taken = target.settings.get(DEFAULT, "_none") not in ("_none", pipeline)
    if known["way"] != "client" or body is None or taken:
        return Succession(known["way"], None, command_of(target, known))
    cluster.request("PUT", pipeline_path(pipeline), body)
    cluster.request("PUT", path_of(new, "_settings"), asked_through(pipeline))
    write_meta(cluster, new, {"deployment": {**known, "pipeline": pipeline}})
    return Succession(known["way"], pipeline, None)


def asked_through(pipeline: str | None) -> dict[str, Any]:
    """Give the settings of an index that is asked through a pipeline; None takes them away.

    A hybrid query with `pagination_depth` that the request cache of a single shard answers is HTTP 500 on
    3.6.0 (as neural-search#601 without it), and `size: 0` asks that cache by itself.
    """
    return {DEFAULT: pipeline, CACHE: "false" if pipeline else None}


def command_of(info: IndexInfo, known: Mapping[str, Any]) -> str:
    """Give the command that deploys an index as a record says."""
    server = f" --server {known['server']}" if known.get("server") else ""
    return f"hybridr deploy {info.meta.get('source', info.name)} --way {known['way']}{server}"
