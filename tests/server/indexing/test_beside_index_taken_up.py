"""Which index of an earlier run a reindex takes up again."""

from __future__ import annotations

import pytest

from hybridr import ReindexSettings
from hybridr.cluster import destinations
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import MAX_EVENTS, write_record
from hybridr.indexing.reindexing import reindex, sync
from support.corpus import delete, put, reindexed, sources, update
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node


@pytest.mark.parametrize("moves", [("switched",), ()], ids=["history-of-now", "history-cut-before"])
def test_an_index_with_old_writes_of_clients_is_not_taken_up_however_much_happened_since(
    cluster: Cluster, index_name: str, monkeypatch: pytest.MonkeyPatch, moves: tuple[str, ...]
) -> None:
    monkeypatch.setattr(destinations, "SETTLE_S", 0.0)
    encoder = HashingEncoder()
    first = reindexed(cluster, index_name, 4, encoder)
    alias = str(first.alias)
    put(cluster, alias, dict.fromkeys(("mine", "yours"), {"text": "of a client", "price": 1.0}))
    sync(cluster, index_name, encoder)
    events = [*moves, *["tuned"] * (MAX_EVENTS - len(moves))]
    write_record(
        cluster,
        first.destination,
        history=tuple({"at": "2026-01-01T00:00:00+00:00", "event": event} for event in events),
    )
    second = reindex(cluster, index_name, encoder, ReindexSettings(vectors="byte"))
    delete(cluster, alias, "mine")
    update(cluster, alias, "yours", price=2.0)
    before = sources(cluster, alias)
    third = reindex(cluster, index_name, encoder)
    assert third.destination not in (first.destination, second.destination)
    cluster.refresh(alias)
    assert sources(cluster, alias) == before
