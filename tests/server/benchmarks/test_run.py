"""The benchmark runner on a real node: the whole way, going on, and reading only."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import collection
import run
from conditions import Condition
from hybridr.cluster.aliases import alias_target
from hybridr.cluster.connection import Cluster
from hybridr.files.formats import read_qrels, read_queries, read_run, write_beir
from hybridr.records import Document, Query, Run
from hybridr.training.settings import AdaptSettings
from studies import baselines, published
from studies import collections as rankings
from support.corpus import drop_indices, text_number
from support.places import DDR

SYSTEMS = ["bm25", "rm3", "dense", "hybrid-stock"]
ADAPTED = [*SYSTEMS, "dense-adapted", "hybrid-adapted"]
SAME = 1e-5
"""Scores of the same vectors, written as text and read."""
READING = ("_search", "_msearch", "_mget", "_search/point_in_time", "_mtermvectors")


@pytest.fixture
def bench(
    cluster: Cluster, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> Any:
    corpus = [Document(f"d{i}", " ".join([text_number(i)] * 4)) for i in range(80)]
    queries = [Query(f"q{i}", " ".join(text_number(i).split()[:4])) for i in range(12)]
    write_beir(tmp_path / index_name, corpus, queries, {f"q{i}": {f"d{i}": 1} for i in range(12)})
    conditions = {
        index_name: Condition(index_name, "twelve", "test", 10, 13, ["nDCG@10", "R@100"], SYSTEMS, 0.01)
    }
    monkeypatch.setattr(rankings, "read_conditions", lambda: conditions)

    def start(*more: str) -> int:
        places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
        return run.main(["collections", str(tmp_path), "--url", cluster.url, *places, *more])

    start.result = tmp_path / "results" / "collections" / f"{index_name}.json"
    start.conditions = conditions
    return start


@pytest.fixture
def adapting(bench: Any, index_name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The runner with systems of an adapted encoder."""
    bench.conditions[index_name] = replace(bench.conditions[index_name], systems=ADAPTED)
    monkeypatch.setattr(
        collection, "AdaptSettings", partial(AdaptSettings, objective_settings={"held_out": 20})
    )
    return bench


