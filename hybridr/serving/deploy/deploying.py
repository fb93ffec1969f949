"""Deploys an index: makes plain REST searches of it rank with vectors, and undoes that.

`client`: a stored search pipeline is the index's default, so a `hybrid` query need not name a fusion.
`neural`: besides, a model asks `hybridr serve` for the vector of a `neural` query's text. `transparent`: the
pipeline sends every search to `hybridr serve`, which ranks those that search for a text by true scores.
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
    asked_through,
    cache_before,
    cache_put_back,
    default_pipelines,
    found_pipeline,
    pipeline_path,
)
from ...cluster.destinations import readable, resolve, rewrite, write_record
from ...cluster.record import PASSAGE_VECTOR, IndexInfo, Record
from ...cluster.record_parts import Deployment
from ...cluster.remote_models import (
    CONNECTORS,
    DEPLOYED,
    MODEL_ID,
    ask_server,
    connector_body,
    connector_requests,
    create_model,
    deletions_of,
    embedding_connector,
    is_refused,
    missing_settings,
    model_state,
    send_all,
    send_deletion,
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
    allow,
    check_deployable,
    check_model,
    check_served,
    gives_true_scores,
    limits_of,
    overtaken,
    require_ours,
    search_pipeline_of,
    token_digest,
    token_of,
)


@dataclass(frozen=True)
class DeployResult:
    """Result of a deployment: the exact requests in order, with ids that the cluster will assign in angle
    brackets.

    `settings` are missing cluster settings, `example` is a body to search with. `changed` is False if
    everything was deployed already. `limits` says what will not be ranked or fails, `alias` what clients
    should search.
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
    """The deployment of an index; `missing` says what differs from what `deploy` made, `boost` is the
    deployed formula.
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
    """Return what a deployment would send, after all checks.

    Raises DataError (no vectors), ClusterError (plugin missing, another default pipeline, byte vectors with
    `neural`), Unreachable and FingerprintMismatch for the embedding server, SettingsError for boosts that
    cannot be added, ModelError for an encoder that does not know the language.
    """
    return planned(cluster, check_deployable(cluster, name, settings, search), settings)


def planned(cluster: Cluster, target: Deployable, settings: DeploySettings) -> DeployResult:
    """Check the cluster and the embedding server; return what would be sent. Raises as `plan_deployment`."""
    info, search = target.info, target.search
    pipeline = search_pipeline_of(info)
    if (default := info.settings.get(DEFAULT, "_none")) not in ("_none", pipeline):
        raise ClusterError(
            f"'{info.name}' has a default search pipeline of its own: {default}",
            hint="hybridr serve --proxy lexical   ranks without a pipeline; requests then go to it",
        )
    if (stored := found_pipeline(cluster, pipeline)) is not None:
        require_ours(pipeline, stored)
    missing: dict[str, Any] = {}
    requests: list[dict[str, Any]] = []
    if settings.way != "client":
        trusted_pattern(settings.server)
        check_model(cluster, info, settings)
        missing = missing_settings(cluster, settings.server)
        requests = connector_requests(connector_of(info, settings, search))
    body = pipeline_body(info, settings.way, search, cluster.version, MODEL_ID)
    requests += [*cache_requests(info, settings.way), *storing_requests(info, pipeline, body)]
    if missing:
        requests.insert(0, {"method": "PUT", "path": CLUSTER_SETTINGS, "body": {"persistent": missing}})
    request, alias = example(cluster, info, settings.way, search), info.record.alias
    todo = DeployResult(info.name, settings.way, pipeline, missing, requests, request, alias=alias)
    if settings.way != "transparent":
        return todo
    left_out = check_served(cluster, info, settings, search)
    return replace(todo, limits=left_out + limits_of(cluster, info))


def storing_requests(info: IndexInfo, pipeline: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the requests that store a search pipeline and make it the default of an index."""
    through = asked_through(pipeline, PHASE in body)
    return [
        {"method": "PUT", "path": pipeline_path(pipeline), "body": body},
        {"method": "PUT", "path": path_of(info.name, "_settings"), "body": through},
    ]


