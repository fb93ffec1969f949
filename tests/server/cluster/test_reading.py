"""Samples are random, and a view that is lost is opened again."""

from __future__ import annotations

import json
from typing import Any

from hybridr import connect
from hybridr.cluster.connection import path_of
from hybridr.cluster.failures import BREAKER
from hybridr.cluster.reading import read_documents, read_pages, sample_documents, sources_by_id
from hybridr.errors import ClusterError
from support.corpus import fill_index


def test_a_sample_is_random_repeatable_and_without_repetition(cluster, books):
    info = cluster.index_info(books)
    first, again = (
        [one.doc_id for one in sample_documents(cluster, info, 260, fields=["year"])] for _ in range(2)
    )
    other = [one.doc_id for one in sample_documents(cluster, info, 260, seed=99)]
    assert first == again
    assert len(set(first)) == 260
    assert set(other) != set(first)
    assert [int(one) for one in first] != sorted(int(one) for one in first)


def test_a_sample_of_all_is_all(cluster, books):
    info = cluster.index_info(books)
    assert {one.doc_id for one in sample_documents(cluster, info, 300)} == {str(i) for i in range(300)}


def test_a_sample_respects_a_small_result_window(cluster, books):
    cluster.request("PUT", path_of(books, "_settings"), {"index.max_result_window": 100})
    assert len(sample_documents(cluster, cluster.index_info(books), 200)) == 100
    cluster.request("PUT", path_of(books, "_settings"), {"index.max_result_window": None})


def test_a_view_that_is_lost_is_opened_again(cluster, index_name, monkeypatch):
    """As after a restart of the node: views live in its memory."""
    fill_index(cluster, index_name, 30)
    mine = connect(cluster.url)
    send, views, lose_at = mine.client.send, [], 2

    def forgetting(method: str, path: str, body: Any, *given: Any) -> Any:
        if path == "/_search":
            views.append(json.loads(body)["pit"]["id"])
            if len(views) == lose_at:
                cluster.request("DELETE", "/_search/point_in_time", {"pit_id": views[-1:]})
        return send(method, path, body, *given)

    monkeypatch.setattr(mine.client, "send", forgetting)
    assert sum(map(len, read_pages(mine, index_name, page=10))) == 30
    assert len(set(views)) == 2
    views.clear()
    lose_at = 1
    assert len(sample_documents(mine, mine.index_info(index_name), 20)) == 20
    assert len(set(views)) == 2


def test_a_node_that_lacks_the_memory_for_a_page_is_asked_for_smaller_ones_at_once(
    cluster, index_name, monkeypatch
):
    fill_index(cluster, index_name, 40)
    ids = [document.doc_id for document in read_documents(cluster, index_name)]
    mine = connect(cluster.url)
    send, sizes = mine.client.send, list[int]()

    def refusing(method: str, path: str, body: Any = None, *given: Any) -> Any:
        size = json.loads(body).get("size", 0) if "_search" in path and body else 0
        sizes.append(size)
        if size > 10:
            raise ClusterError("[parent] Data too large", status=429, kind=BREAKER)
        return send(method, path, body, *given)

    monkeypatch.setattr(mine.client, "send", refusing)
    info = mine.index_info(index_name)
    monkeypatch.setattr(mine, "patience_s", 600.0)
    assert len(sample_documents(mine, info, 30)) == 30
    assert sum(map(len, read_pages(mine, index_name, page=40))) == 40
    monkeypatch.setattr(mine, "patience_s", 0.0)  # a look-up by ids waits before it takes them for too many
    assert set(sources_by_id(mine, info, ids)) == set(ids)
    assert max(sizes) > 30


def test_an_index_without_a_mapping_holds_nothing(cluster, index_name):
    cluster.request("PUT", path_of(index_name))
    assert list(read_documents(cluster, index_name)) == []


def test_who_wants_ids_alone_is_sent_no_text(cluster, books):
    """An empty list of fields would be all of them to the server."""
    (page, *_) = read_pages(cluster, books, fields=())
    assert page
    assert not any(one.source for one in page)
