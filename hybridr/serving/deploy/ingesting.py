"""Vectors at write time: an ingest pipeline of an index, made and removed.

An ingest pipeline gives documents that clients write their vector at once, by a model of ml-commons. It
writes only the vector, not the encoder's mark, so that the next `sync` encodes the document again and adds
what a pipeline cannot (token bits, state of the source). If the model fails, the document is stored without a
vector and waits for `sync` too. hybridr's own writes skip the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...cluster.connection import Cluster, path_of
from ...cluster.destinations import resolve_complete
from ...cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, IndexInfo
from ...cluster.remote_models import (
    DEPLOYED,
    MODEL_ID,
    TRIES,
    connector_requests,
    create_model,
    delete_model,
    deletions_of,
    embedding_connector,
    missing_settings,
    model_state,
    send_all,
)
from ...errors import ClusterError, NotFound, SettingsError
from ...indexing.representations import fields_of
from ..settings import DeploySettings
from .preconditions import allow, check_model, overtaken, token_of

DEFAULT_INGEST = "index.default_pipeline"
TEXT_FIELD = "hybridr_text"  # while a document is on its way
CALLED_WITH = 32  # documents in one request to the server
MARK = "hybridr: vectors at write time"
BEGUN = {"description": MARK, "processors": []}
"""The pipeline of an index whose model is being made."""
JOINING = """
void add(def value, String rest, List parts) {
  if (value instanceof List) { for (def one : value) { add(one, rest, parts); } return; }
  if (rest.isEmpty()) {
    if (value instanceof String && !value.trim().isEmpty()) { parts.add(value); }
    return;
  }
  if (!(value instanceof Map)) { return; }
  if (value.containsKey(rest)) { add(value.get(rest), '', parts); return; }
  int dot = rest.indexOf('.');
  if (dot > 0) { add(value.get(rest.substring(0, dot)), rest.substring(dot + 1), parts); }
}
List parts = new ArrayList();
for (def name : params.fields) { add(ctx, name, parts); }
if (parts.isEmpty()) { ctx.remove(params.text); } else { ctx[params.text] = String.join(' ', parts); }
"""
"""Joins the texts of a document as `text_of` does."""


@dataclass(frozen=True)
class Ingesting:
    """Requests (sent, or to be sent) that give writes their vectors, with the model and the pipeline."""

    index: str
    pipeline: str
    requests: list[dict[str, Any]] = field(repr=False)
    model_id: str | None = None


def plan_ingest(cluster: Cluster, name: str, settings: DeploySettings) -> Ingesting:
    """Return what would be sent to give writes their vectors, after all checks.

    Raises what `plan_deployment` raises for a server; SettingsError if a pipeline cannot make what the index
    stores, ClusterError for an index with an ingest pipeline of its own.
    """
    info = resolve_complete(cluster, name)
    pipeline = ingest_pipeline_of(info)
    if info.record.passages is not None:
        raise SettingsError(
            f"'{info.name}' keeps several vectors a document", hint="hybridr sync --every 30s"
        )
    if (own := info.settings.get(DEFAULT_INGEST, "_none")) not in ("_none", pipeline):
        raise ClusterError(
            f"'{info.name}' has an ingest pipeline of its own: {own}",
            hint="hybridr sync --every 30s brings the vectors too, and needs no pipeline",
        )
    check_model(cluster, info, settings.model_copy(update={"way": "neural"}))
    path, body = path_of("_ingest", "pipeline", pipeline), ingest_body(info, MODEL_ID)
    requests: list[dict[str, Any]] = [
        {"method": "PUT", "path": path, "body": BEGUN},
        {"method": "PUT", "path": path_of(info.name, "_settings"), "body": {DEFAULT_INGEST: pipeline}},
        *connector_requests(connector_for(pipeline, settings)),
        {"method": "PUT", "path": path, "body": body},
    ]
    return Ingesting(info.name, pipeline, requests)


def deploy_ingest(cluster: Cluster, name: str, settings: DeploySettings) -> Ingesting:
    """Store and use the ingest pipeline with its model; a model of an earlier call is replaced.

    The index names the pipeline, one without work, before a model is made: so `undeploy` sees a killed run.
    Of two runs at once the later one goes on, and the other raises ClusterError. One deletes only models that
    were there before its own: a later run's may be in use already.
    """
    todo = plan_ingest(cluster, name, settings)
    info = cluster.index_info(todo.index)
    require_own_ingest(cluster, todo.pipeline)
    if missing := missing_settings(cluster, settings.server):
        allow(cluster, missing, settings)
    begun, usage, *_, pipeline = todo.requests
    for request in (begun, usage) if stored_ingest(cluster, todo.pipeline) is None else ():
        cluster.request(request["method"], request["path"], request["body"])
    for _ in range(TRIES):
        earlier = [
            request
            for request in deletions_of(cluster, todo.pipeline)
            if "/model_groups/" not in request["path"]  # the new model is in it, too
        ]
        try:
            model = create_model(cluster, connector_for(todo.pipeline, settings))
        except ClusterError:
            if (there := stored_ingest(cluster, todo.pipeline)) and there["processors"] == []:
                undeploy_ingest(cluster, cluster.index_info(todo.index))
            raise
        body = ingest_body(info, model.model_id)
        cluster.request("PUT", pipeline["path"], body)
        cluster.request("PUT", usage["path"], usage["body"])
        stored, setting = stored_ingest(cluster, todo.pipeline), cluster.index_info(todo.index).settings
        is_ours = stored is None or stored["processors"] == body["processors"]
        if not is_ours:
            delete_model(cluster, model)
            raise overtaken(todo.index)
        send_all(cluster, earlier)
        is_used = stored is not None and setting.get(DEFAULT_INGEST) == todo.pipeline
        if is_used and model_state(cluster, model.model_id) == DEPLOYED:
            return replace(todo, model_id=model.model_id)
    raise overtaken(todo.index)


def undeploy_ingest(cluster: Cluster, info: IndexInfo, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Remove ingest pipeline, model and connector; return the requests, none if the index does not use the
    pipeline.

    An index without it costs no request, so that removing vectors needs no right to read pipelines. Models
    and connectors are found by the pipeline they were made for, not by what the pipeline names.
    """
    pipeline = ingest_pipeline_of(info)
    if info.settings.get(DEFAULT_INGEST) != pipeline:
        return []
    require_own_ingest(cluster, pipeline)
    requests = [  # the setting, by which the next run sees what a killed one left, goes after the models
        *deletions_of(cluster, pipeline),
        {"method": "PUT", "path": path_of(info.name, "_settings"), "body": {DEFAULT_INGEST: None}},
        {"method": "DELETE", "path": path_of("_ingest", "pipeline", pipeline)},
    ]
    send_all(cluster, [] if dry_run else requests)
    still = cluster.index_info(info.name).settings.get(DEFAULT_INGEST) == pipeline
    if not dry_run and still and stored_ingest(cluster, pipeline) is None:
        send_all(cluster, requests[-2:-1])  # a `deploy` set it meanwhile, and every write would fail
    return requests


