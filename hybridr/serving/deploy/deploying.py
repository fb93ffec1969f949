"""Deploys an index: makes plain REST searches of it rank with vectors, and undoes that.

`client`: a stored search pipeline is the index's default, so a `hybrid` query need not name a fusion.
`neural`: the same, and a model asks `hybridr serve` for the vector of a `neural` query's text. `transparent`:
the pipeline sends every search to `hybridr serve`, which ranks those that search for a text by true scores.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

import orjson

from ...cluster.connection import Cluster, path_of
from ...cluster.default_pipeline import (
    DEFAULT,
    PHASE,
    default_pipeline_settings,
    earlier_cache_setting,
    pipeline_path,
    restored_cache_setting,
    stored_pipeline,
)
from ...cluster.destinations import indices_with_vectors, resolve, rewrite, write_record
from ...cluster.record import PASSAGE_VECTOR, IndexInfo, Record
from ...cluster.record_parts import Deployment
from ...cluster.remote_models import (
    CONNECTORS,
    DEPLOYED,
    MODEL_ID,
    ask_embedding_server,
    connector_body,
    create_model,
    creation_requests,
    embedding_connector,
    is_refused,
    missing_settings,
    model_state,
    pipeline_model_deletions,
    send_deletions,
    trusted_pattern,
)
from ...cluster.retrievers.lexical import LexicalRetriever, Template
from ...cluster.word_fields import searched_fields
from ...errors import ClusterError, DataError, Unreachable
from ...files.local import fingerprint
from ...search.checks import stored_fusion
from ...search.fusions.pipeline import hybrid_query, search_pipeline
from ...search.settings import SearchSettings, with_tuning
from ..settings import DeploySettings
from .preconditions import (
    CLUSTER_SETTINGS,
    Deployable,
    check_deployable,
    check_model,
    check_served,
    encoder_of_server,
    gives_true_scores,
    overtaken_error,
    require_ours,
    search_limits,
    search_pipeline_of,
    set_model_settings,
    token_digest,
    token_of,
)


@dataclass(frozen=True)
class DeployResult:
    """Result of a deployment: the exact requests in order. Ids that the cluster will assign stand in angle
    brackets.

    `settings` are missing cluster settings, `example` is a body to search with. `changed` is False if
    everything was deployed already. `limits` are lines on searches that will not be ranked or will fail.
    `alias` is the name that clients should search.
    """

    index: str
    way: str
    pipeline: str
    settings: dict[str, Any]
    requests: list[dict[str, Any]] = field(repr=False)
    example: str
    changed: bool = False
    limits: list[str] = field(default_factory=list)
    alias: str = ""


@dataclass(frozen=True)
class Deployed:
    """The deployment of an index.

    `missing` has a line for each part that is gone or changed, `boost` is the deployed formula.
    """

    index: str
    way: str
    pipeline: str
    model: str | None
    server: str | None
    missing: list[str]
    boost: str = ""


def plan_deployment(
    cluster: Cluster, name: str, settings: DeploySettings, search: SearchSettings
) -> DeployResult:
    """Return the requests of a deployment, after all checks; nothing is sent.

    Raises DataError without vectors, and ModelError for an encoder that does not know the language. Raises
    ClusterError for a missing plugin, another default pipeline, or byte vectors with `neural`. Raises
    Unreachable and FingerprintMismatch for the embedding server, and SettingsError for a wrong token, a
    server with other settings, or boosts that cannot be added.
    """
    return checked_plan(cluster, check_deployable(cluster, name, settings, search), settings)


def checked_plan(cluster: Cluster, target: Deployable, settings: DeploySettings) -> DeployResult:
    """Check the cluster and the embedding server, and return the requests of a deployment.

    Raises the errors of `plan_deployment`.
    """
    info, search = target.info, target.search
    pipeline = search_pipeline_of(info)
    if (default := info.settings.get(DEFAULT, "_none")) not in ("_none", pipeline):
        raise ClusterError(
            f"'{info.name}' has a default search pipeline of its own: {default}",
            hint="hybridr serve --proxy lexical   ranks without a pipeline: send searches to it instead",
        )
    if (stored := stored_pipeline(cluster, pipeline)) is not None:
        require_ours(pipeline, stored)
    missing: dict[str, Any] = {}
    requests: list[dict[str, Any]] = []
    if settings.way != "client":
        trusted_pattern(settings.server)
        check_model(cluster, info, settings, f"--way {settings.way}")
        missing = missing_settings(cluster, settings.server)
        requests = creation_requests(deployment_connector(info, settings, search))
    body = pipeline_body(info, settings.way, search, cluster.version, MODEL_ID)
    requests += [*cache_requests(info, settings.way), *pipeline_requests(info, pipeline, body)]
    if missing:
        requests.insert(0, {"method": "PUT", "path": CLUSTER_SETTINGS, "body": {"persistent": missing}})
    request, alias = example_body(cluster, info, settings.way, search), info.record.alias
    plan = DeployResult(info.name, settings.way, pipeline, missing, requests, request, alias=alias)
    if settings.way != "transparent":
        return plan
    left_out = check_served(cluster, info, settings, search)
    return replace(plan, limits=left_out + search_limits(cluster, info))


def pipeline_requests(info: IndexInfo, pipeline: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the requests that store a search pipeline and make it the default of an index."""
    index_settings = default_pipeline_settings(pipeline, PHASE in body)
    return [
        {"method": "PUT", "path": pipeline_path(pipeline), "body": body},
        {"method": "PUT", "path": path_of(info.name, "_settings"), "body": index_settings},
    ]


