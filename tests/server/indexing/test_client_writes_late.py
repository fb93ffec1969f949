"""Changes of the source that come between the reading of a round and its end, of documents that a client
wrote.
"""

from __future__ import annotations

import pytest

from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.targets import beside
from hybridr.indexing.verification import verify
from support.commands import before_call
from support.corpus import put, reindexed, sources, update
from support.hashing import HashingEncoder

SHARDS = {"number_of_shards": 3, "number_of_replicas": 0}


@pytest.mark.parametrize("work", [sync, reindex])
def test_a_change_behind_the_position_that_was_read_arrives(cluster, index_name, monkeypatch, work):
    alias = reindexed(cluster, index_name, 30, settings=SHARDS).alias
    late = {f"d{number}": {"text": f"a late candle {number}", "price": 1.5} for number in range(5)}
    for number in range(10):
        update(cluster, alias, f"d{number}", price=77.0)
    update(cluster, alias, "d20", price=78.0)
    put(cluster, index_name, {"d20": {"text": "an early candle"}})

    def changed() -> None:
        """Change documents of the source after they were read, before clients' writes are encoded."""
        put(cluster, index_name, late)
        cluster.refresh(index_name)

    with monkeypatch.context() as patch:
        before_call(patch, beside, "encode_stale", changed)
        work(cluster, index_name, HashingEncoder())
    sync(cluster, index_name, HashingEncoder())
    cluster.refresh(alias)
    there, here = sources(cluster, index_name), sources(cluster, alias)
    assert {doc_id: here[doc_id] for doc_id in (*late, "d20")} == {**late, "d20": there["d20"]}
    assert {here[f"d{number}"]["price"] for number in range(5, 10)} == {77.0}
    assert sync(cluster, index_name, HashingEncoder()).copied == 0
    checked = verify(cluster, index_name, HashingEncoder())
    assert checked.ok, checked.problems()
