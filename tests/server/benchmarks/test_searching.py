"""The races of searches and of the server on a real node; the figures themselves belong to benchmarks/."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import run
from hybridr.cluster.destinations import resolve
from hybridr.errors import SettingsError
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings
from hybridr_bench.asking import Lane, Times, apart, difference, ratio, take_turns, time_requests
from hybridr_bench.searching import race_search

pytestmark = [pytest.mark.node, pytest.mark.ml]
FEW = ["--queries", "2", "--requests", "3", "--rounds", "2", "--clients", "1,2", "--warm-up", "1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    queries = [{"_id": f"q{n}", "text": f"statins in number {n}"} for n in range(40)]
    documents = [{"_id": f"d{n}", "title": "t", "text": f"a text of number {n}"} for n in range(40)]
    for name, records in (("queries", queries), ("corpus", documents)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return tmp_path


def test_every_mode_and_way_is_timed_and_nothing_stays_deployed(docs, folder, tmp_path, capsys):
    before = (docs.request("GET", "/_cluster/settings"), resolve(docs, "docs").settings)
    file = tmp_path / "figures.json"
    command = ["speed", "search", "--index", "docs", "--beir", str(folder), "--url", docs.url]
    cores = os.sched_getaffinity(0)
    ways = "client,transparent"
    assert run.main([*command, *FEW, "--ways", ways, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "150 documents, as many tokens" in shown
    assert "| transparent, by hand |" in shown
    found = json.loads(file.read_text())
    [index] = found["indices"]
    assert index["documents"] == 150
    names = [lane["name"] for lane in index["lanes"] if lane["clients"] == 2]
    assert names[:5] == ["lexical", "dense", "stock", "hybrid", "lexical, Search"]
    assert names[-2:] == ["transparent", "transparent, by hand"]
    assert len(names) == 4 + 2 * 5 + 2 * 2
    assert all(lane["requests"] == 6 and 0 < lane["p50_ms"] <= lane["p99_ms"] for lane in index["lanes"])
    assert [row["clients"] for row in index["ratios"]] == [1, 2]
    assert index["ratios"][0]["deployed_over_hand"].keys() == set(ways.split(","))
    assert found["pinned"] == (len(cores) > 1)
    assert os.sched_getaffinity(0) == cores
    assert (docs.request("GET", "/_cluster/settings"), resolve(docs, "docs").settings) == before


def test_an_unknown_way_is_a_mistake_of_use(docs, folder, capsys):
    command = ["speed", "search", "--index", "docs", "--beir", str(folder), "--url", docs.url]
    assert run.main([*command, *FEW, "--ways", "client,magic"]) == 2
    assert "no way is called 'magic'" in capsys.readouterr().err


def test_a_deployed_index_is_left_alone(docs):
    deploy(docs, "docs", DeploySettings(), SearchSettings())
    try:
        with pytest.raises(SettingsError, match="is deployed"):
            race_search(docs, "docs", ["statins"])
    finally:
        undeploy(docs, "docs")


def test_the_server_is_timed_against_the_encoder(folder, minilm, tmp_path, capsys):
    file = tmp_path / "figures.json"
    command = ["speed", "serve", "--beir", str(folder), "--encoder", str(minilm)]
    sizes = ["--passages", "32", "--queries", "20", "--rounds", "1"]
    assert run.main([*command, *sizes, "--json", str(file)]) == 0
    assert "| query | 1 |" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert [(one["side"], one["texts"], one["in_a_request"]) for one in found["shares"]] == [
        ("passage", 32, 32),
        ("query", 20, 1),
    ]
    assert all(one["share"]["median"] > 0 for one in found["shares"])
    assert [lane["requests"] for lane in found["lanes"]] == [1, 20]


def test_ratios_are_of_the_same_round_and_clients_ask_at_once():
    slow, fast = Lane("slow", lambda _: time.sleep(0.04)), Lane("fast", lambda _: time.sleep(0.02))
    take_turns([slow, fast], Times(requests=6, rounds=3, clients=(1, 3), warm_up=1))
    assert [len(slow.p50(clients)) for clients in (1, 3)] == [3, 3]
    assert 1.2 < ratio(slow.p50(1), fast.p50(1))["median"] < 3
    assert difference(slow.p50(1), fast.p50(1)) > 1
    assert ratio([2.0, 6.0, 8.0], [1.0, 2.0, 4.0]) == {"median": 2.0, "least": 2.0, "most": 3.0}
    assert time_requests(slow.ask, 9, 3).seconds < 0.9 * time_requests(slow.ask, 9, 1).seconds
    asked: list[int] = []
    time_requests(asked.append, 10, 4)
    assert sorted(asked) == list(range(10))


def test_cores_are_parted_and_given_back():
    import subprocess
    import sys

    cores = os.sched_getaffinity(0)
    with apart(None) as pinned:
        assert not pinned
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with apart(other.pid) as pinned:
            assert pinned == (len(cores) > 1)
            if pinned:
                assert not os.sched_getaffinity(0) & os.sched_getaffinity(other.pid)
        assert os.sched_getaffinity(0) == os.sched_getaffinity(other.pid) == cores
    finally:
        other.communicate(b"\n")
