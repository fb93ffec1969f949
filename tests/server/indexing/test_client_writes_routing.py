"""The same id under several routings, and documents that move from one to another: each is one document."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.routing import shards_for
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from hybridr.status.standing import remove, status
from support.corpus import bulk
from support.hashing import HashingEncoder

TENANTS = "ade"  # each in another of three shards
BODY: dict[str, Any] = {
    "settings": {"number_of_shards": 3, "number_of_replicas": 0},
    "mappings": {"_routing": {"required": True}, "properties": {"text": {"type": "text"}}},
}
Contents = dict[tuple[str, str], str]


def contents(cluster: Cluster, index: str) -> Contents:
    answer = cluster.request("POST", path_of(index, "_search"), {"size": 1000}, {"version": "true"})
    return {(hit["_id"], hit["_routing"]): hit["_source"]["text"] for hit in answer["hits"]["hits"]}


def write(cluster: Cluster, index: str, documents: Contents) -> None:
    lines: list[dict[str, Any]] = []
    for (doc_id, routing), text in documents.items():
        lines += [{"index": {"_id": doc_id, "routing": routing}}, {"text": text}]
    bulk(cluster, index, lines)


def erase(cluster: Cluster, index: str, *keys: tuple[str, str]) -> None:
    bulk(cluster, index, [{"delete": {"_id": doc_id, "routing": routing}} for doc_id, routing in keys])


@pytest.fixture
def tenants(cluster: Cluster, index_name: str) -> str:
    """Thirty ids of one tenant each, ten that all three tenants have."""
    cluster.request("PUT", path_of(index_name), BODY)
    info = cluster.index_info(index_name)
    assert len({tuple(shards_for(tenant, info)) for tenant in TENANTS}) == 3
    own = {(f"own{number}", TENANTS[number % 3]): f"a zephyr {number}" for number in range(30)}
    shared = {
        (f"shared{number}", tenant): f"a candle {number} of {tenant}"
        for number in range(10)
        for tenant in TENANTS
    }
    write(cluster, index_name, own | shared)
    reindex(cluster, index_name, HashingEncoder())
    return index_name


def require_equal(cluster: Cluster, index: str) -> None:
    """Source and destination hold the same, and every command says so."""
    alias = f"{index}-hybridr"
    assert contents(cluster, alias) == contents(cluster, index)
    checked = verify(cluster, index, HashingEncoder())
    assert checked.ok, checked.problems()
    [held] = status(cluster, index).holdings
    assert (held.lag.inserts, held.lag.updates, held.lag.deletes) == (0, 0, 0)


def test_what_the_source_deletes_goes_and_nothing_else(cluster, tenants):
    before = contents(cluster, tenants)
    gone = [("own1", "d"), ("own2", "e"), ("shared3", "d"), ("shared4", "a"), ("shared4", "e")]
    erase(cluster, tenants, gone[0])
    sync(cluster, tenants, HashingEncoder())
    erase(cluster, tenants, *gone[1:])
    assert sync(cluster, tenants, HashingEncoder()).deleted == len(gone) - 1
    require_equal(cluster, tenants)
    after = {key: text for key, text in before.items() if key not in gone}
    assert rollback(cluster, tenants, copy_back=True)["returned"]["deleted"] == 0
    assert contents(cluster, tenants) == after


def test_a_document_that_moves_leaves_no_copy_behind(cluster, tenants):
    erase(cluster, tenants, ("own7", "d"))
    write(cluster, tenants, {("own7", "a"): "moved", ("shared2", "d"): "a later candle"})
    write(cluster, tenants, {("shared2", "a"): "the latest candle"})
    sync(cluster, tenants, HashingEncoder())
    require_equal(cluster, tenants)
    again = reindex(cluster, tenants, HashingEncoder())
    assert (again.encoded, again.rejected) == (0, 0)
    require_equal(cluster, tenants)


@pytest.mark.parametrize(("way", "synced"), [("remove", True), ("reindex", False)])
def test_what_clients_move_and_write_under_one_id_is_all_kept(cluster, tenants, way, synced):
    alias = f"{tenants}-hybridr"
    erase(cluster, alias, ("own8", "e"), ("shared0", "d"))
    write(cluster, alias, {("own8", "a"): "moved by a client"})
    theirs = {(f"shared{number}", tenant): f"{tenant} {number}" for number in range(1, 7) for tenant in "ad"}
    write(cluster, alias, theirs)
    if synced:
        sync(cluster, tenants, HashingEncoder())
    there = contents(cluster, alias)
    assert (there["own8", "a"], there["shared1", "d"], len(there)) == ("moved by a client", "d 1", 59)
    if way == "reindex":
        done = reindex(cluster, tenants, HashingEncoder(), ReindexSettings(vectors="byte"))
        assert (done.switched, contents(cluster, alias)) == (True, there)
        rollback(cluster, tenants, copy_back=True)
        assert contents(cluster, alias) == there
    if way == "remove":
        assert remove(cluster, tenants, copy_back=True)["returned"]["changed"] == 13
    else:
        rollback(cluster, tenants, copy_back=True)
    assert contents(cluster, tenants) == there
