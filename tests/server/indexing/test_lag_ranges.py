"""Spans on a real node: nested documents do not count, updates move, three shards keep apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import Position, Share, SourceDocument, read_pages, settled_position
from hybridr.indexing import lag
from hybridr.indexing.lag import NumberedIndex, Operations, differing_spans
from support.corpus import bulk, create, delete

SHARDS = {"number_of_shards": 3, "number_of_replicas": 0}
PARTS = {"parts": {"type": "nested", "properties": {"name": {"type": "keyword"}}}}


@pytest.fixture
def pair(cluster: Cluster, index_name: str) -> Iterator[tuple[NumberedIndex, NumberedIndex]]:
    """An index and its copy, both with nested documents; a tenth was updated before it was copied."""
    copy = f"{index_name}-copy"
    for name, own in ((index_name, {}), (copy, {"mark": {"type": "long"}})):
        create(cluster, name, PARTS | own, SHARDS)
    for numbers in (range(300), range(0, 300, 10)):
        lines = [({"index": {"_id": f"d{n}"}}, {"parts": [{"name": "a"}, {"name": str(n)}]}) for n in numbers]
        bulk(cluster, index_name, [line for pair in lines for line in pair])
    for page in read_pages(cluster, index_name):
        lines = [({"index": {"_id": d.doc_id}}, d.source | {"mark": d.seq_no}) for d in page]
        bulk(cluster, copy, [line for pair in lines for line in pair])
    originals = NumberedIndex(cluster, cluster.index_info(index_name), "_seq_no")
    yield originals, NumberedIndex(cluster, cluster.index_info(copy), "mark")
    cluster.request("DELETE", path_of(copy))


def found(one: NumberedIndex, other: NumberedIndex) -> list[SourceDocument]:
    """Read what differs up to now, by the side of `one`."""
    until = settled_position(one.cluster, one.info.name)
    assert until is not None
    everywhere = 2**62
    return [
        document
        for shard, spans in differing_spans(one, other, until)
        for page in one.pages(Share(until=Position({shard: everywhere})), spans)
        for document in page
    ]


@pytest.mark.parametrize("first_windows", [256, 0])
def test_a_copy_differs_only_where_one_side_lacks_something(pair, first_windows, monkeypatch):
    """By the smallest windows at once, or by windows in windows."""
    monkeypatch.setattr(lag, "FIRST_WINDOWS", first_windows)
    originals, copies = pair
    cluster = originals.cluster
    assert found(originals, copies) == found(copies, originals) == []
    for number in (4, 50, 123):
        delete(cluster, originals.info.name, f"d{number}")
    for number in (5, 51):
        delete(cluster, copies.info.name, f"d{number}")
    here = {document.doc_id for document in found(originals, copies)}
    there = {document.doc_id for document in found(copies, originals)}
    assert here >= {"d5", "d51"}
    assert there >= {"d4", "d50", "d123"}
    assert len(here) <= 5 * 16
    assert len(there) <= 5 * 16


def test_a_short_stretch_is_compared_once(pair, sent):
    originals, copies = pair
    delete(originals.cluster, originals.info.name, "d4")
    until = settled_position(originals.cluster, originals.info)
    sent.clear()
    assert list(differing_spans(originals, copies, until))
    assert len(sent) == 2 * originals.info.shards


def test_more_spans_than_one_query_takes(pair, monkeypatch):
    monkeypatch.setattr(lag, "CLAUSES", 1)
    monkeypatch.setattr(lag, "WINDOWS_AT_ONCE", 3)
    originals, copies = pair
    gone = {f"d{number}" for number in range(7, 300, 25)}
    for doc_id in gone:
        delete(originals.cluster, originals.info.name, doc_id)
    ids = [document.doc_id for document in found(copies, originals)]
    assert gone <= set(ids)
    assert len(ids) == len(set(ids))


def test_two_in_place_of_two_others_show_however_high_the_numbers_are(cluster, index_name):
    names, firsts = [f"{index_name}-{number}" for number in range(2)], (0, 10**9, 10**10)
    for name, gone in zip(names, ({1, 4}, {2, 3}), strict=True):
        properties = {f"mark{first}": {"type": "long"} for first in firsts}
        cluster.request("PUT", path_of(name), {"mappings": {"properties": properties}})
        there = [number for number in range(4096) if number not in gone]
        marks = [{f"mark{first}": first + number for first in firsts} for number in there]
        bulk(cluster, name, [line for mark in marks for line in ({"index": {}}, mark)])
    for first in firsts:
        here, other = (NumberedIndex(cluster, cluster.index_info(name), f"mark{first}") for name in names)
        for width in (4096, 256, 16):
            windows = Operations(first, first + 4096).cut(width)
            sums = zip(here.sums(0, windows), other.sums(0, windows), strict=True)
            assert [left != right for left, right in sums] == [True] + [False] * (len(windows) - 1)
