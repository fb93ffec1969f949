"""What the nodes of a cluster have: plugins and modules; and whether one of them is hybridr's own."""

from __future__ import annotations

from ..node.state import nodes
from .connection import Cluster
from .failures import understood


def plugins_of(cluster: Cluster) -> frozenset[str]:
    """Name the plugins that every node has; none where this user may not know. Raises ClusterError."""
    return on_every_node(cluster, "plugins")


def modules_of(cluster: Cluster) -> frozenset[str]:
    """Name the modules that every node has; none where this user may not know. Raises ClusterError."""
    return on_every_node(cluster, "modules")


def on_every_node(cluster: Cluster, kind: str) -> frozenset[str]:
    """Name the parts of a kind, "plugins" or "modules", that no node lacks."""
    with understood(cluster.url, "GET /_nodes"):
        sets = [frozenset(part["name"] for part in node.get(kind, ())) for node in cluster.nodes]
    return frozenset.intersection(*sets) if sets else frozenset()


def is_embedded(cluster: Cluster) -> bool:
    """Tell whether this is hybridr's own node: it tells itself, and those of this machine are known."""
    told = any("hybridr_embedded" in node.get("attributes", {}) for node in cluster.nodes)
    return told or any(node.running and node.url == cluster.url for node in nodes())
