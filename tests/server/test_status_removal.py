"""Removal drops all of the record: what tune found for one encoder must not meet the next one."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings, Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.indexing.reindexing import reindex
from hybridr.status.standing import remove
from support.corpus import fill_index
from support.hashing import HashingEncoder

TUNING: dict[str, Any] = {
    "search": {"depth": 50},
    "pipeline": None,
}


@pytest.mark.node
def test_removal_in_place_forgets_what_tune_found(cluster: Cluster, index_name: str) -> None:
    properties = {"text": {"type": "text"}}
    fill_index(
        cluster,
        index_name,
        12,
        settings={"knn": True, "number_of_replicas": 0, "number_of_shards": 2},
        mappings={"properties": properties, "_meta": {"owner": "somebody"}},
    )
    in_place = ReindexSettings(in_place=True, fields=("text",))
    reindex(cluster, index_name, HashingEncoder(), in_place)
    meta = dict(cluster.index_info(index_name).mappings["_meta"])
    meta["hybridr"] = {**meta["hybridr"], "tuning": TUNING}
    cluster.request("PUT", path_of(index_name, "_mapping"), {"_meta": meta})
    remove(cluster, index_name)
    assert cluster.index_info(index_name).mappings["_meta"] == {"owner": "somebody"}
    other = HashingEncoder(salt="another")
    reindex(
        cluster, index_name, other, ReindexSettings(in_place=True, vector_field="other", fields=("text",))
    )
    search = Search(cluster, index_name, other)
    assert search.settings.depth == 100
    assert search("text 3")
