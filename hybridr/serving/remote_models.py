"""Models of ml-commons that ask an embedding server: connector, model, and the settings they need.

Raises what the cluster answers; a cluster without the plugin opensearch-ml refuses the paths.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
import urllib3

from ..cluster.connection import Cluster, path_of
from ..errors import ClusterError, NotFound, SettingsError, Unreachable
from ..files.assets import load_asset
from .settings import Side

PLUGIN = "opensearch-ml"
ML = "/_plugins/_ml"
CONNECTORS, MODELS = f"{ML}/connectors/_create", f"{ML}/models/_register"
ANY_NODE = "plugins.ml_commons.only_run_on_ml_node"
PRIVATE = "plugins.ml_commons.connector.private_ip_enabled"
TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
DEPLOY_TIMEOUT_S = 60.0
CONFLICT, CONFLICT_TIMEOUT_S = 409, 30.0
ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class RemoteModel:
    """A deployed model and the connector behind it, by their ids."""

    model_id: str
    connector_id: str


def trusted_pattern(server: str) -> str:
    """Give the pattern that lets a cluster ask `server` (`http://host:port`) and nothing else."""
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        raise SettingsError(f"'{server}' is no address of a server", hint="it looks like http://host:8080")
    return f"^{re.escape(f'{parts.scheme}://{parts.netloc}')}/.*$"


def missing_settings(cluster: Cluster, server: str) -> dict[str, Any]:
    """Give the cluster settings that a remote model of `server` needs and that are not set."""
    current = current_settings(cluster)
    trusted, pattern = list(current.get(TRUSTED, ())), trusted_pattern(server)
    needed = {ANY_NODE: "false", PRIVATE: "true"}
    missing: dict[str, Any] = {name: value for name, value in needed.items() if current.get(name) != value}
    if pattern not in trusted:
        missing[TRUSTED] = [*trusted, pattern]
    return missing


def current_settings(cluster: Cluster) -> dict[str, Any]:
    """Read the flat settings of a cluster; a transient value hides a persistent one."""
    found = cluster.request("GET", "/_cluster/settings", params={"flat_settings": "true"})
    return {**found.get("persistent", {}), **found.get("transient", {})}


def embedding_connector(
    name: str, server: str, side: Side, *, token: str | None = None, client: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Build the connector to a side of the embedding server; `client` is added to its `client_config`."""
    body = connector_body("embeddings", name, f"{server.rstrip('/')}/v1/embeddings", token)
    body["parameters"]["model"] = f"hybridr-{side}"
    body["client_config"] |= client or {}
    return body


def rewriting_connector(name: str, server: str, *, token: str | None = None) -> dict[str, Any]:
    """Build the connector to the query rewriter of the embedding server."""
    return connector_body("rewriting", name, f"{server.rstrip('/')}/v1/rewrite", token)


def ranking_connector(
    name: str, server: str, *, token: str | None = None, recall: str = "all"
) -> dict[str, Any]:
    """Build the connector to what ranks whole search bodies; `recall` says what they find."""
    return connector_body("ranking", name, f"{server.rstrip('/')}/v1/rank?recall={recall}", token)


def connector_body(asset: str, name: str, url: str, token: str | None) -> dict[str, Any]:
    """Fill in a connector of `opensearch/connectors/`."""
    body = load_asset("connectors", f"{asset}.json")
    body["name"] = name
    body["actions"][0]["url"] = url
    if token is not None:
        body["credential"]["token"] = token
        body["actions"][0]["headers"]["Authorization"] = "Bearer ${credential.token}"
    return body


def model_body(name: str, connector_id: str) -> dict[str, Any]:
    """Build the model behind a connector."""
    return {"name": name, "function_name": "remote", "connector_id": connector_id}


def create_model(cluster: Cluster, connector: dict[str, Any]) -> RemoteModel:
    """Create a connector and a deployed model of its name. Raises ClusterError."""
    cluster = cluster.patient(DEPLOY_TIMEOUT_S)  # 503 while the plugin makes its own index
    connector_id = cluster.request("POST", CONNECTORS, connector)["connector_id"]
    registered = cluster.request("POST", MODELS, model_body(connector["name"], connector_id))
    model_id = registered.get("model_id") or await_task(cluster, registered["task_id"])["model_id"]
    deployed = cluster.request("POST", f"{ML}/models/{model_id}/_deploy")
    await_task(cluster, deployed["task_id"])
    return RemoteModel(model_id, connector_id)


