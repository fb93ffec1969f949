"""The runner's bookkeeping without a node: conditions, what is finished, failures and interruptions."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import collection
import run
import runner
from conditions import Condition, read_conditions
from hybridr.errors import DataError, SettingsError
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.formats import read_qrels, write_beir
from hybridr.records import Document, Query
from studies import collections as study

CONDITION = Condition("one", "twelve", "test", 1000, 13, ["nDCG@10"], ["bm25"], 0.01)


@pytest.fixture
def collections(tmp_path: Path) -> Path:
    for name in ("one", "two", "three"):
        corpus = [Document(f"d{i}", f"text {name} {i}") for i in range(6)]
        queries = [Query(f"q{i}", f"text {i}") for i in range(5)]
        qrels = {f"q{i}": {f"d{i}": 1} for i in range(5)}
        write_beir(tmp_path / "collections" / name, corpus, queries, qrels)
    return tmp_path / "collections"


@pytest.fixture
def bench(collections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A runner of three collections whose measurement is `measured[name]`: a record, or what it raises."""
    conditions = {name: replace(CONDITION, name=name) for name in ("one", "two", "three")}
    measured: dict[str, Any] = {}

    def measure(work: collection.Work, *_: Any) -> dict[str, Any]:
        calls.append(work.condition.name)
        outcome = measured.get(work.condition.name)
        if isinstance(outcome, BaseException):
            raise outcome
        return {"condition": work.fingerprint, "systems": {"bm25": {"nDCG@10": 0.5}}}

    calls: list[str] = []
    monkeypatch.setattr(study, "read_conditions", lambda: conditions)
    monkeypatch.setattr(runner, "measure", measure)
    monkeypatch.setattr(runner, "open_cluster", lambda url: None)

    def start(*more: str) -> tuple[int, list[str]]:
        calls.clear()
        places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
        code = run.main(["collections", str(collections), *places, *more])
        return code, list(calls)

    start.measured, start.results, start.conditions = measured, tmp_path / "results", conditions
    return start


def test_every_committed_condition_can_be_read() -> None:
    conditions = read_conditions()
    assert [one.group for one in conditions.values()].count("twelve") == 12
    assert len(conditions) == 17
    assert all(one.systems[0] == "bm25" for one in conditions.values())
    assert {one.name for one in conditions.values() if not one.needs_vectors} == {
        "qbqtc_zh",
        "cmrc_drcd_zh",
        "xquad_zh",
    }


@pytest.mark.parametrize(
    ("table", "words"), [("spilt = 'test'", "unknown 'spilt'"), ("split = 'test'", "lacks 'group'")]
)
def test_a_misspelt_or_missing_setting_is_named(tmp_path: Path, table: str, words: str) -> None:
    (tmp_path / "c.toml").write_text(f"[collection.one]\n{table}\n")
    with pytest.raises(SettingsError, match=words):
        read_conditions(tmp_path / "c.toml")


def test_finished_ones_are_not_run_again_until_something_changes(bench: Any, collections: Path) -> None:
    assert bench() == (0, ["one", "two", "three"])
    assert bench() == (0, [])
    bench.conditions["two"] = replace(bench.conditions["two"], systems=["bm25", "rm3"])
    assert bench() == (0, ["two"])
    corpus = collections / "three" / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("text three 1", "text three one"))
    assert bench() == (0, ["three"])
    assert bench("--sets", "one", "--again") == (0, ["one"])


