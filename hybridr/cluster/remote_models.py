"""Models of ml-commons that ask an embedding server: connector, model, and the settings they need.

A connector and a model have the name of the search pipeline that they were created for, and a description
that starts with `hybridr: `. hybridr finds them by both, even if no record lists them, and deletes no others.

Functions raise the cluster's errors; a cluster without the plugin opensearch-ml refuses the paths.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
import urllib3

from ..errors import AccessDenied, ClusterError, NotFound, SettingsError, Unreachable, without_password
from ..files.fetching import ask_web
from ..files.local import load_asset
from .connection import Cluster, path_of
from .settings import Side

PLUGIN = "opensearch-ml"
MARK = "hybridr: "
MAX_RESULTS = 1000
UNAUTHORISED = 401
ML = "/_plugins/_ml"
MODEL_ID, CONNECTOR_ID = "<model_id>", "<connector_id>"
CONNECTORS, MODELS = f"{ML}/connectors/_create", f"{ML}/models/_register"
ANY_NODE = "plugins.ml_commons.only_run_on_ml_node"
PRIVATE = "plugins.ml_commons.connector.private_ip_enabled"
TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
DEPLOYED = "DEPLOYED"  # the state of a model that answers
DEPLOY_TIMEOUT_S = 60.0
TRIES = 3
CONFLICT, CONFLICT_TIMEOUT_S = 409, 30.0
STILL_DEPLOYED = "in deploying or deployed state"  # why ml-commons refuses with 400 to delete a model
ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class RemoteModel:
    """A deployed model and the connector behind it, by their ids."""

    model_id: str
    connector_id: str


def trusted_pattern(server: str) -> str:
    """Return the pattern that lets a cluster ask only `server` (`http://host:port`).

    Raises SettingsError for an invalid address.
    """
    parts = urlsplit(server)
    if not re.fullmatch(r"https?://[^/?#@\\\s\x00-\x1f\x7f]+(/[^?#\\\s\x00-\x1f\x7f]*)?", server):
        raise SettingsError(
            f"'{without_password(server)}' is not a server's address", hint="it looks like http://host:8080"
        )
    return f"^{re.escape(f'{parts.scheme}://{parts.netloc}')}/.*$"


def missing_settings(cluster: Cluster, server: str) -> dict[str, Any]:
    """Return the cluster settings that a model of `server` needs but that are not set, with their values."""
    settings = cluster.request("GET", "/_cluster/settings", params={"flat_settings": "true"})
    current = {**settings.get("persistent", {}), **settings.get("transient", {})}  # transient ones win
    trusted, pattern = list(current.get(TRUSTED, ())), trusted_pattern(server)
    needed = {ANY_NODE: "false", PRIVATE: "true"}
    missing: dict[str, Any] = {name: value for name, value in needed.items() if current.get(name) != value}
    if pattern not in trusted:
        missing[TRUSTED] = [*trusted, pattern]
    return missing


def require_allowed(missing: Mapping[str, Any], server: str, note: str = "") -> None:
    """Raise ClusterError if settings that a model of `server` needs are missing.

    Its hint is the request that sets them, followed by `note`.
    """
    if missing:
        setting = orjson.dumps({"persistent": missing}).decode()
        raise ClusterError(
            f"the cluster does not let a model ask {server}",
            hint=f"PUT /_cluster/settings {setting}{note}",
        )


def embedding_connector(name: str, server: str, side: Side, *, token: str | None = None) -> dict[str, Any]:
    """Return the body of a connector that embeds queries or passages (`side`) with the embedding server."""
    body = connector_body("embeddings", name, f"{server.rstrip('/')}/v1/embeddings", token)
    body["parameters"]["model"] = f"hybridr-{side}"
    return body


def connector_body(asset: str, name: str, url: str, token: str | None) -> dict[str, Any]:
    """Return the body of a connector from `opensearch/connectors/` with name, address and token."""
    body = load_asset("connectors", f"{asset}.json")
    body["name"] = name
    body["actions"][0]["url"] = url
    if token is not None:
        body["credential"]["token"] = token
        body["actions"][0]["headers"]["Authorization"] = "Bearer ${credential.token}"
    return body


def model_body(name: str, connector_id: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the body of a model that uses a connector; a semantic field's model needs a `model_config`."""
    body: dict[str, Any] = {
        "name": name,
        "description": f"{MARK}asks the server of a deployment",
        "function_name": "remote",
        "connector_id": connector_id,
    }
    return body | {"model_config": config} if config else body


