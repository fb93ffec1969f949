"""Addresses: where a cluster is, by the settings or by the nodes of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError
from .settings import ClusterSettings

if TYPE_CHECKING:
    from ..node.state import NodeState

DEFAULT_URL = "http://localhost:9200"


def addressed(settings: ClusterSettings) -> ClusterSettings:
    """Fill in the url; a node of hybridr's own brings its certificate and its user with it."""
    from ..node.state import nodes, running_node

    if settings.url is None:
        if (node := running_node()) is None:
            refuse_to_choose([one for one in nodes() if one.running])
    else:
        node = next((node for node in nodes() if node.running and node.url == settings.url), None)
    if node is None:
        hosts = (one.strip().rstrip("/") for one in (settings.url or DEFAULT_URL).split(","))
        return settings.model_copy(update={"url": ",".join(hosts)})
    found: dict[str, Any] = {"url": node.url}
    if node.ca_certs and settings.ca_certs is None:
        found["ca_certs"] = Path(node.ca_certs)
    if node.user and node.password_file and settings.user is None:
        found |= {"user": node.user, "password_file": Path(node.password_file)}
    return settings.model_copy(update=found)


def refuse_to_choose(running: Sequence[NodeState]) -> None:
    """Raise SettingsError where several nodes of our own run and none is the default."""
    if running:
        found = ", ".join(f"{one.name} at {one.url}" for one in running)
        raise SettingsError(f"several nodes run, none of them called 'default': {found}", hint="--url URL")
