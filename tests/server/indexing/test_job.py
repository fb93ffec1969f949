"""The speed limit on a real node."""

from __future__ import annotations

import time

from hybridr import ReindexSettings
from hybridr.indexing.job import search_load
from hybridr.indexing.reindexing import reindex, sync
from support.corpus import fill_index, put_documents
from support.hashing import HashingEncoder


def test_the_limit_holds_in_reindex_and_sync(cluster, index_name):
    fill_index(cluster, index_name, 120)
    limited = ReindexSettings(read_documents=20, max_docs_per_second=50)
    started = time.monotonic()
    reindex(cluster, index_name, HashingEncoder(), limited)
    assert time.monotonic() - started >= 100 / 50
    put_documents(cluster, index_name, range(60), suffix=" changed")
    started = time.monotonic()
    assert sync(cluster, index_name, HashingEncoder(), limited).copied == 60
    assert time.monotonic() - started >= 40 / 50


def test_the_nodes_tell_what_searches_take(cluster, index_name):
    fill_index(cluster, index_name, 3)
    before = search_load(cluster)
    for _ in range(7):
        cluster.search(index_name, {"query": {"match_all": {}}})
    assert search_load(cluster).queries >= before.queries + 7
    assert (search_load(cluster).mean_ms(before) or 0) >= 0