def deleting_requests(model: RemoteModel) -> list[dict[str, Any]]:
    """List what undeploys and deletes a model and its connector, in this order."""
    return [
        {"method": "POST", "path": f"{ML}/models/{model.model_id}/_undeploy"},
        {"method": "DELETE", "path": f"{ML}/models/{model.model_id}"},
        {"method": "DELETE", "path": f"{ML}/connectors/{model.connector_id}"},
    ]


def delete_model(cluster: Cluster, model: RemoteModel) -> None:
    """Undeploy and delete a model and its connector; what is gone already is no error."""
    for request in deleting_requests(model):
        send_deletion(cluster, request)


def send_deletion(cluster: Cluster, request: Mapping[str, Any]) -> None:
    """Send a request that deletes; what is gone already is no error.

    A group of models whose last one was just deleted answers 409 until that is seen, about a second later. A
    connector that the server holds for the models of others by mistake stays: nothing asks it any more.
    """
    deadline = time.monotonic() + CONFLICT_TIMEOUT_S
    while True:
        try:
            cluster.request(request["method"], request["path"], request.get("body"))
        except NotFound:
            pass
        except ClusterError as failure:
            if failure.status == CONFLICT and is_mistaken(cluster, request["path"], failure):
                return
            if failure.status != CONFLICT or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
            continue
        return


def is_mistaken(cluster: Cluster, path: str, failure: ClusterError) -> bool:
    """Tell whether a connector is said to be in use by models that have other connectors, all of them.

    ml-commons 3.6 looks for these models by a full-text match of ids: two ids that share what stands between
    two hyphens count as one. All ids of a node share some characters, on some nodes a hyphen among them.
    """
    if "/connectors/" not in path:
        return False
    named = re.findall(r"[\w-]+", failure.message.rpartition("[")[2])
    return bool(named) and all(
        (found := connector_id_of(cluster, model)) is not None and found != path.rpartition("/")[2]
        for model in named
    )


def connector_id_of(cluster: Cluster, model_id: str) -> str | None:
    """Name the connector of a model; None for one that is not there, whose deletion is yet to be seen."""
    try:
        found = cluster.request("GET", f"{ML}/models/{model_id}")
    except NotFound:
        return None
    return str(found["connector_id"]) if "connector_id" in found else ""


def ask_health(server: str) -> dict[str, Any]:
    """Ask the embedding server who it is. Raises Unreachable."""
    url = f"{server.rstrip('/')}/healthz"
    try:
        answer = urllib3.PoolManager().request("GET", url, timeout=ANSWER_TIMEOUT_S, retries=False)
        found = orjson.loads(answer.data)
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise Unreachable(
            f"no embedding server answers at {server}: {type(error).__name__}",
            hint="hybridr serve --index NAME   starts one; --server ADDRESS names another",
        ) from None
    return found if isinstance(found, dict) else {}


def model_state(cluster: Cluster, model_id: str) -> str | None:
    """Ask ml-commons for the state of a model, such as DEPLOYED; None where it has none of this id."""
    try:
        return str(cluster.request("GET", path_of("_plugins", "_ml", "models", model_id))["model_state"])
    except NotFound:
        return None


def await_task(cluster: Cluster, task_id: str, timeout_s: float = DEPLOY_TIMEOUT_S) -> dict[str, Any]:
    """Wait for a task of ml-commons. Raises ClusterError when it fails or takes too long."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        task: dict[str, Any] = cluster.request("GET", path_of("_plugins", "_ml", "tasks", task_id))
        if task["state"] == "COMPLETED":
            return task
        if task["state"].endswith("FAILED") or task["state"] == "CANCELLED":
            raise ClusterError(f"the cluster could not take the model: {task.get('error', task['state'])}")
        time.sleep(0.2)
    raise ClusterError(f"the cluster did not finish its task {task_id} in {timeout_s:.0f} s")
