"""In which shard the cluster puts a document, and in which one it is looked for."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.connection import path_of
from hybridr.cluster.routing import shards_for
from support.corpus import put


@pytest.mark.parametrize("spread", [1, 3], ids=["one shard a routing", "three shards a routing"])
def test_a_document_lies_where_it_is_looked_for(cluster, index_name, spread):
    settings: dict[str, Any] = {"number_of_shards": 5, "number_of_replicas": 0}
    mappings: dict[str, Any] = {}
    if spread > 1:
        settings["routing_partition_size"], mappings = spread, {"_routing": {"required": True}}
    cluster.request("PUT", path_of(index_name), {"settings": settings, "mappings": mappings})
    ids = {f"é{number}": number for number in range(60)}
    routings = {one: f"tenant {n % 7}" for one, n in ids.items() if spread > 1 or n % 2}
    put(cluster, index_name, dict.fromkeys(ids, {"text": "a zephyr"}), routings)
    info = cluster.index_info(index_name)
    body = {"size": 100, "explain": True}
    hits = cluster.request("POST", path_of(index_name, "_search"), body)["hits"]["hits"]
    assert len(hits) == 60
    for hit in hits:
        shards = shards_for(hit.get("_routing") or hit["_id"], info)
        assert hit["_shard"] in [f"[{index_name}][{shard}]" for shard in shards]
