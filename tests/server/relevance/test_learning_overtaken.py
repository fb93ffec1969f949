"""Two who tune or learn the same index at once, and who is broken off: what is in force stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridr import Query
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve, write_record
from hybridr.cluster.record_parts import Tuned
from hybridr.errors import DataError
from hybridr.relevance import learning, tuning
from hybridr.relevance.learning import learn, unlearn
from hybridr.relevance.tuning import tune
from hybridr.search.past_queries import current_memory, list_memories
from support.corpus import reindexed, text_number
from support.hashing import HashingEncoder

ENCODER = HashingEncoder()


@pytest.fixture
def index(cluster: Cluster, index_name: str) -> str:
    """Give an index with vectors."""
    reindexed(cluster, index_name, 60, ENCODER)
    return index_name


def learn_queries(cluster: Cluster, index: str, count: int) -> None:
    queries = [Query(f"q{number}", text_number(number)) for number in range(count)]
    qrels = {f"q{number}": {f"d{number}": 1} for number in range(count)}
    learn(cluster, index, (queries, qrels), encoder=ENCODER)


def overtake(monkeypatch: pytest.MonkeyPatch, module: Any, action: Callable[[], Any]) -> None:
    """Do something else once, right before the record is written."""
    real, waiting = module.replace_values, [True]

    def overtaken(*arguments: Any, **named: Any) -> Any:
        if waiting:
            waiting.clear()
            action()
        return real(*arguments, **named)

    monkeypatch.setattr(module, "replace_values", overtaken)


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

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(learning, "write_past_pipelines", interrupted)
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
    queries = [Query(f"q{number}", text_number(number)) for number in range(10)]
    judged = queries, {f"q{number}": {f"d{number}": 1} for number in range(10)}
    overtake(monkeypatch, tuning, lambda: write_record(cluster, name, tuning=theirs))
    with pytest.raises(DataError, match="another command changed the tuning"):
        tune(cluster, index, judged, encoder=ENCODER)
    assert resolve(cluster, index).record.tuning == theirs
    chosen = tune(cluster, index, judged, encoder=ENCODER)
    assert resolve(cluster, index).record.tuning.search == chosen.settings
