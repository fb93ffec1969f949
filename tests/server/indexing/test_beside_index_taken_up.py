"""Which index of an earlier run a reindex takes up again."""

from __future__ import annotations

from hybridr import ReindexSettings
from hybridr.cluster.destinations import MAX_EVENTS, write_record
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from support.corpus import delete, put, reindexed, sources, update
from support.hashing import HashingEncoder


def test_an_index_with_old_writes_of_clients_is_not_taken_up_however_much_happened_since(cluster, index_name):
    """Its history was cut before the event that switched it."""
    encoder = HashingEncoder()
    first = reindexed(cluster, index_name, 4, encoder)
    alias = str(first.alias)
    put(cluster, alias, dict.fromkeys(("mine", "yours"), {"text": "of a client", "price": 1.0}))
    sync(cluster, index_name, encoder)
    tuned = {"at": "2026-01-01T00:00:00+00:00", "event": "tuned"}
    write_record(cluster, first.destination, history=(tuned,) * MAX_EVENTS)
    second = reindex(cluster, index_name, encoder, ReindexSettings(vectors="byte"))
    delete(cluster, alias, "mine")
    update(cluster, alias, "yours", price=2.0)
    before = sources(cluster, alias)
    third = reindex(cluster, index_name, encoder)
    assert third.destination not in (first.destination, second.destination)
    cluster.refresh(alias)
    assert sources(cluster, alias) == before


def test_a_reindex_by_our_alias_on_the_source_moves_that_alias(cluster, index_name):
    """After a rollback it made an alias `…-hybridr-hybridr`, and clients went on without vectors."""
    first = reindexed(cluster, index_name, 4)
    rollback(cluster, index_name)
    again = reindex(cluster, str(first.alias), HashingEncoder())
    assert (again.alias, again.destination, again.switched) == (first.alias, first.destination, True)
    assert [info.name for info in cluster.indices(str(first.alias))] == [first.destination]