def cache_requests(info: IndexInfo, way: str) -> list[dict[str, Any]]:
    """Return the request that restores the index's own setting of the request cache, which the way
    `transparent` does not change; none for other ways, or if nothing is to be restored.
    """
    original = restored_cache_setting(info) if way == "transparent" else {}
    return [{"method": "PUT", "path": path_of(info.name, "_settings"), "body": original}] if original else []


def deploy(
    cluster: Cluster, name: str, settings: DeploySettings | None = None, search: SearchSettings | None = None
) -> DeployResult:
    """Deploy the index in the chosen way; a second call with the same settings changes nothing.

    A model of an earlier call is deleted once the new one is in use. The record is written before the index
    is changed: it holds what `undeploy` restores, and of two runs at once only the later one continues.
    Raises the errors of `plan_deployment`, and ClusterError for missing cluster settings unless
    `set_cluster_settings`, or if another `deploy` or `undeploy` ran at the same time.
    """
    settings = settings or DeploySettings()
    target = check_deployable(cluster, name, settings, search or SearchSettings())
    plan, info, search = checked_plan(cluster, target, settings), target.info, target.search
    previous = info.record.deployment
    paths = (CONNECTORS, pipeline_path(plan.pipeline))
    bodies = [request["body"] for request in plan.requests if request["path"] in paths]
    job = fingerprint([settings.record(), token_digest(info, settings), bodies])
    if plan.settings:
        set_model_settings(cluster, plan.settings, settings)
    if previous and previous.job == job and is_deployed(cluster, target, previous):
        send_deletions(cluster, outdated_model_deletions(cluster, plan.pipeline, previous))
        return plan
    needs_model = settings.way != "client"
    ids = asdict(create_model(cluster, deployment_connector(info, settings, search))) if needs_model else {}
    server = {"server": settings.server} if "connector_id" in ids else {}
    server |= {"boost": search.boost} if search.boost else {}
    server |= {"recall": settings.recall} if settings.recall != "lexical" else {}
    new_deployment = Deployment(way=plan.way, pipeline=plan.pipeline, job=job, **ids, **server)
    put_deployment(cluster, target, new_deployment)
    send_deletions(cluster, outdated_model_deletions(cluster, plan.pipeline, new_deployment))
    if faults := list(deployment_faults(cluster, cluster.index_info(plan.index), new_deployment)):
        raise overtaken_error(plan.index, f": {'; '.join(faults)}")
    return replace(plan, changed=True)


def is_deployed(cluster: Cluster, target: Deployable, deployment: Deployment) -> bool:
    """Return whether everything of a deployment with these settings exists in the cluster and is in use."""
    info, model_id = target.info, deployment.model_id or ""
    body = pipeline_body(info, deployment.way, target.search, cluster.version, model_id)
    if (
        any(deployment_faults(cluster, info, deployment))
        or stored_pipeline(cluster, deployment.pipeline) != body
    ):
        return False
    return default_pipeline_settings(deployment.pipeline, PHASE in body).items() <= info.settings.items()


