"""Pages of documents, as a node with little memory gives them; positions in an index."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster import connection
from hybridr.cluster.connection import Cluster
from hybridr.cluster.failures import error_from_answer
from hybridr.cluster.reading import Position, SourceDocument, read_pages, settled_position
from hybridr.cluster.record import IndexInfo
from hybridr.errors import ClusterError


class Small:
    """A node with the memory for so many documents at once, which is short of even that a few times; of a
    shrunk index several documents have each `_seq_no`.
    """

    def __init__(self, holds: int, short: int = 0, documents: int = 20, same: int = 1) -> None:
        self.holds, self.short = holds, short
        self.numbers = [place // same for place in range(documents)]
        self.asked: list[int] = []
        self.views = 0

    def send(self, method: str, path: str, content: Any = None, *_: Any) -> Any:
        if path.endswith("point_in_time"):
            self.views += method == "POST"
            return {"pit_id": "p"}
        body = json.loads(content)
        size, (behind, *same) = body["size"], body["query"]["bool"]["filter"]
        self.asked.append(size)
        if size > self.holds or self.short > 0:
            self.short -= size <= self.holds
            cause = {"type": "circuit_breaking_exception", "reason": "[parent] Data too large"}
            raise error_from_answer(429, {"type": "search_phase_execution_exception", "root_cause": [cause]})
        hit, since = {"_version": 1, "_primary_term": 1, "_source": {}}, behind["range"]["_seq_no"]["gt"]
        hits = [
            {**hit, "_id": f"d{place}", "_seq_no": number}
            for place, number in enumerate(self.numbers)
            if number > since and all(number == term["term"]["_seq_no"] for term in same)
        ]
        begin = body.get("from", 0)
        return {"hits": {"hits": hits[begin : begin + size]}}


def pages_from(node: Small, patience_s: float) -> list[list[SourceDocument]]:
    cluster = Cluster(node, "http://small", patience_s=patience_s)  # type: ignore[arg-type]
    info = IndexInfo("docs", {"index.number_of_shards": "1", "index.uuid": "u"}, {}, {})
    return list(read_pages(cluster, info, page=16))


def read_from(node: Small, patience_s: float) -> list[str]:
    return [document.doc_id for page in pages_from(node, patience_s) for document in page]


def test_pages_shrink_where_a_node_lacks_the_memory_for_them() -> None:
    node = Small(holds=4)
    assert read_from(node, patience_s=3600) == [f"d{number}" for number in range(20)]
    assert node.asked == [17, 8, *[4] * 7]


@pytest.mark.parametrize(("documents", "asked", "views"), [(0, 1, 0), (16, 1, 0), (17, 3, 1), (33, 4, 1)])
def test_what_fits_into_a_page_is_read_by_one_search(documents: int, asked: int, views: int) -> None:
    """Pages of 16 documents and one more: several are of one moment, so the first is read again there."""
    node = Small(holds=100, documents=documents)
    assert read_from(node, patience_s=0) == [f"d{number}" for number in range(documents)]
    assert (len(node.asked), node.views) == (asked, views)


def test_a_node_that_lacks_the_memory_for_one_document_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_WAIT_S", (0.001, 0.001))
    node = Small(holds=1, short=2, documents=2)
    assert read_from(node, patience_s=60) == ["d0", "d1"]
    assert node.asked == [17, 8, 4, 2, *[1] * 7]
    with pytest.raises(ClusterError, match="Data too large"):
        read_from(Small(holds=0), patience_s=0.01)


@pytest.mark.parametrize("holds", [1, 2, 4, 32])
def test_documents_with_equal_numbers_are_read_in_one_page(holds: int) -> None:
    """Whatever the node has the memory for: behind the last number of a page nothing of it is left."""
    pages = pages_from(Small(holds, same=3), patience_s=60)
    assert [document.doc_id for page in pages for document in page] == [f"d{place}" for place in range(20)]
    assert all(before[-1].seq_no < after[0].seq_no for before, after in pairwise(pages))


@pytest.mark.parametrize(("store", "position"), [("remote_snapshot", 19), (None, 17)])
def test_all_of_a_searchable_snapshot_is_settled_although_its_checkpoint_says_0(store, position):
    """Seen on OpenSearch 3.6.0: its `seq_no` says 0 whatever the commit holds."""
    checkpoint = 0 if store else 17
    copy = {
        "routing": {"primary": True},
        "seq_no": {"global_checkpoint": checkpoint},
        "commit": {"user_data": {"local_checkpoint": "19"}},
    }
    cluster: Any = SimpleNamespace(
        request=lambda *_, **__: {"indices": {"docs": {"shards": {"0": [copy]}}}},
        patiently=lambda ask: ask(),
        refresh=lambda name: None,
    )
    settings = {"index.number_of_shards": "1"} | ({"index.store.type": store} if store else {})
    assert settled_position(cluster, IndexInfo("docs", settings, {}, {})) == Position({0: position})