def ingest_pipeline_of(info: IndexInfo) -> str:
    """Return the name of the ingest pipeline of an index."""
    return f"hybridr-{info.name}-ingest"


def connector_for(pipeline: str, settings: DeploySettings) -> dict[str, Any]:
    """Return the connector body to the server's encoder of documents."""
    return embedding_connector(pipeline, settings.server, "passage", token=token_of(settings))


def ingest_body(info: IndexInfo, model_id: str) -> dict[str, Any]:
    """Return the ingest pipeline: joins the texts, gets their vector, removes temporary fields; no failure
    stops a write.
    """
    parameters = {"fields": list(info.record.fields), "text": TEXT_FIELD}
    script = {"lang": "painless", "source": JOINING, "params": parameters}
    vector = {
        "model_id": model_id,
        "field_map": {TEXT_FIELD: info.record.vector_field},
        "batch_size": CALLED_WITH,
    }
    stale = [ENCODER_FIELD, SEQ_NO_FIELD, *fields_of(info.record)]
    return {
        "description": MARK,
        "processors": [
            {"remove": {"field": stale, "ignore_missing": True}},
            {"script": script | {"ignore_failure": True}},
            {"text_embedding": vector | {"ignore_failure": True}},
            {"remove": {"field": TEXT_FIELD, "ignore_missing": True}},
        ],
    }


def require_own_ingest(cluster: Cluster, pipeline: str) -> None:
    """Raise ClusterError if a stored ingest pipeline of this name was not made by hybridr."""
    stored = stored_ingest(cluster, pipeline)
    if stored is not None and stored.get("description") != MARK:
        raise ClusterError(f"the ingest pipeline '{pipeline}' is not hybridr's", hint="rename or delete it")


def stored_ingest(cluster: Cluster, pipeline: str) -> dict[str, Any] | None:
    """Return the stored ingest pipeline of this name; None without one."""
    try:
        stored: dict[str, Any] = cluster.request("GET", path_of("_ingest", "pipeline", pipeline))[pipeline]
    except NotFound:
        return None
    return stored
