"""How often a reindex asks what an index is like."""

from __future__ import annotations

from hybridr import ReindexSettings
from hybridr.cluster import destinations
from hybridr.cluster.failures import api_of
from hybridr.indexing.reindexing import reindex
from support.corpus import fill_index

LOOKS = 8
"""The plan; the new index and its source; twice for its entry in the source's record; both before the first
document; after the filling; then a look after each record, "filled" and "switched", which sees whether
somebody else wrote at the same moment.
"""


def test_a_fresh_reindex_describes_an_index_so_often(cluster, index_name, sent, tiny, monkeypatch):
    monkeypatch.setattr(destinations, "TURN_S", 60.0)  # a view grows old on a slow machine
    fill_index(cluster, index_name, 60)
    sent.clear()
    done = reindex(cluster, index_name, tiny, ReindexSettings())
    assert (done.encoded, done.switched) == (60, True)
    assert sum(method == "GET" and api_of(path) == "index" for method, path in sent) == LOOKS
