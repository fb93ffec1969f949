"""A second search pipeline of a deployment, whose hits the re-ranker of `hybridr serve` orders anew.

Clients name it, and say their text once more. It asks for twice the hits of the page, has them read, and
gives the best back. It is not the index's default, because a scroll would lose what is cut off. What stands
of it is found by its name: nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from ..cluster.connection import Cluster
from ..cluster.default_pipeline import found_pipeline, pipeline_path
from ..cluster.destinations import resolve_whole
from ..cluster.equipment import plugins_of
from ..cluster.record import IndexInfo
from ..errors import ClusterError, DataError
from ..files.manifest import fingerprint
from .preconditions import (
    CLUSTER_SETTINGS,
    allow,
    require_ours,
    search_pipeline_of,
    token_digest,
    token_of,
)
from .remote_models import (
    DEPLOYED,
    MARK,
    PLUGIN,
    connector_body,
    connector_requests,
    create_model,
    deletions_of,
    made_for,
    missing_settings,
    model_state,
    require_reranker,
    send_all,
)
from .settings import DeploySettings

MODEL_ID = "<reranker_id>"
OVERSAMPLED = 2.0  # hits that are read for each that is shown
ASKED = {"rerank": {"query_context": {"query_text": "…"}}}


@dataclass(frozen=True)
class Reranking:
    """What was or would be sent for the pipeline that re-ranks; `asked` is what a search has to bring in its
    `ext`. `changed` is False where all of it was there already."""

    index: str
    pipeline: str
    settings: dict[str, Any]
    requests: list[dict[str, Any]] = field(repr=False)
    asked: dict[str, Any] = field(default_factory=lambda: ASKED)
    changed: bool = False


def plan_reranking(
    cluster: Cluster, name: str, settings: DeploySettings, first: dict[str, Any] | None = None
) -> Reranking:
    """Check everything before the first request, and say what would be sent.

    `first` is the pipeline that finds the hits; None: the one that is deployed. Raises DataError where none
    is, ClusterError without ml-commons or for somebody else's pipeline of the name, SettingsError and
    Unreachable for a server without a re-ranker.
    """
    info = resolve_whole(cluster, name)
    pipeline = rerank_pipeline_of(info)
    if PLUGIN not in plugins_of(cluster):
        raise ClusterError(
            f"--rerank needs the plugin {PLUGIN} on every node", hint="/search re-ranks without"
        )
    require_reranker(settings.server, token_of(settings))
    if first is None and (first := found_pipeline(cluster, search_pipeline_of(info))) is None:
        raise DataError(f"nothing is deployed for '{name}'", hint=f"hybridr deploy {name} --rerank")
    if (stored := found_pipeline(cluster, pipeline)) is not None:
        require_ours(pipeline, stored)
    missing = missing_settings(cluster, settings.server)
    allowing = [{"method": "PUT", "path": CLUSTER_SETTINGS, "body": {"persistent": missing}}]
    storing = {"method": "PUT", "path": pipeline_path(pipeline), "body": reranked(first, info, settings)}
    requests = [
        *(allowing if missing else ()),
        *connector_requests(reranking_connector(info, settings)),
        storing,
    ]
    return Reranking(info.name, pipeline, missing, requests)


def deploy_reranking(cluster: Cluster, name: str, settings: DeploySettings) -> Reranking:
    """Let searches of a deployed index be re-ranked; again with the same settings changes nothing.

    Raises the errors of `plan_reranking`, and ClusterError for cluster settings that are missing unless
    `set_cluster_settings`.
    """
    todo = plan_reranking(cluster, name, settings)
    if todo.settings:
        allow(cluster, todo.settings, settings)
    wanted = todo.requests[-1]["body"]
    stored, models = found_pipeline(cluster, todo.pipeline), made_for(cluster, "models", todo.pipeline)
    for model in models:
        if stored == with_model(wanted, model) and model_state(cluster, model) == DEPLOYED:
            return todo
    made = create_model(cluster, reranking_connector(cluster.index_info(todo.index), settings))
    cluster.request("PUT", pipeline_path(todo.pipeline), with_model(wanted, made.model_id))
    send_all(cluster, deletions_of(cluster, todo.pipeline, besides=(made.model_id, made.connector_id)))
    return replace(todo, changed=True)


def rerank_withdrawal(cluster: Cluster, info: IndexInfo) -> list[dict[str, Any]]:
    """List what takes the pipeline that re-ranks away, its model and its connector."""
    pipeline = rerank_pipeline_of(info)
    requests = deletions_of(cluster, pipeline)
    if (stored := found_pipeline(cluster, pipeline)) is not None:
        require_ours(pipeline, stored)
        requests.insert(0, {"method": "DELETE", "path": pipeline_path(pipeline)})
    return requests


def missing_of_reranking(cluster: Cluster, info: IndexInfo) -> Iterator[str]:
    """Say what a pipeline that re-ranks lacks; nothing where there is none."""
    pipeline = rerank_pipeline_of(info)
    if (stored := found_pipeline(cluster, pipeline)) is None:
        return
    [model] = [one["rerank"]["ml_opensearch"]["model_id"] for one in stored["response_processors"][:1]]
    if (state := model_state(cluster, model)) != DEPLOYED:
        yield f"the re-ranker of {pipeline} is {state or 'gone'}"
    first = found_pipeline(cluster, search_pipeline_of(info)) or {}
    if any(first.get(part, []) != found for part, found in finding(stored).items()):
        yield f"{pipeline} finds as an earlier deployment did: deploy with --rerank again"


def finding(stored: dict[str, Any]) -> dict[str, Any]:
    """Give the parts of a pipeline that re-ranks which it has from the one that finds."""
    return {
        "request_processors": stored["request_processors"][1:],
        "phase_results_processors": stored.get("phase_results_processors", []),
    }


def rerank_pipeline_of(info: IndexInfo) -> str:
    """Name the pipeline that re-ranks."""
    return f"{search_pipeline_of(info)}-rerank"


def reranking_connector(info: IndexInfo, settings: DeploySettings) -> dict[str, Any]:
    """Build the connector to the re-ranker of the server."""
    url = f"{settings.server.rstrip('/')}/v1/rerank"
    return connector_body("reranking", rerank_pipeline_of(info), url, token_of(settings))


def reranked(first: dict[str, Any], info: IndexInfo, settings: DeploySettings) -> dict[str, Any]:
    """Build the pipeline: the one that finds, asked for more hits, and behind it the re-ranker and the cut.

    A re-ranker that fails leaves the order as it was. The description tells by which token it asks, hashed.
    """
    connector = reranking_connector(info, settings) | {"credential": {}}
    job = fingerprint([connector, token_digest(info, settings)])
    reading = {
        "ml_opensearch": {"model_id": MODEL_ID},
        "context": {"document_fields": list(info.record.fields)},
        "ignore_failure": True,
    }
    more = {"oversample": {"sample_factor": OVERSAMPLED}}
    return {
        **first,
        "description": f"{MARK}re-ranks what its server is asked for, {job[:16]}",
        "request_processors": [more, *first.get("request_processors", ())],
        "response_processors": [{"rerank": reading}, {"truncate_hits": {}}],
    }


def with_model(body: dict[str, Any], model_id: str) -> dict[str, Any]:
    """Fill in the model that reads."""
    filled: dict[str, Any] = orjson.loads(orjson.dumps(body).replace(MODEL_ID.encode(), model_id.encode()))
    return filled
