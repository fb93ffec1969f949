"""Version numbers: they decide nothing between source and clients, and a sync leaves those of clients."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from support.corpus import delete, fill_index, put, put_documents, sources, update
from support.hashing import HashingEncoder

ENCODER = HashingEncoder()
FORGETFUL: dict[str, Any] = {"number_of_replicas": 0, "number_of_shards": 2, "index.gc_deletes": "1ms"}


@pytest.fixture
def alias(cluster: Cluster, index_name: str) -> str:
    """Name what clients write to."""
    fill_index(cluster, index_name, 20, settings=FORGETFUL)
    return reindex(cluster, index_name, ENCODER).alias or ""


def version_of(cluster: Cluster, index: str, doc_id: str = "d3") -> int:
    return int(cluster.request("GET", path_of(index, "_doc", doc_id))["_version"])


def numbered(cluster: Cluster, index: str, version: int, kind: str = "external") -> None:
    """Write d3 as clients do that number versions themselves."""
    params = {"version": str(version), "version_type": kind, "refresh": "true"}
    cluster.request("PUT", path_of(index, "_doc", "d3"), {"text": f"state {version}"}, params)


def drift_apart(cluster: Cluster, index_name: str, alias: str, how: str) -> None:
    """Make the version of d3 in the copy higher than in the source, with equal contents."""
    if how == "by clients":
        for number in range(3):
            update(cluster, alias, "d3", price=float(number))
        sync(cluster, index_name, ENCODER)
        put_documents(cluster, index_name, [3], suffix=" anew")
    else:
        for _ in range(4):
            put_documents(cluster, index_name, [3], suffix=" higher")
        sync(cluster, index_name, ENCODER)
        delete(cluster, index_name, "d3")
        time.sleep(0.5)
        delete(cluster, index_name, "d4")  # collects what is old
        put_documents(cluster, index_name, [3], suffix=" anew")
    sync(cluster, index_name, ENCODER)
    assert version_of(cluster, alias) > version_of(cluster, index_name) + 1
    assert sources(cluster, alias) == sources(cluster, index_name)


@pytest.mark.parametrize("how", ["by clients", "made again"])
def test_of_what_both_sides_changed_that_of_the_source_is_taken(cluster, index_name, alias, how):
    drift_apart(cluster, index_name, alias, how)
    for number in range(2):
        update(cluster, alias, "d3", price=7.0 + number)
    put(cluster, index_name, {"d3": {"text": "of the source"}})
    update(cluster, alias, "d5", price=8.0)
    assert sync(cluster, index_name, ENCODER, dry_run=True).copied == 1
    done = sync(cluster, index_name, ENCODER)
    assert (done.copied, done.renewed) == (1, 1)
    assert sources(cluster, alias)["d3"] == {"text": "of the source"}
    assert sources(cluster, alias)["d5"]["price"] == 8.0
    assert verify(cluster, index_name, ENCODER).ok


@pytest.mark.parametrize("way", ["a reindex", "a way back"])
def test_into_another_index_that_of_the_source_is_taken_too(cluster, index_name, alias, way):
    drift_apart(cluster, index_name, alias, "by clients")
    update(cluster, alias, "d3", price=7.0)
    if way == "a way back":
        reindex(cluster, index_name, HashingEncoder(salt="other"))
        put(cluster, index_name, {"d3": {"text": "of the source"}})
        rollback(cluster, index_name, discard=True)
    else:
        put(cluster, index_name, {"d3": {"text": "of the source"}})
        reindex(cluster, index_name, HashingEncoder(salt="other"))
    assert sources(cluster, alias)["d3"] == {"text": "of the source"}


def test_a_sync_leaves_the_version_of_what_clients_wrote(cluster, index_name):
    fill_index(cluster, index_name, 20)
    numbered(cluster, index_name, 100)
    alias = reindex(cluster, index_name, ENCODER).alias or ""
    assert version_of(cluster, alias) == 100
    for number in (101, 102, 110):
        numbered(cluster, alias, number)
        assert sync(cluster, index_name, ENCODER).renewed == 1
        assert version_of(cluster, alias) == number
        with pytest.raises(ClusterError, match="version conflict"):
            numbered(cluster, alias, number)
    numbered(cluster, alias, 110, "external_gte")
    update(cluster, alias, "d5", price=8.0)
    assert sync(cluster, index_name, ENCODER).renewed == 2
    assert version_of(cluster, alias, "d5") == 2
    assert sources(cluster, alias)["d3"] == {"text": "state 110"}
    reindex(cluster, index_name, HashingEncoder(salt="other"))
    assert version_of(cluster, alias) <= 110, "the next write is not refused"
    numbered(cluster, alias, 111)


@pytest.mark.parametrize("change", ["deleted", "made again", "the same number"])
def test_what_clients_change_while_it_is_encoded_stays(cluster, index_name, alias, change):
    """A version alone does not tell these: tombstones are forgotten, and numbers may come twice."""

    def overtake(_: object) -> None:
        if change == "the same number":
            numbered(cluster, alias, 50, "external_gte")
            put_again = {"text": "state 50 once more"}
            params = {"version": "50", "version_type": "external_gte", "refresh": "true"}
            cluster.request("PUT", path_of(alias, "_doc", "d3"), put_again, params)
            return
        delete(cluster, alias, "d3")
        time.sleep(0.5)
        delete(cluster, alias, "d4")  # collects what is old
        if change == "made again":
            put(cluster, alias, {"d3": {"text": "made again"}})
            assert version_of(cluster, alias) == 1

    numbered(cluster, alias, 50)
    done = sync(cluster, index_name, HashingEncoder(before=overtake))
    assert (done.renewed, done.waiting) == (0, 1)
    expected = {"deleted": None, "made again": "made again", "the same number": "state 50 once more"}
    for again in (sync, reindex):
        assert sources(cluster, alias).get("d3", {}).get("text") == expected[change]
        again(cluster, index_name, ENCODER)
    assert sources(cluster, alias).get("d3", {}).get("text") == expected[change]