def put_deployment(cluster: Cluster, target: Deployable, new_deployment: Deployment) -> None:
    """Write a deployment into the record, then store its pipeline and make it the index's default.

    If the cluster refuses the pipeline, the record is restored and the new model deleted. Raises ClusterError
    for that, and if another run wrote the record meanwhile.
    """
    info = cluster.index_info(target.info.name)  # read again: creating a model took time
    previous = info.record.deployment
    for request in cache_requests(info, new_deployment.way):
        cluster.request(request["method"], request["path"], request["body"])
    if new_deployment.fuses:
        new_deployment = new_deployment.model_copy(update={"cache_before": earlier_cache_setting(info)})
    body = pipeline_body(
        info, new_deployment.way, target.search, cluster.version, new_deployment.model_id or ""
    )
    try:
        warning = {"warning": target.warning} if target.warning else {}
        write_record(cluster, info.name, deployment=new_deployment, **warning)
        for request in pipeline_requests(info, new_deployment.pipeline, body):
            require_same_deployment(cluster, info, new_deployment)
            cluster.request(request["method"], request["path"], request["body"])
        require_same_deployment(cluster, info, new_deployment)
    except ClusterError:
        current = cluster.index_info(info.name).record.deployment
        if current == new_deployment and stored_pipeline(cluster, new_deployment.pipeline) != body:
            write_record(cluster, info.name, deployment=previous)
            current = previous
        send_deletions(cluster, outdated_model_deletions(cluster, new_deployment.pipeline, current))
        raise


def require_same_deployment(cluster: Cluster, info: IndexInfo, new_deployment: Deployment | None) -> None:
    """Raise ClusterError if the record of an index no longer holds this deployment.

    Called before each change. A run that writes the record waits until others have seen it (`SETTLE_S`).
    """
    if cluster.index_info(info.name).record.deployment != new_deployment:
        raise overtaken_error(info.name)


