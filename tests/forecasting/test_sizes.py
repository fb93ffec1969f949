"""Bytes of vectors: the arithmetic by hand, and what must grow with what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridr.cluster.settings import VectorSettings
from hybridr.cluster.vector_forms import form_of
from hybridr.forecasting.sizes import (
    LINK_BYTES,
    MARK_BYTES,
    MOST_DOCUMENTS,
    SHARD_BYTES,
    Housing,
    Quantity,
    volume_of,
)

FLOAT = form_of(VectorSettings())
BYTE = form_of(VectorSettings(vectors="byte"))
ON_DISK = form_of(VectorSettings(vectors="on_disk"))
MILLION = Quantity(1_000_000, 1_000_000, 384, FLOAT, 16, 100.0)
ONE = Housing(1, 4, 1)


def test_a_million_floats_by_hand() -> None:
    found = volume_of(MILLION, ONE)
    assert found.vectors == 1_000_000 * 384 * 4
    assert found.graph == 1_000_000 * 32 * LINK_BYTES
    assert found.text == 1_000_000 * (100 + MARK_BYTES)
    assert found.recovery == 1_000_000 * 384 * 9, "nine characters a value"
    copy = found.vectors + found.graph + found.text
    assert found.disk == copy
    assert found.peak_disk == 2 * (copy + found.recovery), "the one segment is merged"
    assert found.hot == pytest.approx(1_000_000 * 1.1 * (4 * 384 + 8 * 16))
    # Both graphs of a node: a million vectors of 32 links, 8 bytes each, and half a GiB beside them.
    assert found.heap == 2**30
    assert found.memory == found.heap + found.hot
    assert found.shards == 1


def test_the_form_changes_vectors_and_what_is_walked() -> None:
    floats, of_bytes, on_disk = (
        volume_of(replace(MILLION, form=form), ONE) for form in (FLOAT, BYTE, ON_DISK)
    )
    assert of_bytes.vectors * 4 == floats.vectors
    assert of_bytes.recovery == 1_000_000 * 384 * 2
    assert on_disk.vectors == 1_000_000 * 384 * 5, "a byte beside each float"
    assert of_bytes.hot == on_disk.hot < floats.hot
    assert of_bytes.graph == floats.graph == on_disk.graph


def test_faiss_keeps_all_places_of_links() -> None:
    faiss = form_of(VectorSettings(engine="faiss"))
    found = volume_of(replace(MILLION, form=faiss), ONE)
    assert found.vectors == 2 * volume_of(MILLION, ONE).vectors, "its own copy beside Lucene's"
    # Files of 11,429 documents of npl (3.6.0, m 16): 19,290,569 bytes, of which 11,429 x 384 x 4 are vectors.
    assert found.graph / 1_000_000 == pytest.approx((19_290_569 - 11_429 * 384 * 4) / 11_429, rel=0.01)


def test_copies_share_the_nodes() -> None:
    alone, shared = volume_of(MILLION, ONE), volume_of(MILLION, Housing(2, 8, 2))
    assert shared.disk == 2 * alone.disk
    assert shared.hot == 2 * alone.hot
    assert shared.memory == alone.memory
    idle = volume_of(MILLION, Housing(3, 12, 2))
    assert idle.memory == alone.memory, "two copies of one shard: the third node holds none"


def test_passages_are_counted_as_vectors_and_documents_as_text() -> None:
    found = volume_of(replace(MILLION, vectors=3_000_000), ONE)
    assert found.vectors == 3 * volume_of(MILLION, ONE).vectors
    assert found.text == volume_of(MILLION, ONE).text


def test_more_takes_more() -> None:
    found = [
        volume_of(replace(MILLION, documents=count, vectors=count), ONE)
        for count in (1, 10**4, 10**6, 10**8, 10**9)
    ]
    for name in ("vectors", "graph", "text", "disk", "peak_disk", "hot", "heap", "memory", "shards"):
        values = [getattr(one, name) for one in found]
        assert values == sorted(values), name
    assert found[-1].disk > 900 * found[2].disk


def test_shards_hold_neither_too_many_bytes_nor_documents() -> None:
    large = volume_of(replace(MILLION, documents=10**8, vectors=10**8), ONE)
    assert large.disk / large.shards <= SHARD_BYTES < large.disk / (large.shards - 1)
    small = replace(MILLION, documents=3 * MOST_DOCUMENTS, vectors=0, text_bytes=0.0)
    assert volume_of(small, ONE).shards >= 3


def test_shards_load_all_nodes_alike() -> None:
    large = replace(MILLION, documents=10**8, vectors=10**8)
    assert volume_of(large, ONE).shards == 6
    assert volume_of(large, Housing(10, 40, 2)).shards == 10, "twenty copies on ten nodes"
    assert volume_of(large, Housing(50, 200, 2)).shards == 6, "some nodes stay without"
    assert volume_of(large, Housing(50, 200, 2)).memory == volume_of(large, Housing(12, 48, 2)).memory


def test_no_graph_of_a_node_is_larger_than_that_of_its_largest_segment() -> None:
    heaps = {volume_of(replace(MILLION, documents=n, vectors=n), ONE).heap for n in (10**7, 10**8, 10**9)}
    assert len(heaps) == 1