def test_results_of_other_code_are_not_finished(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version stays the same while the code that ranks changes: it told nothing."""
    assert bench() == (0, ["one", "two", "three"])
    with monkeypatch.context() as changed:
        changed.setattr(collection, "ranking_code", lambda: "0" * 12)
        assert bench() == (0, ["one", "two", "three"])
        assert bench() == (0, [])
    assert bench("--sets", "one") == (0, ["one"])


def test_a_failure_is_explained_elsewhere_and_does_not_stop_the_rest(bench: Any, capsys) -> None:
    bench.measured |= {"one": DataError("the index is full", hint="make room"), "two": ValueError("odd")}
    assert bench() == (1, ["one", "two", "three"])
    assert sorted(file.name for file in (bench.results / "collections").iterdir()) == ["three.json"]
    told = json.loads((bench.results / "failed" / "one.json").read_text())
    assert (told["error"], told["hint"]) == ("the index is full", "make room")
    assert json.loads((bench.results / "failed" / "two.json").read_text())["error"] == "ValueError: odd"
    assert "1 finished, 2 failed" in capsys.readouterr().err
    bench.measured.clear()
    assert bench() == (0, ["one", "two"])
    assert not list((bench.results / "failed").iterdir())


def test_an_interruption_says_what_is_kept(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench.measured["two"] = KeyboardInterrupt()
    assert bench() == (130, ["one", "two"])
    assert "interrupted in two; finished and kept: one; 2 left" in capsys.readouterr().err
    assert not (bench.results / "failed").exists()
    bench.measured.clear()
    assert bench() == (0, ["two", "three"])


def test_a_collection_that_is_not_there_is_not_run(bench: Any, collections: Path, capsys) -> None:
    (collections / "two").rename(collections / "elsewhere")
    assert bench() == (0, ["one", "three"])
    assert "two: not run" in capsys.readouterr().err


def test_a_collection_that_cannot_be_read_does_not_stop_the_rest(bench, collections, capsys):
    (collections / "one" / "corpus.jsonl").unlink()
    (collections / "two" / "qrels" / "test.tsv").unlink()
    assert bench() == (1, ["three"])
    said = capsys.readouterr().err
    assert "one: failed: the collection one has no corpus.jsonl" in said
    assert "two: failed: no qrels for split 'test'" in said
    assert (bench.results / "failed" / "two.json").is_file()


def test_an_archive_is_unpacked_once(bench: Any, collections: Path, tmp_path: Path) -> None:
    with tarfile.open(collections / "two.tar.xz", "w:xz") as archive:
        archive.add(collections / "two", "two")
    (collections / "two").rename(collections / "elsewhere")
    assert bench("--sets", "two") == (0, ["two"])
    assert (tmp_path / "runs" / "collections" / "two" / "corpus.jsonl").is_file()
    assert bench("--sets", "two") == (0, [])


def test_the_choice_of_queries_is_random_and_stays(collections: Path, tmp_path: Path) -> None:
    work = collection.Work(replace(CONDITION, queries=3), collections / "one", tmp_path / "runs", "one")
    first = read_qrels(collection.choose_queries(work))
    assert len(first) == 3
    assert read_qrels(collection.choose_queries(work)) == first
    other = collection.Work(replace(CONDITION, queries=3, seed=1), collections / "one", tmp_path / "b", "one")
    assert read_qrels(collection.choose_queries(other)) != first
    whole = collection.Work(CONDITION, collections / "one", tmp_path / "c", "one")
    assert collection.choose_queries(whole) == collections / "one" / "qrels" / "test.tsv"


def test_adapted_systems_are_compared_with_the_same_ones_unadapted() -> None:
    systems = ["bm25", "dense", "dense-adapted", "hybrid", "hybrid-adapted"]
    queries = [Query(f"q{i}", "text") for i in range(5)]
    qrels = {query.query_id: {"good": 1} for query in queries}
    runs = {
        system: {
            query.query_id: {"bad": 1.0, "good": 0.5 if system == systems[-1] else 2.0} for query in queries
        }
        for system in systems
    }
    compared = collection.comparisons(evaluate(runs, queries, qrels, ["nDCG@10"]))
    assert {baseline: [one["system"] for one in rows] for baseline, rows in compared.items()} == {
        "bm25": systems[1:],
        "dense": ["dense-adapted"],
        "hybrid": ["hybrid-adapted"],
    }
    assert compared["dense"][0]["difference"] == 0.0
    assert compared["hybrid"][0]["difference"] < -0.3
