"""A shrunk index: the documents of several shards lie in one, with the sequence numbers that they had."""

from __future__ import annotations

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import Position, hidden_operations, read_pages, settled_position
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.verification import verify
from support.corpus import create, put_documents
from support.hashing import HashingEncoder
from support.waiting import wait_until

DOCUMENTS, SHARDS = 120, 6


@pytest.fixture
def shrunk(cluster: Cluster, index_name: str) -> str:
    """Give an index of one shard that was made of one with six."""
    wide, narrow = f"{index_name}-wide", f"{index_name}-narrow"
    create(cluster, wide, {"text": {"type": "text"}}, {"number_of_shards": SHARDS, "number_of_replicas": 0})
    put_documents(cluster, wide, range(DOCUMENTS))
    cluster.request("PUT", path_of(wide, "_settings"), {"index.blocks.write": True})
    settings = {"index.number_of_shards": 1, "index.number_of_replicas": 0, "index.blocks.write": None}
    cluster.request("POST", path_of(wide, "_shrink", narrow), {"settings": settings})
    cluster.wait_until_usable(narrow)
    wait_until(lambda: cluster.count(narrow) == DOCUMENTS, 30)
    return narrow


def test_no_document_is_skipped_between_pages(cluster, shrunk):
    for page in (1, 2, 4, SHARDS, 7, 50, 500):
        pages = list(read_pages(cluster, shrunk, page=page))
        documents = [document for documents in pages for document in documents]
        assert len({document.seq_no for document in documents}) < DOCUMENTS
        assert sorted(document.doc_id for document in documents) == sorted(f"d{n}" for n in range(DOCUMENTS))
        ends = [{document.seq_no for document in documents} for documents in pages]
        assert all(max(before) < min(after) for before, after in zip(ends, ends[1:], strict=False))
    settled = settled_position(cluster, shrunk)
    assert settled
    assert hidden_operations(cluster, shrunk, Position(), settled) > 0, "more documents than operations"


def test_a_shrunk_index_is_reindexed_and_kept_in_step(cluster, shrunk):
    encoder, settings = HashingEncoder(), ReindexSettings(read_documents=4)
    result = reindex(cluster, shrunk, encoder, settings)
    assert result.switched
    assert cluster.count(result.alias) == DOCUMENTS
    put_documents(cluster, shrunk, range(DOCUMENTS - 3, DOCUMENTS + 5))
    cluster.request("DELETE", path_of(shrunk, "_doc", "d0"), params={"refresh": "true"})
    sync(cluster, shrunk, encoder, settings)
    cluster.refresh(result.alias)
    assert cluster.count(result.alias) == cluster.count(shrunk) == DOCUMENTS + 4
    assert verify(cluster, shrunk, encoder).ok
