"""Reindex and sync under two writers that insert, update and delete all the time."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.indexing import switching
from hybridr.indexing.reindexing import reindex
from support.corpus import fill_index, sources
from support.hashing import HashingEncoder


def assert_equal(cluster: Cluster, source: str) -> None:
    destination = resolve(cluster, source).name
    for name in (source, destination):
        cluster.refresh(name)
    assert sources(cluster, destination) == sources(cluster, source)
    hits = cluster.search(destination, {"size": 1000})["hits"]["hits"]
    expected = HashingEncoder().encode_documents([hit["_source"]["text"] for hit in hits])
    np.testing.assert_allclose([hit["_source"]["hybridr_vector"] for hit in hits], expected, atol=1e-5)


SETTINGS = ReindexSettings(read_documents=25, fields=("text",))


def test_what_was_written_before_the_switch_is_there_after_it(cluster, index_name):
    fill_index(cluster, index_name, 400)
    written_while_encoding(cluster, index_name)
    assert_equal(cluster, index_name)


def test_what_is_written_while_the_alias_moves_is_there_when_reindex_ends(cluster, index_name, monkeypatch):
    fill_index(cluster, index_name, 40)
    original = switching.switch_alias

    def switch(*given: Any) -> None:
        cluster.request("PUT", path_of(index_name, "_doc", "late"), {"text": "zephyr"})
        cluster.request("DELETE", path_of(index_name, "_doc", "d3"))
        original(*given)

    monkeypatch.setattr(switching, "switch_alias", switch)
    assert reindex(cluster, index_name, HashingEncoder(), SETTINGS).switched
    assert_equal(cluster, index_name)


def written_while_encoding(cluster: Cluster, index: str) -> None:
    """Reindex while every page that is encoded brings an insert, an update and a delete of others."""

    pages = iter(range(1, 6))

    def write(_: object) -> None:
        if page := next(pages, None):
            for change in (f"new{page}", f"d{page}"):
                body = {"text": f"anchor written on page {page}"}
                cluster.request("PUT", path_of(index, "_doc", change), body)
            cluster.request("DELETE", path_of(index, "_doc", f"d{100 + page}"))

    assert reindex(cluster, index, HashingEncoder(before=write), SETTINGS).switched
