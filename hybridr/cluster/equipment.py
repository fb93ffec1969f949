"""What the nodes of a cluster have: plugins and modules; and whether one of them is hybridr's own."""

from __future__ import annotations

from ..errors import ClusterError
from .connection import Cluster
from .embedded.state import nodes
from .failures import understood

KNN = "opensearch-knn"


def require_offered(cluster: Cluster, *product: str | None) -> None:
    """Raise ClusterError for the first of these verbs, options or values that the product lacks."""
    for lacking in (cluster.dialect.lacks(what) for what in product if what):
        if lacking:
            raise ClusterError(lacking, hint="docs/elasticsearch.md says what works where")


def has_vectors(cluster: Cluster) -> bool:
    """Tell whether every node takes vectors, by itself or by its plugin, or does not tell its plugins."""
    has = plugins_of(cluster)
    return not cluster.dialect.has_parts or not has or KNN in has


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
    marked = any("hybridr_embedded" in node.get("attributes", {}) for node in cluster.nodes)
    return marked or any(node.running and node.url == cluster.url for node in nodes())