def writing(sent: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Give the requests that may change something."""
    others = [one for one in sent if one[0] not in ("GET", "HEAD") and not one[1].endswith(READING)]
    return [one for one in others if one != ("DELETE", "/_search/point_in_time")]


def assert_reads_only(bench: Any, sent: list[tuple[str, str]], found: dict[str, Any]) -> None:
    """Ask every system again: nothing is written, and the figures are those that were found."""
    sent.clear()
    assert bench("--again") == 0
    assert sent
    assert writing(sent) == []
    assert json.loads(bench.result.read_text())["systems"] == found["systems"]


def test_the_whole_way_and_then_reading_only(bench, sent):
    assert bench() == 0
    found = json.loads(bench.result.read_text())
    assert list(found["systems"]) == SYSTEMS
    assert (found["documents"], found["queries"]) == (80, 10)
    assert found["systems"]["bm25"]["nDCG@10"] > 0.5
    assert {one["system"] for one in found["comparisons"]["bm25"]} == {"rm3", "dense", "hybrid-stock"}
    assert {one["system"] for one in found["comparisons"]["hybrid-stock"]} == {"bm25", "rm3", "dense"}
    assert {"load", "reindex", *SYSTEMS} == found["seconds"].keys()
    assert_reads_only(bench, sent, found)


def test_an_interrupted_run_goes_on_with_the_system_it_was_at(bench, monkeypatch, capsys):
    asked: list[str] = []
    ask = collection.ask

    def once(work: Any, cluster: Cluster, system: str, *rest: Any) -> None:
        asked.append(system)
        if asked == ["bm25", "rm3", "dense"]:
            raise KeyboardInterrupt
        ask(work, cluster, system, *rest)

    monkeypatch.setattr(collection, "ask", once)
    assert bench() == 130
    assert "none was finished" in capsys.readouterr().err
    assert not bench.result.exists()
    assert bench() == 0
    assert asked == ["bm25", "rm3", "dense", "dense", "hybrid-stock"]


def test_an_adapted_encoder_writes_vectors_beside_the_first_ones_which_the_baselines_ask(
    adapting, cluster, tmp_path, index_name, sent
):
    assert adapting() == 0
    found = json.loads(adapting.result.read_text())
    assert list(found["systems"]) == ADAPTED
    assert found["seconds"].keys() == {"load", "reindex", "adapt", "reindex-adapted", *ADAPTED}
    plain, own = (alias_target(cluster, index_name + ending) for ending in ("-hybridr", "-adapted"))
    assert plain.record.encoder == found["encoder"] != found["adaptation"]["encoder"] == own.record.encoder
    assert found["adaptation"]["promoted"]
    assert found["adaptation"]["settings"]["objective"] == "ensemble"
    assert [one["system"] for one in found["comparisons"]["dense"]] == ["dense-adapted"]
    assert_reads_only(adapting, sent, found)
    folder, runs = tmp_path / index_name, tmp_path / "runs" / index_name
    asked, _ = baselines.our_runs(
        cluster, folder, read_queries(folder, read_qrels(runs / "qrels.txt")), dense=True
    )
    first, second = (read_run(runs / f"{system}.trec") for system in ("dense", "dense-adapted"))
    assert distance(asked["dense"], first) < SAME < distance(asked["dense"], second)


def distance(one: Run, other: Run) -> float:
    """Give the largest difference of two runs' scores."""
    return max(abs(score - other[query][doc]) for query in one for doc, score in one[query].items())


def test_an_interrupted_second_reindex_goes_on_with_the_same_encoder(
    adapting, tmp_path, index_name, monkeypatch
):
    reindexed: list[str] = []
    reindex = collection.reindex

    def once(cluster: Cluster, name: str, encoder: Path, settings: Any, **more: Any) -> Any:
        reindexed.append(settings.alias)
        if len(reindexed) == 2:
            raise KeyboardInterrupt
        return reindex(cluster, name, encoder, settings, **more)

    monkeypatch.setattr(collection, "reindex", once)
    assert adapting() == 130
    manifest = tmp_path / "runs" / index_name / "adapted" / "manifest.json"
    before = manifest.stat().st_ino
    assert adapting() == 0
    assert manifest.stat().st_ino == before
    assert reindexed == [f"{index_name}-hybridr", f"{index_name}-adapted", f"{index_name}-adapted"]


def test_after_a_veto_the_first_vectors_are_asked(adapting, cluster, index_name, monkeypatch):
    monkeypatch.setattr("hybridr.relevance.gate.objections", lambda rows: ["the test says no"])
    assert adapting() == 0
    found = json.loads(adapting.result.read_text())
    assert found["adaptation"]["gate"]["reasons"] == ["the test says no"]
    assert found["adaptation"]["encoder"] == found["encoder"]
    assert alias_target(cluster, f"{index_name}-adapted") is None
    assert "reindex-adapted" not in found["seconds"]
    assert found["systems"]["dense-adapted"] == found["systems"]["dense"]
    assert rankings.cell(found, "dense-adapted").endswith("vetoed")
    assert "vetoed" not in rankings.cell(found, "dense")


def test_an_index_of_another_collection_is_left_alone(bench, cluster, index_name, capsys):
    cluster.request("PUT", f"/{index_name}/_doc/1", {"text": "mine"}, {"refresh": "true"})
    assert bench() == 1
    assert cluster.count(index_name) == 1
    assert "holds 1 document of another file" in capsys.readouterr().err
    assert not bench.result.exists()


def test_a_row_of_the_published_tables_runs_on_its_own_layout(cluster, tmp_path, own_home, capsys):
    folder = tmp_path / "lotte" / "technology" / "test"
    folder.mkdir(parents=True)
    (folder / "collection.tsv").write_text("".join(f"{i}\t{text_number(i)}\n" for i in range(30)))
    (folder / "questions.forum.tsv").write_text("".join(f"{i}\t{text_number(i)}\n" for i in range(5)))
    answers = ({"qid": i, "query": "q", "url": "u", "answer_pids": [i]} for i in range(5))
    (folder / "qas.forum.jsonl").write_text("".join(json.dumps(one) + "\n" for one in answers))
    models = ["--dam", str(DDR / "dams" / "dam_target"), "--rem", str(DDR / "rems" / "rem_dense_lora192-pa4")]
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    common = ["published", "lotte-tech", str(tmp_path), "--url", cluster.url, *places]
    try:
        assert run.main([*common, "--row", "ddr/bm25"]) == 0
        assert run.main([*common, "--row", "ddr/contrast", *models]) == 0
        assert run.main([*common, "--row", "ddr/contrast", *models]) == 0
        assert "1 of 1 are finished already" in capsys.readouterr().err
    finally:
        drop_indices(cluster, "published-lotte-tech*")
    found = {
        file.stem: json.loads(file.read_text()) for file in (tmp_path / "results").glob("published/*.json")
    }
    assert found.keys() == {"lotte-tech--ddr-bm25", "lotte-tech--ddr-contrast"}
    lexical = found["lotte-tech--ddr-bm25"]["systems"]["bm25"]
    assert list(lexical) == ["nDCG@10", "R@100", "R@1000", "Success@5"]
    assert lexical["Success@5"] == 1.0
    dense = found["lotte-tech--ddr-contrast"]["systems"]["dense"]
    assert dense["R@1000"] == 1.0
    shown = published.render(found)
    assert "| lotte-tech | " in shown
    assert "off (.20652 .44962 .71094)" in shown