def cache_requests(info: IndexInfo, way: str) -> list[dict[str, Any]]:
    """Return the request that puts the request cache back before a way that leaves it alone, if any."""
    before = cache_put_back(info) if way == "transparent" else {}
    return [{"method": "PUT", "path": path_of(info.name, "_settings"), "body": before}] if before else []


def deploy(
    cluster: Cluster,
    name: str,
    settings: DeploySettings | None = None,
    search: SearchSettings | None = None,
) -> DeployResult:
    """Deploy the index in the chosen way; again with the same settings nothing changes.

    A model of an earlier call is deleted once the new one is in place. The record is written before the index
    is changed: it holds what `undeploy` puts back, and of two runs at once the later one goes on. Raises the
    errors of `plan_deployment`, and ClusterError for missing cluster settings unless `set_cluster_settings`,
    or if another `deploy` or `undeploy` ran at the same time.
    """
    settings = settings or DeploySettings()
    target = check_deployable(cluster, name, settings, search or SearchSettings())
    todo, info, search = planned(cluster, target, settings), target.info, target.search
    earlier = info.record.deployment
    paths = (CONNECTORS, pipeline_path(todo.pipeline))
    bodies = [request["body"] for request in todo.requests if request["path"] in paths]
    job = fingerprint([settings.record(), token_digest(info, settings), bodies])
    if todo.settings:
        allow(cluster, todo.settings, settings)
    if earlier and earlier.job == job and is_in_force(cluster, target, earlier):
        send_all(cluster, replaced_parts(cluster, todo.pipeline, earlier))
        return todo
    is_asked = settings.way != "client"
    ids = asdict(create_model(cluster, connector_of(info, settings, search))) if is_asked else {}
    server = {"server": settings.server} if "connector_id" in ids else {}
    server |= {"boost": search.boost} if search.boost else {}
    promise = Deployment(way=todo.way, pipeline=todo.pipeline, job=job, **ids, **server)
    put_in_force(cluster, target, promise)
    send_all(cluster, replaced_parts(cluster, todo.pipeline, promise))
    if missing := list(missing_parts(cluster, cluster.index_info(todo.index), promise)):
        raise overtaken(todo.index, f": {'; '.join(missing)}")
    return replace(todo, changed=True)


def is_in_force(cluster: Cluster, target: Deployable, deployment: Deployment) -> bool:
    """Return whether the cluster has and uses all of a deployment of these settings."""
    info, model_id = target.info, deployment.model_id or ""
    body = pipeline_body(info, deployment.way, target.search, cluster.version, model_id)
    if any(missing_parts(cluster, info, deployment)) or found_pipeline(cluster, deployment.pipeline) != body:
        return False
    return asked_through(deployment.pipeline, PHASE in body).items() <= info.settings.items()


def put_in_force(cluster: Cluster, target: Deployable, promise: Deployment) -> None:
    """Write a deployment into the record, then store its pipeline and make it the default one.

    If the cluster refuses the pipeline, the record is put back and the new model deleted. Raises ClusterError
    if another run wrote the record meanwhile.
    """
    info = cluster.index_info(target.info.name)  # making a model took time
    earlier = info.record.deployment
    for request in cache_requests(info, promise.way):
        cluster.request(request["method"], request["path"], request["body"])
    if promise.fuses:
        promise = promise.model_copy(update={"cache_before": cache_before(info)})
    body = pipeline_body(info, promise.way, target.search, cluster.version, promise.model_id or "")
    try:
        warning = {"warning": target.warning} if target.warning else {}
        write_record(cluster, info.name, deployment=promise, **warning)
        for request in storing_requests(info, promise.pipeline, body):
            require_undisturbed(cluster, info, promise)
            cluster.request(request["method"], request["path"], request["body"])
        require_undisturbed(cluster, info, promise)
    except ClusterError:
        current = cluster.index_info(info.name).record.deployment
        if current == promise and found_pipeline(cluster, promise.pipeline) != body:
            write_record(cluster, info.name, deployment=earlier)
            current = earlier
        send_all(cluster, replaced_parts(cluster, promise.pipeline, current))
        raise


