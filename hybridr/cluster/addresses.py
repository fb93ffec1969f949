"""Addresses: where a cluster is, by the settings or by the nodes of this machine."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError
from .settings import ClusterSettings

if TYPE_CHECKING:
    from .embedded.state import NodeState

DEFAULT_URL = "http://localhost:9200"


def addressed(settings: ClusterSettings) -> ClusterSettings:
    """Return the settings with their url filled in; its cloud id is gone, so that this may be done twice.

    A node of hybridr's own brings its certificate and its user with it.
    """
    from .embedded.state import nodes, running_node

    if settings.cloud_id:
        if settings.url is not None:
            raise SettingsError("an address and a cloud id are given", hint="--url URL, or HYBRIDR_CLOUD_ID")
        return settings.model_copy(update={"url": cloud_address(settings.cloud_id), "cloud_id": None})
    if settings.url is None:
        if (node := running_node()) is None:
            refuse_to_choose([node_state for node_state in nodes() if node_state.running])
    else:
        node = next((node for node in nodes() if node.running and node.url == settings.url), None)
    if node is None:
        hosts = (address.strip().rstrip("/") for address in (settings.url or DEFAULT_URL).split(","))
        return settings.model_copy(update={"url": ",".join(hosts)})
    parameters: dict[str, Any] = {"url": node.url}
    if node.ca_certs and settings.ca_certs is None:
        parameters["ca_certs"] = Path(node.ca_certs)
    if node.user and node.password_file and settings.user is None and settings.api_key is None:
        parameters |= {"user": node.user, "password_file": Path(node.password_file)}
    return settings.model_copy(update=parameters)


def cloud_address(cloud_id: str) -> str:
    """Read the address of Elasticsearch in a cloud id, `NAME:` and host, `$` and its name in base64.

    Raises SettingsError.
    """
    try:
        host, name = b64decode(cloud_id.rpartition(":")[2], validate=True).decode("ascii").split("$")[:2]
    except ValueError:
        host = name = ""
    host, _, port = host.partition(":")
    if not (host and name and re.fullmatch(r"[\w.-]+", f"{host}{name}") and (port or "443").isdigit()):
        raise SettingsError("this is no cloud id", hint="Elastic Cloud shows it with the deployment: NAME:…")
    return f"https://{name}.{host}:{port or 443}"


def refuse_to_choose(running: Sequence[NodeState]) -> None:
    """Raise SettingsError where several nodes of our own run and none is the default."""
    if running:
        choices = ", ".join(f"{node.name} at {node.url}" for node in running)
        raise SettingsError(f"several nodes run, none of them called 'default': {choices}", hint="--url URL")
