"""Vectors at write time: makes and removes an ingest pipeline of an index.

The pipeline gives documents that clients write a vector at once, by a model of ml-commons. It does not write
the encoder's mark, so that the next `sync` encodes the document again. That adds the fields that a pipeline
cannot make (token bits, state of the source). If the model fails, the document is stored without a vector,
until `sync`. hybridr's own writes skip the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any

from ...cluster.aliases import resolve_complete
from ...cluster.connection import Cluster, path_of
from ...cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, IndexInfo
from ...cluster.remote_models import (
    DEPLOYED,
    MODEL_ID,
    TRIES,
    create_model,
    creation_requests,
    delete_model,
    embedding_connector,
    missing_settings,
    model_state,
    pipeline_model_deletions,
    send_deletions,
)
from ...errors import ClusterError, NotFound, SettingsError
from ...indexing.representations import fields_of
from ..settings import DeploySettings
from .preconditions import (
    CLUSTER_SETTINGS,
    check_model,
    overtaken_error,
    require_settable,
    set_model_settings,
    token_of,
)

DEFAULT_INGEST = "index.default_pipeline"
TEXT_FIELD = "hybridr_text"  # holds the joined text within the pipeline
DOCUMENTS_PER_CALL = 32  # in one request to the server
MARK = "hybridr: vectors at write time"
EMPTY_PIPELINE = {"description": MARK, "processors": []}
"""Pipeline without processors: the pipeline of an index until its model is created."""
JOIN_SCRIPT = """
void add(def value, String rest, List parts) {
  if (value instanceof List) { for (def one : value) { add(one, rest, parts); } return; }
  if (rest.isEmpty()) {
    if (value instanceof String && !value.trim().isEmpty()) { parts.add(value); }
    return;
  }
  if (!(value instanceof Map)) { return; }
  if (value.containsKey(rest)) { add(value.get(rest), '', parts); }
  for (int dot = rest.indexOf('.'); dot >= 0; dot = rest.indexOf('.', dot + 1)) {
    add(value.get(rest.substring(0, dot)), rest.substring(dot + 1), parts);
  }
}
List parts = new ArrayList();
for (def name : params.fields) { add(ctx, name, parts); }
if (parts.isEmpty()) { ctx.remove(params.text); } else { ctx[params.text] = String.join(' ', parts); }
"""
"""Joins the texts of a document as `text_of` does."""


@dataclass(frozen=True)
class Ingesting:
    """The requests (sent, or to be sent) that make an ingest pipeline, and its model.

    `settings` are missing cluster settings.
    """

    index: str
    pipeline: str
    requests: list[dict[str, Any]] = field(repr=False)
    model_id: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def plan_ingest(cluster: Cluster, name: str, settings: DeploySettings) -> Ingesting:
    """Return the requests that make the ingest pipeline, after all checks; nothing is sent.

    Raises the errors of `check_model`; DataError for an index without complete vectors, SettingsError for one
    with passages, whose vectors a pipeline cannot make, ClusterError for one with its own ingest pipeline.
    """
    info = resolve_complete(cluster, name)
    pipeline = ingest_pipeline_of(info)
    if info.record.passages is not None:
        raise SettingsError(
            f"'{info.name}' stores several vectors per document, an ingest pipeline makes one",
            hint=f"hybridr sync {quote(info.record.source or info.name)} --every 30s",
        )
    if (default_pipeline := info.settings.get(DEFAULT_INGEST, "_none")) not in ("_none", pipeline):
        raise ClusterError(
            f"'{info.name}' has an ingest pipeline of its own: {default_pipeline}",
            hint=f"hybridr sync {quote(info.record.source or info.name)} --every 30s   needs no pipeline",
        )
    check_model(cluster, info, settings, "--ingest")
    require_own_ingest(cluster, pipeline)
    path, body = path_of("_ingest", "pipeline", pipeline), ingest_body(info, MODEL_ID)
    requests: list[dict[str, Any]] = [
        {"method": "PUT", "path": path, "body": EMPTY_PIPELINE},
        {"method": "PUT", "path": path_of(info.name, "_settings"), "body": {DEFAULT_INGEST: pipeline}},
        *creation_requests(ingest_connector(pipeline, settings)),
        {"method": "PUT", "path": path, "body": body},
    ]
    if missing := missing_settings(cluster, settings.server):
        requests.insert(0, {"method": "PUT", "path": CLUSTER_SETTINGS, "body": {"persistent": missing}})
    return Ingesting(info.name, pipeline, requests, settings=missing)


def require_ingest(cluster: Cluster, name: str, settings: DeploySettings) -> None:
    """Raise what `deploy_ingest` would raise before it changes anything."""
    require_settable(plan_ingest(cluster, name, settings).settings, settings)


def deploy_ingest(cluster: Cluster, name: str, settings: DeploySettings) -> Ingesting:
    """Make the ingest pipeline with its model, and let the index use it; a model of an earlier call is
    replaced.

    The index gets an empty pipeline before a model is created, so that `undeploy` notices a killed run. Of
    two runs at once the later one continues, and the other raises ClusterError. A run deletes only models
    that are older than its own: a later run's may be in use. Raises the errors of `plan_ingest`.
    """
    plan = plan_ingest(cluster, name, settings)
    info = cluster.index_info(plan.index)
    if plan.settings:
        set_model_settings(cluster, plan.settings, settings)
    after_settings = plan.requests[1:] if plan.settings else plan.requests
    empty_pipeline, usage, *_, pipeline = after_settings
    if stored_ingest(cluster, plan.pipeline) is None:
        for request in (empty_pipeline, usage):
            cluster.request(request["method"], request["path"], request["body"])
    for _ in range(TRIES):
        older_models = [
            request
            for request in pipeline_model_deletions(cluster, plan.pipeline)
            if "/model_groups/" not in request["path"]  # the new model joins the group
        ]
        try:
            model = create_model(cluster, ingest_connector(plan.pipeline, settings))
        except ClusterError:
            if (stored := stored_ingest(cluster, plan.pipeline)) and stored["processors"] == []:
                undeploy_ingest(cluster, cluster.index_info(plan.index))
            raise
        body = ingest_body(info, model.model_id)
        cluster.request("PUT", pipeline["path"], body)
        cluster.request("PUT", usage["path"], usage["body"])
        stored, setting = stored_ingest(cluster, plan.pipeline), cluster.index_info(plan.index).settings
        is_ours = stored is None or stored["processors"] == body["processors"]
        if not is_ours:
            delete_model(cluster, model)
            raise overtaken_error(plan.index)
        send_deletions(cluster, older_models)
        is_used = stored is not None and setting.get(DEFAULT_INGEST) == plan.pipeline
        if is_used and model_state(cluster, model.model_id) == DEPLOYED:
            return replace(plan, model_id=model.model_id)
    raise overtaken_error(plan.index)


def undeploy_ingest(cluster: Cluster, info: IndexInfo, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Remove ingest pipeline, model and connector; return the requests, none if the index does not use the
    pipeline.

    An index without it causes no request, so that removing vectors needs no right to read pipelines. Models
    and connectors are found by the pipeline that they were made for, not by the ids in the pipeline.
    """
    pipeline = ingest_pipeline_of(info)
    if info.settings.get(DEFAULT_INGEST) != pipeline:
        return []
    require_own_ingest(cluster, pipeline)
    requests = [  # models first: by the setting the next run finds what a killed one left behind
        *pipeline_model_deletions(cluster, pipeline),
        {"method": "PUT", "path": path_of(info.name, "_settings"), "body": {DEFAULT_INGEST: None}},
        {"method": "DELETE", "path": path_of("_ingest", "pipeline", pipeline)},
    ]
    send_deletions(cluster, [] if dry_run else requests)
    is_used = cluster.index_info(info.name).settings.get(DEFAULT_INGEST) == pipeline
    if not dry_run and is_used and stored_ingest(cluster, pipeline) is None:
        send_deletions(cluster, requests[-2:-1])  # a `deploy` set it meanwhile: every write would fail
    return requests


def ingest_pipeline_of(info: IndexInfo) -> str:
    """Return the name of the ingest pipeline of an index."""
    return f"hybridr-{info.name}-ingest"


def ingest_connector(pipeline: str, settings: DeploySettings) -> dict[str, Any]:
    """Return the body of a connector to the server's encoder of documents."""
    return embedding_connector(pipeline, settings.server, "passage", token=token_of(settings))


def ingest_body(info: IndexInfo, model_id: str) -> dict[str, Any]:
    """Return the body of the ingest pipeline. It joins the texts, gets their vector and removes temporary
    fields; no failure stops a write.
    """
    parameters = {"fields": list(info.record.fields), "text": TEXT_FIELD}
    script = {"lang": "painless", "source": JOIN_SCRIPT, "params": parameters}
    vector = {
        "model_id": model_id,
        "field_map": {TEXT_FIELD: info.record.vector_field},
        "batch_size": DOCUMENTS_PER_CALL,
    }
    stale_fields = [ENCODER_FIELD, SEQ_NO_FIELD, *fields_of(info.record)]
    return {
        "description": MARK,
        "processors": [
            {"remove": {"field": stale_fields, "ignore_missing": True}},
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
