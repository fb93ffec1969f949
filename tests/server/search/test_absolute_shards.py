"""The request of the absolute fusion on three shards: counted over all, reduced in parts, in segments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster
from hybridr.indexing.reindexing import reindex
from support.corpus import drop_indices, fill_uneven
from support.hashing import HashingEncoder

NAMES = {1: "t-shards-one", 3: "t-shards-three"}
QUERIES = ["anchor needle", "velvet umbrella dragon", "quartz", "basket marble zephyr harbor candle"]
Hits = list[tuple[str, float]]


@pytest.fixture(scope="module")
def searches(cluster: Cluster) -> Iterator[dict[int, Search]]:
    for shards, name in NAMES.items():
        fill_uneven(cluster, name, shards)
        reindex(cluster, name, HashingEncoder(dim=32))
    yield {shards: Search(cluster, name, HashingEncoder(dim=32)) for shards, name in NAMES.items()}
    drop_indices(cluster, "t-shards-*")


def asked(search: Search, text: str, **params: object) -> Hits:
    answer = search.cluster.search(search.info.name, search.request(text, 20) | {"explain": True}, params)
    assert answer["_shards"]["failed"] == 0
    if search.info.shards > 1:
        assert len({hit["_shard"] for hit in answer["hits"]["hits"]}) > 1, "hits of several shards"
    return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]


@pytest.mark.parametrize("text", QUERIES)
def test_dfs_counts_over_all_shards(searches, text):
    """With dfs three shards give the hits and the scores of an index of one shard."""
    one = asked(searches[1], text)
    three = asked(searches[3], text, search_type="dfs_query_then_fetch")
    assert [score for _, score in three] == pytest.approx([score for _, score in one], abs=1e-5)
    assert dict(three) == pytest.approx(dict(one), abs=1e-5)


@pytest.mark.parametrize("text", QUERIES[:2])
def test_a_reduce_in_parts_changes_nothing(searches, text):
    """Above 512 shards the coordinating node joins answers in parts, as it does here from two on."""
    assert asked(searches[3], text, batched_reduce_size=2) == asked(searches[3], text)
