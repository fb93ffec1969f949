"""Two who tune or learn the same index at once, and who is broken off: what is in force stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve, write_record
from hybridr.cluster.record_parts import Tuned
from hybridr.errors import DataError
from hybridr.relevance import learning, tuning
from hybridr.relevance.learning import learn, unlearn
from hybridr.relevance.tuning import tune
from hybridr.search.past_queries import current_memory, list_memories
from support.commands import before_call
from support.corpus import judged_by_number, reindexed
from support.hashing import HashingEncoder

ENCODER = HashingEncoder()


@pytest.fixture
def index(cluster: Cluster, index_name: str) -> str:
    """Give an index with vectors."""
    reindexed(cluster, index_name, 60, ENCODER)
    return index_name


def learn_queries(cluster: Cluster, index: str, count: int) -> None:
    learn(cluster, index, judged_by_number(range(count)), encoder=ENCODER)


def overtake(monkeypatch: pytest.MonkeyPatch, module: Any, action: Callable[[], Any]) -> None:
    """Do something else once, right before the record is written."""
    before_call(monkeypatch, module, "replace_values", action, once=True)


@pytest.mark.parametrize("is_again", [False, True])
def test_who_learns_last_loses_nothing_that_another_learnt_meanwhile(cluster, index, monkeypatch, is_again):
    if is_again:
        learn_queries(cluster, index, 2)
    overtake(monkeypatch, learning, lambda: learn_queries(cluster, index, 3))
    with pytest.raises(DataError, match="another command changed the memory") as refusal:
        learn_queries(cluster, index, 12)
    assert "run the same command again" in (refusal.value.hint or "")
    info = resolve(cluster, index)
    assert info.record.memory
    assert info.record.memory.queries == 3
    assert list_memories(cluster, info.name) == [current_memory(info)]
    assert cluster.count(current_memory(info)) == 3


def test_who_learns_while_all_is_forgotten_is_refused(cluster, index, monkeypatch):
    learn_queries(cluster, index, 2)
    overtake(monkeypatch, learning, lambda: unlearn(cluster, index))
    with pytest.raises(DataError, match="another command changed the memory"):
        learn_queries(cluster, index, 12)
    assert list_memories(cluster, resolve(cluster, index).name) == []


def test_what_was_learnt_outlives_a_learn_that_is_broken_off(cluster, index, monkeypatch):
    learn_queries(cluster, index, 2)
    before = resolve(cluster, index)

    with monkeypatch.context() as patch:
        patch.setattr(learning, "write_past_pipelines", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            learn_queries(cluster, index, 12)
    assert resolve(cluster, index).record == before.record
    assert cluster.count(current_memory(before)) == 2
    assert len(list_memories(cluster, before.name)) == 2
    learn_queries(cluster, index, 3)
    after = resolve(cluster, index)
    assert list_memories(cluster, after.name) == [current_memory(after)]


def test_who_tunes_last_loses_nothing_that_another_tuned_meanwhile(cluster, index, monkeypatch):
    name, theirs = resolve(cluster, index).name, Tuned(search={"depth": 77})
    judged = judged_by_number(range(10))
    overtake(monkeypatch, tuning, lambda: write_record(cluster, name, tuning=theirs))
    with pytest.raises(DataError, match="another command changed the tuning"):
        tune(cluster, index, judged, encoder=ENCODER)
    assert resolve(cluster, index).record.tuning == theirs
    chosen = tune(cluster, index, judged, encoder=ENCODER)
    assert resolve(cluster, index).record.tuning.search == chosen.settings