def require_undisturbed(cluster: Cluster, info: IndexInfo, promise: Deployment | None) -> None:
    """Raise ClusterError if the record of an index does not hold this deployment any more.

    Asked before each change: who writes the record waits until the others have seen it (`SETTLE_S`).
    """
    if cluster.index_info(info.name).record.deployment != promise:
        raise overtaken(info.name)


def undeploy(cluster: Cluster, name: str, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Remove the default pipeline, the pipeline, the model and its connector; return the requests.

    Raises DataError if nothing is deployed, ClusterError if the record names a pipeline of somebody else, or
    if a `deploy` began meanwhile.
    """
    info = resolve(cluster, name, whole=True)
    deployment, requests = info.record.deployment, withdrawal(cluster, info)
    if not requests and not deployment:
        raise DataError(f"nothing is deployed for '{name}'", hint=f"hybridr deploy {name}")
    if dry_run:
        return requests
    if deployment:  # a `deploy` that is under way sees that it ends
        deployment = deployment.model_copy(update={"job": "", "model_id": None, "connector_id": None})
        write_record(cluster, info.name, deployment=deployment)
    for request in requests:
        require_undisturbed(cluster, info, deployment)
        send_deletion(cluster, request)

    def without(record: Record) -> Record:
        """Return the record without the deployment."""
        if record.deployment not in (deployment, None):
            raise overtaken(info.name)
        return record.changed(deployment=None)

    rewrite(cluster, info.name, without)
    return requests


def withdrawal(cluster: Cluster, info: IndexInfo) -> list[dict[str, Any]]:
    """Return the requests that undeploy an index, also what a `deploy` that was killed has left.

    Raises ClusterError if the record names a pipeline of somebody else.
    """
    deployment, pipeline = info.record.deployment, search_pipeline_of(info)
    if deployment and deployment.pipeline != pipeline:
        raise ClusterError(
            f"the record of '{info.name}' names the pipeline {deployment.pipeline}: its own is {pipeline}",
            hint=f"hybridr deploy {shlex.quote(info.name)}   writes the record anew",
        )
    requests: list[dict[str, Any]] = []
    stored = found_pipeline(cluster, pipeline)
    if info.settings.get(DEFAULT, "_none") == pipeline or (deployment and DEFAULT not in info.settings):
        before = {DEFAULT: None, **cache_put_back(info)}
        requests += [{"method": "PUT", "path": path_of(info.name, "_settings"), "body": before}]
    if stored is not None:
        require_ours(pipeline, stored)
        requests += [{"method": "DELETE", "path": pipeline_path(pipeline)}]
    return [*requests, *deletions_of(cluster, pipeline)]


def replaced_parts(cluster: Cluster, pipeline: str, new: Deployment | None) -> list[dict[str, Any]]:
    """Return the requests that delete the models made for a pipeline, except those of the `new`
    deployment.
    """
    parts = [part for part in (new.model_id, new.connector_id) if part] if new else []
    return deletions_of(cluster, pipeline, besides=parts)


def connector_of(info: IndexInfo, settings: DeploySettings, search: SearchSettings) -> dict[str, Any]:
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
        named = {info.record.vector_field: model_id}
        body["request_processors"] = [{"neural_query_enricher": {"neural_field_default_id": named}}]
    if way == "transparent":
        # What fuses is HTTP 500 on 3.6.0 for a search of `match_none`, and here is nothing to fuse.
        del body[PHASE]
        inference = {
            "model_id": model_id,
            "query_template": "${body}",  # all of the server's answer: sizes, filters and all
            "input_map": [{"input": "$"}],
            "output_map": [{"body": "body"}],
            "ignore_failure": True,
            "ignore_missing": True,
        }
        body["request_processors"] = [{"ml_inference": inference}]
    return body


def example(cluster: Cluster, info: IndexInfo, way: str, search: SearchSettings) -> str:
    """Return an example search body for a way of deploying, with dots for what the client fills in."""
    template = Template.read(search.query_template) if search.query_template else None
    searched = searched_fields(info, search.lexical_fields or info.record.lexical_fields)
    match = LexicalRetriever.over(info, searched, cluster.version, template).query("…", search.depth)
    if way == "transparent":
        return orjson.dumps({"query": match}).decode()
    field, depth, passages = info.record.vector_field, search.depth, info.record.passages
    parameters: dict[str, Any] = {"query_text": "…"} if way == "neural" else {"vector": ["…"]}
    inner = f"{field}.{PASSAGE_VECTOR}" if passages else field
    dense: dict[str, Any] = {"neural" if way == "neural" else "knn": {inner: {**parameters, "k": depth}}}
    if passages:
        dense = {"nested": {"path": field, "query": dense, "score_mode": "max"}}
    return orjson.dumps({"query": hybrid_query([match, dense], depth)}).decode()


def deployment_of(cluster: Cluster, info: IndexInfo) -> Deployed | None:
    """Return the deployment of an index and what is missing of it; None if nothing is deployed."""
    deployment = info.record.deployment
    if not deployment:
        return None
    missing = list(missing_parts(cluster, info, deployment))
    fields = deployment.model_dump(include={"way", "pipeline", "server", "boost"})
    return Deployed(info.name, model=deployment.model_id, missing=missing, **fields)


def deployments(cluster: Cluster) -> list[tuple[IndexInfo, Deployed]]:
    """Return every deployed index, by name, with its deployment."""
    by_name = {info.name: info for info in cluster.indices("*-hybridr-*") if readable(info)}
    for name, pipeline in default_pipelines(cluster).items():
        if pipeline.startswith("hybridr-") and name not in by_name:
            by_name[name] = cluster.index_info(name)
    looked = [(info, deployment_of(cluster, info)) for _, info in sorted(by_name.items()) if readable(info)]
    return [(info, deployed) for info, deployed in looked if deployed]


def missing_parts(cluster: Cluster, info: IndexInfo, deployment: Deployment) -> Iterator[str]:
    """Yield what the record of a deployment names and the cluster lacks or does not use."""
    if (default := info.settings.get(DEFAULT, "_none")) != deployment.pipeline:
        yield f"the default pipeline of the index is {default}"
    stored = found_pipeline(cluster, deployment.pipeline)
    if stored is None:
        yield f"the pipeline {deployment.pipeline} is gone"
    elif deployment.way == "transparent" and not gives_true_scores(
        stored_fusion(cluster, with_tuning(SearchSettings(), info), info).fusion
    ):
        yield "it ranks by true scores, and the index is tuned for another fusion: searches are plain BM25"
    if model := deployment.model_id:
        state = model_state(cluster, model)
        if state is None:
            yield f"the model {model} is gone"
        elif state != DEPLOYED:
            yield f"the model {model} is {state}"
        elif deployment.server is not None and is_refused(cluster, model, deployment.way):
            yield f"the server at {deployment.server} asks for another token than the cluster has"


def server_problem(deployed: Deployed, encoder: str) -> str | None:
    """Ask the embedding server of a deployment; return what is wrong with it, None if nothing."""
    if deployed.server is None:
        return None
    try:
        health = ask_server(deployed.server, "/healthz")
    except Unreachable as error:
        lost = "searches are plain BM25" if deployed.way == "transparent" else "`neural` queries fail"
        return f"{error.message}: {lost}"
    if (served := health.get("encoder")) != encoder:
        has = f"the server at {deployed.server} has encoder {str(served)[:12]}"
        return f"{has}, the vectors are of {encoder[:12]}"
    if health.get("status") == "behind":
        return f"the server at {deployed.server} does not follow its index: its log and /v1/index say why"
    return None
