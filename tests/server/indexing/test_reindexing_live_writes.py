"""Reindex and sync under two writers that insert, update and delete all the time."""

from __future__ import annotations

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.indexing import switching
from hybridr.indexing.reindexing import reindex
from support.commands import before_call
from support.corpus import assert_vectors_of_texts, fill_index, sources
from support.hashing import HashingEncoder


def assert_equal(cluster: Cluster, source: str) -> None:
    destination = resolve(cluster, source).name
    for name in (source, destination):
        cluster.refresh(name)
    assert sources(cluster, destination) == sources(cluster, source)
    assert_vectors_of_texts(cluster, destination)


SETTINGS = ReindexSettings(read_documents=25, fields=("text",))


def test_what_was_written_before_the_switch_is_there_after_it(cluster, index_name):
    """Every page that is encoded brings an insert, an update and a delete of others."""
    fill_index(cluster, index_name, 400)
    pages = iter(range(1, 6))

    def write(_: object) -> None:
        if page := next(pages, None):
            for change in (f"new{page}", f"d{page}"):
                body = {"text": f"anchor written on page {page}"}
                cluster.request("PUT", path_of(index_name, "_doc", change), body)
            cluster.request("DELETE", path_of(index_name, "_doc", f"d{100 + page}"))

    assert reindex(cluster, index_name, HashingEncoder(before=write), SETTINGS).switched
    assert_equal(cluster, index_name)


def test_what_is_written_while_the_alias_moves_is_there_when_reindex_ends(cluster, index_name, monkeypatch):
    fill_index(cluster, index_name, 40)

    def write() -> None:
        cluster.request("PUT", path_of(index_name, "_doc", "late"), {"text": "zephyr"})
        cluster.request("DELETE", path_of(index_name, "_doc", "d3"))

    before_call(monkeypatch, switching, "switch_alias", write)
    assert reindex(cluster, index_name, HashingEncoder(), SETTINGS).switched
    assert_equal(cluster, index_name)
