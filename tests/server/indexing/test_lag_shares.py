"""Shares on a real node: every document is in one of them, whatever was written over it."""

from __future__ import annotations

from collections import Counter

from hybridr.cluster.reading import read_pages, settled_position
from hybridr.indexing import lag as subject
from hybridr.indexing.lag import cut_into_shares, visible_position
from support.corpus import delete, fill_index, put_documents


def test_every_document_is_in_one_share(cluster, index_name, monkeypatch):
    monkeypatch.setattr(subject, "SHARE", 10)
    fill_index(cluster, index_name, 90, settings={"number_of_replicas": 0, "number_of_shards": 2})
    delete(cluster, index_name, "d1")
    put_documents(cluster, index_name, range(0, 60, 3), suffix=" changed")
    until = settled_position(cluster, index_name)
    assert visible_position(cluster, index_name).seq_no[0] <= until.seq_no[0]
    shares = cut_into_shares(cluster, index_name, None, until)
    assert 9 <= len(shares) <= 11
    found = Counter(
        document.doc_id
        for share in shares
        for page in read_pages(cluster, index_name, share=share)
        for document in page
    )
    assert found == Counter(f"d{number}" for number in range(90) if number != 1)
    assert cut_into_shares(cluster, index_name, until, until) == []
    put_documents(cluster, index_name, [5])
    behind = cut_into_shares(cluster, index_name, until, visible_position(cluster, index_name))
    assert len(behind) == 1
