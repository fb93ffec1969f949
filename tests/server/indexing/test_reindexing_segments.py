"""An index that is replicated by segments: a refresh shows new documents on the primary alone, so only that
is asked what there is.
"""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster
from hybridr.indexing.client_writes import find_writes
from hybridr.indexing.reindexing import sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from hybridr.status.standing import status
from support.corpus import delete, put_documents, reindexed, update
from support.hashing import HashingEncoder

READS = ("/_search", "/_mget", "/_search/point_in_time")


@pytest.fixture
def preferences(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Path and preference of each read of an index."""
    read: list[tuple[str, str]] = []
    request = Cluster.request

    def spied(
        self: Cluster, method: str, path: str, body: Any = None, params: Any = None, **more: Any
    ) -> Any:
        # A search of a point in time names no index.
        if method == "POST" and path.endswith(READS) and path != "/_search":
            read.append((path, (params or {}).get("preference", "")))
        return request(self, method, path, body, params, **more)

    monkeypatch.setattr(Cluster, "request", spied)
    return read


def test_what_hybridr_keeps_account_of_is_read_from_primaries(cluster, index_name, preferences):
    settings = {"number_of_replicas": 0, "number_of_shards": 2, "replication.type": "SEGMENT"}
    encoder = HashingEncoder()
    done = reindexed(cluster, index_name, 6, encoder, settings=settings)
    [source] = cluster.indices(index_name)
    preferences.clear()
    put_documents(cluster, index_name, range(6, 9))
    delete(cluster, index_name, "d1")
    update(cluster, done.destination, "d2", price=1.0)
    assert sync(cluster, index_name, encoder).copied == 3
    assert verify(cluster, index_name, encoder).ok
    delete(cluster, done.destination, "d4")
    assert status(cluster, index_name).documents == 8
    assert find_writes(cluster, cluster.index_info(done.destination)).counts()["deleted"] == 1
    rollback(cluster, index_name, copy_back=True)
    of_source = [given for path, given in preferences if path.startswith(f"/{source.name}/")]
    assert {"_primary", "_shards:0|_primary", "_shards:1|_primary"} == set(of_source)


def test_who_searches_is_answered_by_any_copy(cluster, index_name, preferences):
    settings = {"number_of_replicas": 0, "replication.type": "SEGMENT"}
    encoder = HashingEncoder()
    done = reindexed(cluster, index_name, 6, encoder, settings=settings)
    searches = Search(cluster, done.alias, encoder, "dense")
    preferences.clear()
    assert searches("a text")
    assert not any("_primary" in given for _, given in preferences)


def test_an_index_of_whole_documents_is_read_from_any_copy(cluster, index_name, preferences):
    reindexed(cluster, index_name, 6)
    assert not any("_primary" in given for _, given in preferences)
    assert "_shards:0" in {given for _, given in preferences}
