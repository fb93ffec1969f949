"""An experiment, and who learns, forgets or experiments beside it: the record stays consistent."""

from __future__ import annotations

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve, write_record
from hybridr.errors import DataError
from hybridr.relevance import experiments, learning
from hybridr.relevance.experiments import promote_ranking, start_experiment, stop_experiment
from hybridr.relevance.learning import learn, list_memories, unlearn
from support.commands import before_call
from support.corpus import judged_by_number, reindexed
from support.hashing import HashingEncoder

ENCODER = HashingEncoder()


@pytest.fixture
def index(cluster: Cluster, index_name: str) -> str:
    """Give an index with vectors that has learnt."""
    reindexed(cluster, index_name, 60, ENCODER)
    learn(cluster, index_name, judged_by_number(range(12)), encoder=ENCODER)
    return index_name


def start(cluster: Cluster, index: str, a: str = "today", b: str = "learnt") -> None:
    start_experiment(cluster, index, a, b, encoder=ENCODER)


@pytest.mark.parametrize("sides", [("today", "learnt"), ("learnt", "today")])
def test_what_an_experiment_compares_is_not_forgotten(cluster, index, sides):
    start(cluster, index, *sides)
    running = resolve(cluster, index).record
    for dry_run in (True, False):
        with pytest.raises(DataError, match="an experiment of .* compares a ranking") as refusal:
            unlearn(cluster, index, dry_run=dry_run)
        assert refusal.value.hint == f"hybridr experiment stop {index}"
    info = resolve(cluster, index)
    assert info.record == running
    assert list_memories(cluster, info.name)
    stop_experiment(cluster, index)
    assert unlearn(cluster, index).memory
    info = resolve(cluster, index)
    assert info.record.memory is None
    assert list_memories(cluster, info.name) == []


def test_an_experiment_that_begins_while_somebody_forgets_keeps_its_ranking(cluster, index, monkeypatch):
    before_call(monkeypatch, learning, "rewrite", lambda: start(cluster, index), once=True)
    with pytest.raises(DataError, match="compares a ranking by what was learnt"):
        unlearn(cluster, index)
    info = resolve(cluster, index)
    assert info.record.experiment
    assert info.record.experiment.b.memory
    assert list_memories(cluster, info.name)


@pytest.mark.parametrize("what", ["forgets", "experiments", "tunes"])
def test_an_experiment_does_not_undo_what_others_do_while_it_begins(cluster, index, monkeypatch, what):
    def overtaken() -> None:
        if what == "forgets":
            unlearn(cluster, index)
        elif what == "tunes":
            write_record(cluster, resolve(cluster, index).name, tuning={"search": {"depth": 77}})
        else:
            start(cluster, index, "learnt", "today")

    before_call(monkeypatch, experiments, "rewrite", overtaken, once=True)
    with pytest.raises(DataError, match="changed its experiment meanwhile") as refusal:
        start(cluster, index)
    assert refusal.value.hint == "run the same command again"
    record = resolve(cluster, index).record
    if what == "experiments":
        assert record.experiment
        assert record.experiment.names == ("learnt", "today")
        assert record.memory
    else:
        assert record.experiment is None
        assert record.memory is None if what == "forgets" else record.tuning.search == {"depth": 77}


@pytest.mark.parametrize("what", ["tunes", "learns"])
def test_who_tunes_during_an_experiment_does_not_end_what_was_learnt_before(cluster, index, what):
    """The index had ranked without its memory during the experiment, and stayed so."""
    before = resolve(cluster, index).record.memory
    start(cluster, index)
    if what == "tunes":
        write_record(cluster, resolve(cluster, index).name, tuning={"search": {"depth": 77}})
    else:
        learn(cluster, index, judged_by_number([1]), encoder=ENCODER)
    stop_experiment(cluster, index)
    record = resolve(cluster, index).record
    if what == "tunes":
        assert (record.memory, record.tuning.search) == (before, {"depth": 77})
    else:
        assert record.memory.queries == 1


def test_undoing_a_promotion_brings_nothing_back_that_was_forgotten(cluster, index):
    start(cluster, index)
    promote_ranking(cluster, index, "a")
    assert unlearn(cluster, index).memory
    promote_ranking(cluster, index, undo=True)
    info = resolve(cluster, index)
    assert (info.record.memory, info.record.experiment.ended) == (None, "stopped")
    assert info.record.history[-2]["event"] == "forgotten"
    assert list_memories(cluster, info.name) == []
