"""In which shard the cluster puts a document, and in which one it is looked for."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.connection import path_of
from hybridr.cluster.routing import shards_for
from support.corpus import bulk


@pytest.mark.parametrize("spread", [1, 3], ids=["one shard a routing", "three shards a routing"])
def test_a_document_lies_where_it_is_looked_for(cluster, index_name, spread):
    settings: dict[str, Any] = {"number_of_shards": 5, "number_of_replicas": 0}
    mappings: dict[str, Any] = {}
    if spread > 1:
        settings["routing_partition_size"], mappings = spread, {"_routing": {"required": True}}
    cluster.request("PUT", path_of(index_name), {"settings": settings, "mappings": mappings})
    lines: list[dict[str, Any]] = []
    for number in range(60):
        routing = {"routing": f"tenant {number % 7}"} if spread > 1 or number % 2 else {}
        lines += [{"index": {"_id": f"é{number}", **routing}}, {"text": "a zephyr"}]
    bulk(cluster, index_name, lines)
    info = cluster.index_info(index_name)
    body = {"size": 100, "explain": True}
    hits = cluster.request("POST", path_of(index_name, "_search"), body)["hits"]["hits"]
    assert len(hits) == 60
    for hit in hits:
        shards = shards_for(hit.get("_routing") or hit["_id"], info)
        assert hit["_shard"] in [f"[{index_name}][{shard}]" for shard in shards]
