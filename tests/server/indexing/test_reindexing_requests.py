"""How many requests a verb sends for a small index, and how often a reindex asks what an index is like."""

from __future__ import annotations

from hybridr import Index, ReindexSettings
from hybridr.cluster import destinations
from hybridr.cluster.failures import api_of
from hybridr.encoders.opening import load_encoder
from hybridr.indexing.reindexing import reindex, sync
from support.corpus import fill_index

LOOKS = 8
"""The plan; the new index and its source; twice for its entry in the source's record; both before the first
document; after the filling; then a look after each record, "filled" and "switched", which sees whether
somebody else wrote at the same moment.
"""
REQUESTS = {"fresh": 68, "again": 51, "sync": 10, "status": 16, "rollback": 12, "remove": 24}
"""Each is a wait of some milliseconds, of a loaded or far cluster of a hundred. `again` has nothing to do; it
looks at 20 documents for a table of terms, as they are too few for one.
"""


def test_a_fresh_reindex_describes_an_index_so_often(cluster, index_name, sent, tiny, monkeypatch):
    monkeypatch.setattr(destinations, "TURN_S", 60.0)  # a view grows old on a slow machine
    fill_index(cluster, index_name, 60)
    sent.clear()
    done = reindex(cluster, index_name, tiny, ReindexSettings())
    assert (done.encoded, done.switched) == (60, True)
    assert sum(method == "GET" and api_of(path) == "index" for method, path in sent) == LOOKS


def test_so_many_requests_are_sent(cluster, index_name, sent, tiny, monkeypatch):
    """At most: a verb that needs fewer is better, and takes its number down."""
    monkeypatch.setattr(destinations, "TURN_S", 60.0)
    fill_index(cluster, index_name, 20)
    index, encoder = Index(cluster, index_name), load_encoder(tiny)
    verbs = {
        "fresh": lambda: reindex(cluster, index_name, encoder),
        "again": lambda: reindex(cluster, index_name, encoder),
        "sync": lambda: sync(cluster, index_name, encoder),
        "status": index.status,
        "rollback": index.rollback,
        "remove": index.remove,
    }
    assert cluster.nodes  # a connection asks once
    counts = {}
    for verb, run in verbs.items():
        sent.clear()
        run()
        counts[verb] = len(sent)
    assert counts == REQUESTS
