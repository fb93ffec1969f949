"""The rules that a new index with vectors begins with."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.connection import Cluster, hidden_index_body, path_of
from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import KeptRules
from hybridr.cluster.rule_versions import newest_rules, rules_index
from hybridr.errors import DataError
from support.corpus import fill_index


@pytest.fixture
def source(cluster: Cluster, index_name: str) -> IndexInfo:
    fill_index(cluster, index_name, 3)
    return cluster.index_info(index_name)


def store(cluster: Cluster, source: IndexInfo, version: int, held: Any) -> None:
    index = rules_index(source)
    if not cluster.exists(index):
        cluster.request("PUT", path_of(index), hidden_index_body({"version": {"type": "long"}}))
    cluster.request("PUT", path_of(index, "_doc", str(version)), held, {"refresh": "true"})


def test_the_newest_version_counts_and_one_without_rules_is_none(cluster, source):
    assert newest_rules(cluster, source) is None
    rules = [{"name": "r", "text": "x", "ban": ["d1"]}, {"name": "s", "text": "y", "ban": ["d2"]}]
    try:
        for version in (9, 10):
            store(cluster, source, version, {"version": version, "job": f"j{version}", "rules": rules})
        assert newest_rules(cluster, source) == KeptRules(version=10, rules=2, job="j10")
        store(cluster, source, 11, {"version": 11, "job": "j11", "rules": []})
        assert newest_rules(cluster, source) is None
    finally:
        cluster.request("DELETE", path_of(rules_index(source)))


@pytest.mark.parametrize(
    "held", [{"version": 12, "rules": [{"name": "r"}]}, {"version": -1, "job": "j", "rules": [{"name": "r"}]}]
)
def test_rules_that_cannot_be_read_stop_the_plan(cluster, source, held):
    store(cluster, source, 12, held)
    try:
        with pytest.raises(DataError, match="holds a document that hybridr did not write"):
            newest_rules(cluster, source)
    finally:
        cluster.request("DELETE", path_of(rules_index(source)))
