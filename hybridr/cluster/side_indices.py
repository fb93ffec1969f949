"""Side indices: small ones beside those of users, which several processes may make or delete at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ClusterError, NotFound
from .connection import Cluster, path_of
from .failures import EXISTS


def hidden_body(properties: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Give what a hidden index of one shard is made with that maps these fields alone."""
    index = {"hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1", **settings}
    mappings = {"dynamic": False, "properties": properties, "_meta": {"owner": "hybridr"}}
    return {"settings": {"index": index}, "mappings": mappings}


def make_index(cluster: Cluster, index: str, body: Mapping[str, Any]) -> None:
    """Make an index, unless somebody just did. Raises AccessDenied."""
    try:
        cluster.request("PUT", path_of(index), body)
    except ClusterError as error:
        if error.kind != EXISTS:
            raise


def drop_index(cluster: Cluster, index: str) -> bool:
    """Delete an index; tell whether there was one. Raises AccessDenied."""
    try:
        cluster.request("DELETE", path_of(index))
    except NotFound:
        return False
    return True
