"""`hybridr tune --reset` on a real node: everything that was tuned is as before."""

from __future__ import annotations

import json
from typing import Any

import pytest

import hybridr_cli
from hybridr import Search
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve, write_record
from hybridr.indexing.reindexing import reindex
from support.corpus import fill_index, text_number
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node


def test_all_that_was_tuned_is_taken_back(cluster: Cluster, index_name: str, capsys: Any) -> None:
    fill_index(cluster, index_name, 30)
    reindex(cluster, index_name, HashingEncoder())
    info = resolve(cluster, index_name)
    first = Search(cluster, index_name, HashingEncoder())(text_number(7))
    found = {"fusion": "absolute", "dense_weight": 0.3}
    write_record(cluster, info.name, tuning={"search": found, "pipeline": found})
    command = ["tune", index_name, "--reset", "--url", cluster.url]

    assert hybridr_cli.main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "search, pipeline: would be taken back" in said
    assert resolve(cluster, index_name).record.tuning is not None
    assert Search(cluster, index_name, HashingEncoder()).settings.dense_weight == 0.3

    assert hybridr_cli.main(command) == 0
    assert "search, pipeline: taken back" in capsys.readouterr().out
    after = resolve(cluster, index_name)
    assert after.record.tuning is None
    assert after.record.history[-1]["event"] == "untuned"
    again = Search(cluster, index_name, HashingEncoder())(text_number(7))
    assert [(hit.doc_id, hit.score) for hit in again] == [(hit.doc_id, hit.score) for hit in first]

    assert hybridr_cli.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tuned"] is None
