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

pytestmark = [pytest.mark.node, pytest.mark.elastic]
ENCODER = HashingEncoder()
FORGETFUL: dict[str, Any] = {"number_of_replicas": 0, "number_of_shards": 2, "index.gc_deletes": "1ms"}


@pytest.fixture
def alias(product: Cluster, name: str) -> str:
    """Name what clients write to."""
    fill_index(product, name, 20, settings=FORGETFUL)
    return reindex(product, name, ENCODER).alias or ""


def version_of(cluster: Cluster, index: str, doc_id: str = "d3") -> int:
    return int(cluster.request("GET", path_of(index, "_doc", doc_id))["_version"])


def numbered(cluster: Cluster, index: str, version: int, kind: str = "external") -> None:
    """Write d3 as clients do that number versions themselves."""
    params = {"version": str(version), "version_type": kind, "refresh": "true"}
    cluster.request("PUT", path_of(index, "_doc", "d3"), {"text": f"state {version}"}, params)


def drift_apart(cluster: Cluster, name: str, alias: str, how: str) -> None:
    """Make the version of d3 in the copy higher than in the source, with equal contents."""
    if how == "by clients":
        for number in range(3):
            update(cluster, alias, "d3", price=float(number))
        sync(cluster, name, ENCODER)
        put_documents(cluster, name, [3], suffix=" anew")
    else:
        for _ in range(4):
            put_documents(cluster, name, [3], suffix=" higher")
        sync(cluster, name, ENCODER)
        delete(cluster, name, "d3")
        time.sleep(1.5)
        delete(cluster, name, "d4")  # collects what is old
        put_documents(cluster, name, [3], suffix=" anew")
    sync(cluster, name, ENCODER)
    assert version_of(cluster, alias) > version_of(cluster, name) + 1
    assert sources(cluster, alias) == sources(cluster, name)


@pytest.mark.parametrize("how", ["by clients", "made again"])
def test_of_what_both_sides_changed_that_of_the_source_is_taken(
    product: Cluster, name: str, alias: str, how: str
) -> None:
    drift_apart(product, name, alias, how)
    for number in range(2):
        update(product, alias, "d3", price=7.0 + number)
    put(product, name, {"d3": {"text": "of the source"}})
    update(product, alias, "d5", price=8.0)
    assert sync(product, name, ENCODER, dry_run=True).copied == 1
    done = sync(product, name, ENCODER)
    assert (done.copied, done.renewed) == (1, 1)
    assert sources(product, alias)["d3"] == {"text": "of the source"}
    assert sources(product, alias)["d5"]["price"] == 8.0
    assert verify(product, name, ENCODER).ok


@pytest.mark.parametrize("way", ["a reindex", "a way back"])
def test_into_another_index_that_of_the_source_is_taken_too(
    product: Cluster, name: str, alias: str, way: str
) -> None:
    drift_apart(product, name, alias, "by clients")
    update(product, alias, "d3", price=7.0)
    if way == "a way back":
        reindex(product, name, HashingEncoder(salt="other"))
        put(product, name, {"d3": {"text": "of the source"}})
        rollback(product, name, discard=True)
    else:
        put(product, name, {"d3": {"text": "of the source"}})
        reindex(product, name, HashingEncoder(salt="other"))
    assert sources(product, alias)["d3"] == {"text": "of the source"}


def test_a_sync_leaves_the_version_of_what_clients_wrote(product: Cluster, name: str) -> None:
    fill_index(product, name, 20)
    numbered(product, name, 100)
    alias = reindex(product, name, ENCODER).alias or ""
    assert version_of(product, alias) == 100
    for number in (101, 102, 110):
        numbered(product, alias, number)
        assert sync(product, name, ENCODER).renewed == 1
        assert version_of(product, alias) == number
        with pytest.raises(ClusterError, match="version conflict"):
            numbered(product, alias, number)
    numbered(product, alias, 110, "external_gte")
    update(product, alias, "d5", price=8.0)
    assert sync(product, name, ENCODER).renewed == 2
    assert version_of(product, alias, "d5") == 2
    assert sources(product, alias)["d3"] == {"text": "state 110"}
    reindex(product, name, HashingEncoder(salt="other"))
    assert version_of(product, alias) <= 110, "the next write is not refused"
    numbered(product, alias, 111)


@pytest.mark.parametrize("change", ["deleted", "made again", "the same number"])
def test_what_clients_change_while_it_is_encoded_stays(
    product: Cluster, name: str, alias: str, change: str
) -> None:
    """A version alone does not tell these: tombstones are forgotten, and numbers may come twice."""

    def overtake(_: object) -> None:
        if change == "the same number":
            numbered(product, alias, 50, "external_gte")
            put_again = {"text": "state 50 once more"}
            params = {"version": "50", "version_type": "external_gte", "refresh": "true"}
            product.request("PUT", path_of(alias, "_doc", "d3"), put_again, params)
            return
        delete(product, alias, "d3")
        time.sleep(1.5)
        delete(product, alias, "d4")  # collects what is old
        if change == "made again":
            put(product, alias, {"d3": {"text": "made again"}})
            assert version_of(product, alias) == 1

    numbered(product, alias, 50)
    done = sync(product, name, HashingEncoder(before=overtake))
    assert (done.renewed, done.waiting) == (0, 1)
    expected = {"deleted": None, "made again": "made again", "the same number": "state 50 once more"}
    for _ in range(2):
        held = sources(product, alias).get("d3", {}).get("text")
        assert held == expected[change]
        sync(product, name, ENCODER)
