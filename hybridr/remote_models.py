"""Models of ml-commons that ask an embedding server: connector, model, and the settings they need.

Raises what the cluster answers; a cluster without the plugin opensearch-ml refuses the paths.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from .assets import load_asset
from .cluster import Cluster, path_of
from .errors import ClusterError, NotFound, SettingsError

PLUGIN = "opensearch-ml"
ML = "/_plugins/_ml"
ANY_NODE = "plugins.ml_commons.only_run_on_ml_node"
PRIVATE = "plugins.ml_commons.connector.private_ip_enabled"
TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
DEPLOY_TIMEOUT_S = 60.0

Side = Literal["query", "passage"]


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
    found = cluster.request("GET", "/_cluster/settings", params={"flat_settings": "true"})
    current = {**found.get("persistent", {}), **found.get("transient", {})}
    trusted, pattern = list(current.get(TRUSTED, ())), trusted_pattern(server)
    needed = {ANY_NODE: "false", PRIVATE: "true"}
    missing: dict[str, Any] = {name: value for name, value in needed.items() if current.get(name) != value}
    if pattern not in trusted:
        missing[TRUSTED] = [*trusted, pattern]
    return missing


def connector_body(
    name: str, server: str, side: Side, *, token: str | None = None, client: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Build the connector to a side of the embedding server; `client` is added to its `client_config`."""
    body = load_asset("connectors", "embeddings.json")
    body["client_config"] |= client or {}
    action = body["actions"][0]
    body["name"] = name
    body["parameters"]["model"] = f"hybridr-{side}"
    action["url"] = f"{server.rstrip('/')}/v1/embeddings"
    if token is not None:
        body["credential"]["token"] = token
        action["headers"]["Authorization"] = "Bearer ${credential.token}"
    return body


def create_model(
    cluster: Cluster,
    name: str,
    server: str,
    side: Side,
    *,
    token: str | None = None,
    client: dict[str, Any] | None = None,
) -> RemoteModel:
    """Create a connector and a deployed model of this name. Raises ClusterError."""
    connector = connector_body(name, server, side, token=token, client=client)
    made = cluster.request("POST", f"{ML}/connectors/_create", connector)
    body = {"name": name, "function_name": "remote", "connector_id": made["connector_id"]}
    registered = cluster.request("POST", f"{ML}/models/_register", body)
    model_id = registered.get("model_id") or await_task(cluster, registered["task_id"])["model_id"]
    deployed = cluster.request("POST", f"{ML}/models/{model_id}/_deploy")
    await_task(cluster, deployed["task_id"])
    return RemoteModel(model_id, made["connector_id"])


def delete_model(cluster: Cluster, model: RemoteModel) -> None:
    """Undeploy and delete a model and its connector; what is gone already is no error."""
    steps = (
        ("POST", f"{ML}/models/{model.model_id}/_undeploy"),
        ("DELETE", f"{ML}/models/{model.model_id}"),
        ("DELETE", f"{ML}/connectors/{model.connector_id}"),
    )
    for method, path in steps:
        try:
            cluster.request(method, path)
        except NotFound:
            pass


def await_task(cluster: Cluster, task_id: str) -> dict[str, Any]:
    """Wait for a task of ml-commons. Raises ClusterError when it fails or takes too long."""
    deadline = time.monotonic() + DEPLOY_TIMEOUT_S
    while time.monotonic() < deadline:
        task: dict[str, Any] = cluster.request("GET", path_of("_plugins", "_ml", "tasks", task_id))
        if task["state"] == "COMPLETED":
            return task
        if task["state"].endswith("FAILED") or task["state"] == "CANCELLED":
            raise ClusterError(f"the cluster could not take the model: {task.get('error', task['state'])}")
        time.sleep(0.2)
    raise ClusterError(f"the cluster did not finish its task {task_id} in {DEPLOY_TIMEOUT_S:.0f} s")
