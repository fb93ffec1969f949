"""A shrunk index: the documents of several shards lie in one, with the sequence numbers that they had."""

from __future__ import annotations

import time

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import Position, hidden_operations, read_pages, settled_position
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.verification import verify
from support.corpus import create, put_documents
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node
DOCUMENTS, SHARDS = 120, 6


@pytest.fixture
def shrunk(product: Cluster, name: str) -> str:
    """Give an index of one shard that was made of one with six."""
    wide, narrow = f"{name}-wide", f"{name}-narrow"
    create(product, wide, {"text": {"type": "text"}}, {"number_of_shards": SHARDS, "number_of_replicas": 0})
    put_documents(product, wide, range(DOCUMENTS))
    product.request("PUT", path_of(wide, "_settings"), {"index.blocks.write": True})
    settings = {"index.number_of_shards": 1, "index.number_of_replicas": 0, "index.blocks.write": None}
    product.request("POST", path_of(wide, "_shrink", narrow), {"settings": settings})
    product.wait_until_usable(narrow)
    deadline = time.monotonic() + 30
    while product.count(narrow) < DOCUMENTS and time.monotonic() < deadline:
        time.sleep(0.1)
    return narrow


def test_no_document_is_skipped_between_pages(product: Cluster, shrunk: str) -> None:
    for page in (1, 2, 4, SHARDS, 7, 50, 500):
        pages = list(read_pages(product, shrunk, page=page))
        documents = [document for documents in pages for document in documents]
        assert len({document.seq_no for document in documents}) < DOCUMENTS
        assert sorted(document.doc_id for document in documents) == sorted(f"d{n}" for n in range(DOCUMENTS))
        ends = [{document.seq_no for document in documents} for documents in pages]
        assert all(max(before) < min(after) for before, after in zip(ends, ends[1:], strict=False))
    settled = settled_position(product, shrunk)
    assert settled
    assert hidden_operations(product, shrunk, Position(), settled) > 0, "more documents than operations"


def test_a_shrunk_index_is_reindexed_and_kept_in_step(product: Cluster, shrunk: str) -> None:
    encoder, settings = HashingEncoder(), ReindexSettings(read_documents=4)
    result = reindex(product, shrunk, encoder, settings)
    assert result.switched
    assert product.count(result.alias) == DOCUMENTS
    put_documents(product, shrunk, range(DOCUMENTS - 3, DOCUMENTS + 5))
    product.request("DELETE", path_of(shrunk, "_doc", "d0"), params={"refresh": "true"})
    sync(product, shrunk, encoder, settings)
    product.refresh(result.alias)
    assert product.count(result.alias) == product.count(shrunk) == DOCUMENTS + 4
    assert verify(product, shrunk, encoder).ok