def undeploy(cluster: Cluster, name: str, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Remove the setting of the default pipeline, the pipeline, the model and its connector; return the
    requests.

    Raises DataError if nothing is deployed, ClusterError if the record names another pipeline, or a
    `deploy` started meanwhile.
    """
    info = resolve(cluster, name, whole_index=True)
    deployment, requests = info.record.deployment, undeploy_requests(cluster, info)
    if not requests and not deployment:
        raise DataError(f"nothing is deployed for '{name}'", hint=f"hybridr deploy {shlex.quote(name)}")
    if dry_run:
        return requests
    if deployment:  # changed in the record first, so that a `deploy` that runs now stops
        deployment = deployment.model_copy(update={"job": "", "model_id": None, "connector_id": None})
        write_record(cluster, info.name, deployment=deployment)
    for request in requests:
        require_same_deployment(cluster, info, deployment)
        send_deletions(cluster, [request])

    def without_deployment(record: Record) -> Record:
        """Return the record without the deployment."""
        if record.deployment not in (deployment, None):
            raise overtaken_error(info.name)
        return record.changed(deployment=None)

    rewrite(cluster, info.name, without_deployment)
    return requests


def undeploy_requests(cluster: Cluster, info: IndexInfo) -> list[dict[str, Any]]:
    """Return the requests that undeploy an index, also after a killed `deploy`.

    Raises ClusterError if the record names another pipeline.
    """
    deployment, pipeline = info.record.deployment, search_pipeline_of(info)
    if deployment and deployment.pipeline != pipeline:
        raise ClusterError(
            f"the record of '{info.name}' names the pipeline {deployment.pipeline} instead of {pipeline}",
            hint=f"hybridr deploy {shlex.quote(info.name)} --way {deployment.way}   writes the record anew",
        )
    requests: list[dict[str, Any]] = []
    stored = stored_pipeline(cluster, pipeline)
    if info.settings.get(DEFAULT, "_none") == pipeline or (deployment and DEFAULT not in info.settings):
        original = {DEFAULT: None, **restored_cache_setting(info)}
        requests += [{"method": "PUT", "path": path_of(info.name, "_settings"), "body": original}]
    if stored is not None:
        require_ours(pipeline, stored)
        requests += [{"method": "DELETE", "path": pipeline_path(pipeline)}]
    return [*requests, *pipeline_model_deletions(cluster, pipeline)]


def outdated_model_deletions(cluster: Cluster, pipeline: str, new: Deployment | None) -> list[dict[str, Any]]:
    """Return the requests that delete the models made for a pipeline, except those of the `new`
    deployment.
    """
    parts = [part for part in (new.model_id, new.connector_id) if part] if new else []
    return pipeline_model_deletions(cluster, pipeline, keep=parts)


def deployment_connector(info: IndexInfo, settings: DeploySettings, search: SearchSettings) -> dict[str, Any]:
    """Return the connector body for a way of deploying."""
    name, token = search_pipeline_of(info), token_of(settings)
    if settings.way == "neural":
        return embedding_connector(name, settings.server, "query", token=token)
    boost = f"&boost={quote(search.boost, safe='')}" if search.boost else ""
    url = f"{settings.server.rstrip('/')}/v1/rank?index={info.uuid}&recall={settings.recall}{boost}"
    return connector_body("ranking", name, url, token)


def pipeline_body(
    info: IndexInfo, way: str, search: SearchSettings, version: tuple[int, int, int], model_id: str
) -> dict[str, Any]:
    """Return the search pipeline for a way of deploying."""
    body = search_pipeline(search, version)
    if way == "neural":
        model_by_field = {info.record.vector_field: model_id}
        body["request_processors"] = [{"neural_query_enricher": {"neural_field_default_id": model_by_field}}]
    if way == "transparent":
        # Nothing is fused here, and OpenSearch 3.6.0 answers 500 if a fusion gets a search of `match_none`.
        del body[PHASE]
        inference = {
            "model_id": model_id,
            "query_template": "${body}",  # the server's answer replaces the body of the search
            "input_map": [{"input": "$"}],
            "output_map": [{"body": "body"}],
            "ignore_failure": True,
            "ignore_missing": True,
        }
        body["request_processors"] = [{"ml_inference": inference}]
    return body


def example_body(cluster: Cluster, info: IndexInfo, way: str, search: SearchSettings) -> str:
    """Return an example search body for a way of deploying, with "…" in place of the client's values."""
    template = Template.read(search.query_template) if search.query_template else None
    fields = searched_fields(info, search.lexical_fields or info.record.lexical_fields)
    match = LexicalRetriever.over(info, fields, cluster.version, template).query("…", search.depth)
    if way == "transparent":
        return orjson.dumps({"query": match}).decode()
    field, depth, passages = info.record.vector_field, search.depth, info.record.passages
    parameters: dict[str, Any] = {"query_text": "…"} if way == "neural" else {"vector": ["…"]}
    knn_field = f"{field}.{PASSAGE_VECTOR}" if passages else field
    dense: dict[str, Any] = {"neural" if way == "neural" else "knn": {knn_field: {**parameters, "k": depth}}}
    if passages:
        dense = {"nested": {"path": field, "query": dense, "score_mode": "max"}}
    return orjson.dumps({"query": hybrid_query([match, dense], depth)}).decode()


def deployment_of(cluster: Cluster, info: IndexInfo) -> Deployed | None:
    """Return the deployment of an index with its faults; None if nothing is deployed."""
    deployment = info.record.deployment
    if not deployment:
        return None
    faults = list(deployment_faults(cluster, info, deployment))
    fields = deployment.model_dump(include={"way", "pipeline", "server", "boost"})
    return Deployed(info.name, model=deployment.model_id, missing=faults, **fields)


def deployments(cluster: Cluster) -> list[tuple[IndexInfo, Deployed]]:
    """Return every deployed index, by name, with its deployment."""
    infos = indices_with_vectors(cluster)
    return [(info, deployed) for info in infos if (deployed := deployment_of(cluster, info))]


def deployment_faults(cluster: Cluster, info: IndexInfo, deployment: Deployment) -> Iterator[str]:
    """Yield a line for each part of a recorded deployment that the cluster lacks or does not use."""
    if (default := info.settings.get(DEFAULT, "_none")) != deployment.pipeline:
        yield f"the default pipeline of the index is {default}"
    stored = stored_pipeline(cluster, deployment.pipeline)
    if stored is None:
        yield f"the pipeline {deployment.pipeline} is gone"
    elif deployment.way == "transparent" and not gives_true_scores(
        stored_fusion(cluster, with_tuning(SearchSettings(), info), info).fusion
    ):
        yield "it needs true scores, but the index is tuned for another fusion: searches are plain BM25"
    if model := deployment.model_id:
        state = model_state(cluster, model)
        if state is None:
            yield f"the model {model} is gone"
        elif state != DEPLOYED:
            yield f"the model {model} is {state}"
        elif deployment.server is not None and is_refused(cluster, model, deployment.way):
            yield f"the server at {deployment.server} does not accept the cluster's token"


def server_problem(deployed: Deployed, encoder: str) -> str | None:
    """Ask the embedding server of a deployment; return what is wrong with it, None if nothing."""
    if deployed.server is None:
        return None
    try:
        health = ask_embedding_server(deployed.server, "/healthz")
    except Unreachable as error:
        effect = "searches are plain BM25" if deployed.way == "transparent" else "`neural` queries fail"
        return f"{error.message}: {effect}"
    if health.get("encoder") != encoder:
        return f"{encoder_of_server(deployed.server, health)}, the vectors were made by {encoder[:12]}"
    if health.get("status") == "behind":
        return f"the server at {deployed.server} does not follow its index: its log and /v1/index say why"
    return None
