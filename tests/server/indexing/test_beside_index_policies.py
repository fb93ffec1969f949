"""What policies and owners do to an index with vectors: it is shrunk, restored or made read-only."""

from __future__ import annotations

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError
from hybridr.indexing.reindexing import ReindexResult, plan, reindex, sync
from support.corpus import add_alias, bulk, delete, fill_index, having, put_documents, sources
from support.hashing import HashingEncoder

ENCODER, OTHER, THIRD = HashingEncoder(), HashingEncoder(salt="other"), HashingEncoder(salt="third")


@pytest.fixture
def name(cluster: Cluster, index_name: str) -> str:
    """Name an index with 20 documents."""
    fill_index(cluster, index_name, 20, settings={"number_of_replicas": 0, "number_of_shards": 2})
    return index_name


def again(cluster: Cluster, name: str, encoder: HashingEncoder = OTHER, **settings: object) -> ReindexResult:
    return reindex(cluster, name, encoder, ReindexSettings(fields=("text",), term_table=False, **settings))


def shrunk(cluster: Cluster, index: str, aliases: dict[str, dict[str, object]]) -> str:
    """Shrink an index as a policy does: the smaller one takes over its name and its aliases."""
    smaller = f"{index}-shrunken"
    cluster.request("PUT", path_of(index, "_settings"), {"index.blocks.write": True})
    settings = {"index.number_of_shards": 1, "index.number_of_replicas": 0, "index.blocks.write": None}
    cluster.request("POST", path_of(index, "_shrink", smaller), {"settings": settings})
    additions = [
        {"add": {"index": smaller, "alias": alias, **kind}} for alias, kind in {**aliases, index: {}}.items()
    ]
    cluster.request("POST", "/_aliases", {"actions": [{"remove_index": {"index": index}}, *additions]})
    return smaller


def test_what_clients_wrote_in_an_index_that_was_shrunk_is_not_left_behind(cluster, name):
    first = again(cluster, name, ENCODER)
    bulk(cluster, first.alias, [{"index": {"_id": "own"}}, {"text": "zephyr by a client"}])
    put_documents(cluster, first.alias, [3], suffix=" by a client")
    delete(cluster, first.alias, "d5")
    smaller = shrunk(cluster, first.destination, {first.alias: {}})
    before = sources(cluster, first.alias)
    for attempt in (plan, reindex):
        with pytest.raises(ClusterError) as refused:
            attempt(cluster, name, OTHER, ReindexSettings(fields=("text",), term_table=False))
        assert "does not list that index and lacks 2 documents" in refused.value.message
        assert f"'{smaller}', and still holds 1 that they deleted" in refused.value.message
        assert "--discard leaves them" in (refused.value.hint or "")
    assert sources(cluster, first.alias) == before
    assert again(cluster, name, discard=True).switched
    assert sources(cluster, first.alias).keys() == sources(cluster, name).keys()


def test_an_index_that_was_shrunk_and_not_written_is_replaced_and_a_filter_stays(cluster, name):
    narrow = {"filter": {"term": {"tags": "a"}}}
    app = f"{name}-app"
    add_alias(cluster, name, app, **narrow)
    first = again(cluster, name, ENCODER, alias=app)
    smaller = shrunk(cluster, first.destination, {app: narrow})
    done = again(cluster, name, alias=app)
    (info,) = cluster.indices(app)
    assert (info.name, info.aliases[app]) == (done.destination, narrow)
    assert app not in cluster.index_info(smaller).aliases


@pytest.mark.parametrize("block", ["read_only", "read_only_allow_delete"])
def test_a_block_of_the_index_that_the_alias_leaves_stops_before_anything_is_made(cluster, name, block):
    first = again(cluster, name, ENCODER)
    with (
        having(cluster, {f"index.blocks.{block}": True}, first.destination),
        pytest.raises(ClusterError, match=f"index.blocks.{block} is true") as refused,
    ):
        again(cluster, name)
    assert f"PUT /{first.destination}/_settings" in (refused.value.hint or "")
    assert not cluster.exists(f"{name}-hybridr-2")
    assert again(cluster, name).switched


def test_a_block_of_an_earlier_index_stops_a_third_but_not_a_round_of_sync(cluster, name):
    first = again(cluster, name, ENCODER)
    again(cluster, name)
    with having(cluster, {"index.blocks.read_only": True}, first.destination):
        put_documents(cluster, name, [4], suffix=" anew")
        assert sync(cluster, name, OTHER).copied == 1
        assert again(cluster, name).destination == f"{name}-hybridr-2"
        with pytest.raises(ClusterError, match=f"no such block on '{first.destination}'"):
            again(cluster, name, THIRD)
    assert not cluster.exists(f"{name}-hybridr-3")
