"""Who learns, and who forgets or learns beside: the record names only what is there."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.errors import DataError
from hybridr.relevance import learning
from hybridr.relevance.learning import learn, list_memories, unlearn
from support.commands import before_call
from support.corpus import judged_by_number, reindexed, text_number
from support.hashing import HashingEncoder

ENCODER = HashingEncoder()
JUDGED = judged_by_number(range(12))


@pytest.fixture
def index(cluster: Cluster, index_name: str) -> str:
    reindexed(cluster, index_name, 60, ENCODER)
    return index_name


@pytest.mark.parametrize("moment", ["write_past_pipelines", "replace_values", "drop_memories", "settled"])
def test_who_forgets_while_the_first_learns_leaves_no_half_memory(cluster, index, monkeypatch, moment):
    """The record names no memory yet, and the hidden index that is being written goes."""
    real = learning.replace_values

    def settled(*given: Any, **named: Any) -> Any:
        """Someone who read the record before it named the memory drops what he saw then."""
        memories = list_memories(cluster, resolve(cluster, index).name)
        done = real(*given, **named)
        assert [learning.drop_index(cluster, memory) for memory in memories] == [True]
        return done

    if moment == "settled":
        monkeypatch.setattr(learning, "replace_values", settled)
    else:
        before_call(monkeypatch, learning, moment, lambda: unlearn(cluster, index), once=True)
    if moment == "drop_memories":  # it was learnt, and then forgotten
        learn(cluster, index, JUDGED, encoder=ENCODER)
    else:
        with pytest.raises(DataError, match="another command forgot or learnt meanwhile"):
            learn(cluster, index, JUDGED, encoder=ENCODER)
    info = resolve(cluster, index)
    assert info.record.memory is None
    assert list_memories(cluster, info.name) == []
    assert cluster.indices(f"{info.name}-hybridr-memory-*") == []
    assert Search(cluster, index, ENCODER)(text_number(0))
    monkeypatch.undo()
    assert learn(cluster, index, JUDGED, encoder=ENCODER).memory == list_memories(cluster, info.name)[0]


def test_a_dry_run_names_no_memory_that_will_never_be(cluster, index):
    done = learn(cluster, index, JUDGED, encoder=ENCODER, dry_run=True)
    assert done.memory is None
    assert done.rehearsal is not None
    assert list_memories(cluster, done.index) == []
