"""People who change the rules of an index at the same time: the newest version is in force."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hybridr import Rule
from hybridr.cluster import destinations
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.indexing.reindexing import reindex
from hybridr.search.rules import rules as rule_store
from hybridr.search.rules.rules import add_rules, fetch_rules, remove_rules
from support.corpus import reindexed
from support.hashing import HashingEncoder


@pytest.fixture
def index(cluster: Cluster, index_name: str) -> str:
    """Give an index with vectors."""
    reindexed(cluster, index_name, 10)
    return index_name


@pytest.mark.parametrize("is_last_removed", [False, True])
def test_the_newest_rules_are_in_force_whoever_writes_the_record_last(
    cluster, index, monkeypatch, is_last_removed
):
    """Versions are written in order, records are not."""
    real, waiting = rule_store.rewrite, [True]

    def overtaken(*given: Any, **named: Any) -> Any:
        if waiting:
            waiting.clear()
            add_rules(cluster, index, [Rule(name="other", text="y", ban=("d2",))])
            if is_last_removed:
                remove_rules(cluster, index, ["mine", "other"])
        return real(*given, **named)

    monkeypatch.setattr(rule_store, "rewrite", overtaken)
    add_rules(cluster, index, [Rule(name="mine", text="x", ban=("d1",))])
    names = [] if is_last_removed else ["mine", "other"]
    assert sorted(rule.name for rule in fetch_rules(cluster, index).rules) == names
    assert (resolve(cluster, index).record.rules is None) is is_last_removed


def test_rules_of_three_who_write_over_each_other_are_all_in_force(cluster, index, monkeypatch):
    monkeypatch.setattr(destinations, "SETTLE_S", 1.0)
    failures: list[Exception] = []

    def edit(number: int) -> None:
        try:
            add_rules(cluster, index, [Rule(name=f"r{number}", text=f"t{number}", ban=("d1",))])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=edit, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(rule.name for rule in fetch_rules(cluster, index).rules) == ["r0", "r1", "r2"]


def test_rules_that_are_removed_during_a_reindex_do_not_come_back(cluster, index, monkeypatch):
    """The new index begins with the rules that there were when it was planned."""
    add_rules(cluster, index, [Rule(name="mine", text="x", ban=("d1",))])

    class Meanwhile(HashingEncoder):
        def encode_documents(self, *given: Any, **named: Any) -> Any:
            if fetch_rules(cluster, index).rules:
                remove_rules(cluster, index, ["mine"])
            return super().encode_documents(*given, **named)

    result = reindex(cluster, index, Meanwhile(dim=32))
    assert result.switched
    assert resolve(cluster, index).name == result.destination
    assert resolve(cluster, index).record.rules is None