def creation_requests(
    connector: dict[str, Any], config: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the requests that create and deploy a model, with the token masked."""
    public = connector | {"credential": dict.fromkeys(connector["credential"], "***")}
    return [
        {"method": "POST", "path": CONNECTORS, "body": public},
        {"method": "POST", "path": MODELS, "body": model_body(connector["name"], CONNECTOR_ID, config)},
        {"method": "POST", "path": f"{ML}/models/{MODEL_ID}/_deploy"},
    ]


def create_model(
    cluster: Cluster, connector: dict[str, Any], config: dict[str, Any] | None = None
) -> RemoteModel:
    """Create a connector and a model of the same name, and deploy the model. Raises ClusterError."""
    cluster = cluster.with_patience(DEPLOY_TIMEOUT_S)  # the plugin answers 503 while it creates its index
    connector_id = cluster.request("POST", CONNECTORS, connector)["connector_id"]
    answer = cluster.request("POST", MODELS, model_body(connector["name"], connector_id, config))
    model_id = answer.get("model_id")
    if model_id is None:
        task_id = answer["task_id"]
        if (task := await_task(cluster, task_id, DEPLOY_TIMEOUT_S)) is None:
            raise ClusterError(f"the cluster did not finish its task {task_id} in {DEPLOY_TIMEOUT_S:.0f} s")
        model_id = task["model_id"]
    deploy_model(cluster, model_id)
    return RemoteModel(model_id, connector_id)


def deploy_model(cluster: Cluster, model_id: str) -> None:
    """Deploy a model. Raises ClusterError.

    The request is repeated if its task does not end, since ml-commons sometimes loses a task.
    """
    for _ in range(TRIES):
        response = cluster.request("POST", f"{ml_path('models', model_id)}/_deploy")
        task = await_task(cluster, response["task_id"], DEPLOY_TIMEOUT_S / TRIES)
        if task or model_state(cluster, model_id) == DEPLOYED:
            return
    raise ClusterError(
        f"the cluster did not deploy the model {model_id} in {DEPLOY_TIMEOUT_S:.0f} s",
        hint="GET /_plugins/_ml/tasks/_search shows what it waits for; then run the same command again",
    )


def model_deletion(model_id: str) -> list[dict[str, Any]]:
    """Return the requests that undeploy and delete a model."""
    path = ml_path("models", model_id)
    return [{"method": "POST", "path": f"{path}/_undeploy"}, {"method": "DELETE", "path": path}]


def ml_path(kind: str, ml_id: str) -> str:
    """Return the URL path of a member of "models", "connectors" or "model_groups" (`kind`).

    Raises SettingsError for an impossible id.
    """
    if not is_id(ml_id):
        raise SettingsError(f"{ml_id[:100]!r} is not an id of ml-commons")
    return f"{ML}/{kind}/{ml_id}"


def is_id(text: str) -> bool:
    """Return whether a text can be the id of a model, a connector or a group."""
    return re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text) is not None


def pipeline_model_deletions(
    cluster: Cluster, name: str, *, keep: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the requests that delete the models and connectors created for a pipeline; none without plugin.

    At most MAX_RESULTS of each are deleted, including those of killed runs. The ids in `keep` stay. The model
    group is deleted only if `keep` is empty.
    """
    if PLUGIN not in cluster.installed_parts("plugins"):
        return []
    models = [model for model in search_ids(cluster, "models", name) if model not in keep]
    connectors = [connector for connector in search_ids(cluster, "connectors", name) if connector not in keep]
    groups = [] if keep else search_ids(cluster, "model_groups", name)
    return [
        *(request for model in models for request in model_deletion(model)),
        *({"method": "DELETE", "path": ml_path("connectors", connector)} for connector in connectors),
        *({"method": "DELETE", "path": ml_path("model_groups", group)} for group in groups),
    ]


def search_ids(cluster: Cluster, kind: str, name: str) -> list[str]:
    """Return the ids of hybridr's "models", "connectors" or "model_groups" (`kind`) of a name.

    They are recognised by their description. The cluster drops it for groups and remote models, so those
    without a description count too.
    """
    body = {"size": MAX_RESULTS, "query": {"term": {"name.keyword": name}}}
    try:
        hits = cluster.request("POST", f"{ML}/{kind}/_search", body)["hits"]["hits"]
    except NotFound:
        return []
    ids: list[str] = []
    for hit in hits:
        description = str(hit["_source"].get("description", ""))
        is_ours = description.startswith(MARK)
        if not description:
            is_ours = kind == "model_groups" or hit["_source"].get("algorithm") == "REMOTE"
        if is_ours and is_id(hit["_id"]):
            ids.append(str(hit["_id"]))
    return ids


def delete_model(cluster: Cluster, model: RemoteModel) -> None:
    """Undeploy and delete a model and its connector; a missing one is no error."""
    connector = {"method": "DELETE", "path": ml_path("connectors", model.connector_id)}
    send_deletions(cluster, [*model_deletion(model.model_id), connector])


def send_deletions(cluster: Cluster, requests: list[dict[str, Any]]) -> None:
    """Send requests that undeploy or delete, in the given order; a missing target is no error.

    A model group answers 409 for about a second after its last model was deleted, so the request is repeated.
    A model that was deployed just before can count as deployed again after it was undeployed. Both requests
    are repeated then. If the server reports by mistake that a connector is in use (`is_mistaken_conflict`),
    the connector stays.
    """
    for request in requests:
        deadline = time.monotonic() + CONFLICT_TIMEOUT_S
        while True:
            try:
                cluster.request(request["method"], request["path"], request.get("body"))
                break
            except NotFound:
                break
            except ClusterError as failure:
                if failure.status == CONFLICT and is_mistaken_conflict(cluster, request["path"], failure):
                    break
                is_still_deployed = STILL_DEPLOYED in failure.message
                if not (failure.status == CONFLICT or is_still_deployed) or time.monotonic() > deadline:
                    raise
                if is_still_deployed:
                    undeployment, _ = model_deletion(request["path"].rpartition("/")[2])
                    with suppress(NotFound):
                        cluster.request(undeployment["method"], undeployment["path"])
                time.sleep(0.2)


def is_mistaken_conflict(cluster: Cluster, path: str, failure: ClusterError) -> bool:
    """Return whether a conflict is wrong: all models that it names as users of a connector use another one.

    ml-commons 3.6 finds these models by a full-text match of ids, so two ids that share a part between
    hyphens count as equal. All ids of a node share some characters, on some nodes with a hyphen among them.
    """
    if "/connectors/" not in path:
        return False
    model_ids = re.findall(r"[\w-]+", failure.message.rpartition("[")[2])
    for model_id in model_ids:
        try:
            model = cluster.request("GET", ml_path("models", model_id))
        except NotFound:  # deleted just now; the cluster's search may still find it for a moment
            return False
        if model.get("connector_id") == path.rpartition("/")[2]:
            return False
    return bool(model_ids)


def ask_embedding_server(server: str, path: str, token: str | None = None) -> dict[str, Any]:
    """Return the JSON object that an embedding server answers at a path; empty for another JSON value.

    Raises SettingsError for a wrong token, and Unreachable.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{server.rstrip('/')}{path}"
    try:
        answer = ask_web("GET", url, ANSWER_TIMEOUT_S, headers=headers)
        if answer.status == UNAUTHORISED:
            raise SettingsError(
                f"the server at {server} asks for {'another' if token else 'a'} token",
                hint="set HYBRIDR_DEPLOY_TOKEN to the server's HYBRIDR_SERVE_TOKEN",
            )
        record = orjson.loads(answer.content)
    except (urllib3.exceptions.HTTPError, TimeoutError, ValueError) as error:
        raise Unreachable(
            f"no embedding server answers at {server}: {type(error).__name__}",
            hint="hybridr serve --index NAME   starts one; --server ADDRESS names another",
        ) from None
    return record if isinstance(record, dict) else {}


def is_refused(cluster: Cluster, model_id: str, way: str) -> bool:
    """Return whether the embedding server refuses the cluster's stored token in a request of the model."""
    text = '["x"]' if way == "neural" else '{"match_none": {}}'
    body = {"parameters": {"input": text}}
    try:
        cluster.with_timeout(ANSWER_TIMEOUT_S).request(
            "POST", f"{ml_path('models', model_id)}/_predict", body
        )
    except AccessDenied as error:
        return error.status == UNAUTHORISED  # 403 is the cluster's answer to hybridr
    except ClusterError:
        pass  # another check asks the server itself whether it answers at all
    return False


def model_state(cluster: Cluster, model_id: str) -> str | None:
    """Return the state of a model in ml-commons, such as DEPLOYED; None if it does not exist."""
    try:
        return str(cluster.request("GET", path_of("_plugins", "_ml", "models", model_id))["model_state"])
    except NotFound:
        return None


def await_task(cluster: Cluster, task_id: str, timeout_s: float) -> dict[str, Any] | None:
    """Wait for a task of ml-commons and return it, or None after the timeout. Raises ClusterError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        task: dict[str, Any] = cluster.request("GET", path_of("_plugins", "_ml", "tasks", task_id))
        if task["state"] == "COMPLETED":
            return task
        if task["state"].endswith("FAILED") or task["state"] == "CANCELLED":
            raise ClusterError(f"the cluster could not take the model: {task.get('error', task['state'])}")
        time.sleep(0.05)
    return None
