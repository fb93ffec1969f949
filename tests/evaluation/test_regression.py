"""A ranking made worse on purpose is caught, an unchanged one passes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridr.errors import DataError, SettingsError
from hybridr.evaluation.evaluation import JudgedQueries, evaluate
from hybridr.evaluation.label_free import Bm25
from hybridr.evaluation.regression import compare_with_baseline
from hybridr.files.formats import read_beir, write_qrels, write_run
from hybridr.records import Run
from hybridr.search.systems import Compared, evaluate_systems
from hybridr_cli import main

TRIES, QUERIES = 100, 100


def values(*numbers: float) -> dict[str, dict[str, dict[str, float]]]:
    return {"mine": {"nDCG@10": {f"q{place}": number for place, number in enumerate(numbers)}}}


def test_a_fall_fails_where_it_is_large_and_significant() -> None:
    earlier, lower = [0.5, 0.6, 0.7, 0.8], [0.41, 0.5, 0.59, 0.7]
    [change] = compare_with_baseline(values(*earlier), values(*lower))
    assert change.failure == "more than --allow 0.005, and significant"
    assert change.line().startswith("mine nDCG@10 fell by 0.1000, from 0.6500 to 0.5500 (p ")
    [change] = compare_with_baseline(values(*earlier), values(*lower), allow=0.2)
    assert not change.failure, "it is allowed"
    [change] = compare_with_baseline(values(*earlier), values(0.1, 0.6, 0.7, 0.8))
    assert not change.failure, "one query of four is no evidence"
    [change] = compare_with_baseline(values(*earlier), values(0.1, 0.6, 0.7, 0.8), at_most=0.05)
    assert change.failure == "more than --at-most 0.05"
    [change] = compare_with_baseline(values(*lower), values(*earlier), allow=0, at_most=0)
    assert not change.failure, "it rose"
    with pytest.raises(DataError, match="only one of baseline and run has 1 query, such as 'q3'"):
        compare_with_baseline(values(*earlier), values(0.5, 0.6, 0.7))


def runs_of(folder: Path) -> dict[str, Run]:
    """Rank by title and text, and in three ways that are worse: a field dropped, and other weights."""
    documents, queries, _ = read_beir(folder)
    whole = Bm25([document.contents for document in documents])
    titles = Bm25([document.title for document in documents])
    rankings = {"whole": whole, "text dropped": titles, "half a query": None, "noise": None}
    runs: dict[str, Run] = {name: {} for name in rankings}
    for query in queries:
        shuffled = random.Random(query.query_id)
        scores = whole.search(query.text, 100)
        runs["whole"][query.query_id] = scores
        runs["text dropped"][query.query_id] = titles.search(query.text, 100)
        short = " ".join(query.text.split()[: max(1, len(query.text.split()) // 2)])
        runs["half a query"][query.query_id] = whole.search(short, 100)
        runs["noise"][query.query_id] = {
            name: score * shuffled.uniform(0.5, 1) for name, score in scores.items()
        }
    named = [document.doc_id for document in documents]
    return {
        name: {
            query_id: {named[int(place)]: score for place, score in scores.items()}
            for query_id, scores in run.items()
        }
        for name, run in runs.items()
    }


def test_worse_rankings_are_caught_and_an_unchanged_one_passes(collection: Callable[[str], Path]) -> None:
    folder = collection("cranfield")
    _, queries, qrels = read_beir(folder)
    result = evaluate(runs_of(folder), queries, qrels, ["nDCG@10"], resamples=10)
    by_query = {name: system["nDCG@10"] for name, system in result.per_query.items()}
    by_test, by_bar = dict.fromkeys(by_query, 0), dict.fromkeys(by_query, 0)
    for number in range(TRIES):
        drawn = random.Random(number).sample(sorted(by_query["whole"]), QUERIES)
        cut = {name: {"nDCG@10": {key: system[key] for key in drawn}} for name, system in by_query.items()}
        for name in by_query:
            for count, at_most in ((by_test, None), (by_bar, 0.02)):
                [change] = compare_with_baseline({"mine": cut["whole"]}, {"mine": cut[name]}, at_most=at_most)
                count[name] += bool(change.failure)
    assert by_test.pop("whole") == by_bar.pop("whole") == 0
    assert all(count >= 0.9 * TRIES for count in by_bar.values()), by_bar
    assert by_test.pop("text dropped") > 0.5 * TRIES, "a test of 100 queries needs a larger fall"
    assert all(count >= 0.9 * TRIES for count in by_test.values()), by_test


@pytest.fixture
def files(tmp_path: Path) -> Path:
    names = [f"q{place}" for place in range(8)]
    write_qrels(tmp_path / "qrels.tsv", {name: {"a": 1, "b": 0} for name in names})
    write_run(tmp_path / "good.trec", {name: {"a": 2.0, "b": 1.0} for name in names}, "mine")
    write_run(tmp_path / "bad.trec", {name: {"a": 1.0, "b": 2.0} for name in names}, "mine")
    return tmp_path


def test_a_gate_on_the_command_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qrels, baseline = ["--qrels", str(files / "qrels.tsv")], files / "baseline.json"
    good = ["evaluate", *qrels, "--run", f"mine={files / 'good.trec'}"]
    bad = ["evaluate", *qrels, "--run", f"mine={files / 'bad.trec'}"]
    assert main([*good, "--write", str(baseline)]) == 0
    content = json.loads(baseline.read_text())
    assert (content["systems"]["mine"]["nDCG@10"], len(content["per_query"]["mine"]["nDCG@10"])) == (1.0, 8)
    assert main([*good, "--against", str(baseline)]) == 0
    capsys.readouterr()
    other = files / "other.json"
    assert main([*bad, "--against", str(baseline), "--write", str(other)]) == 4
    assert "mine nDCG@10 fell by 0.3691, from 1.0000 to 0.6309" in capsys.readouterr().out
    assert not other.exists(), "a fall does not become the baseline"
    assert main([*bad, "--against", str(baseline), "--json"]) == 4
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert [change["failure"] != "" for change in changes] == [True, False]
    assert main([*bad, "--against", str(baseline), "--allow", "0.5"]) == 0
    assert main([*bad, "--against", str(baseline), "--allow", "0.5", "--at-most", "0.1"]) == 4


def test_what_does_not_fit_is_refused(files: Path) -> None:
    judged, run = JudgedQueries(qrels=files / "qrels.tsv"), {"mine": files / "good.trec"}
    baseline = files / "baseline.json"
    evaluate_systems(judged, Compared(runs=run, write=baseline))
    with pytest.raises(DataError, match="has the systems mine; this run new"):
        evaluate_systems(judged, Compared(runs={"new": files / "good.trec"}, against=baseline))
    with pytest.raises(DataError, match="has the measures nDCG@10, R@100; this run AP"):
        evaluate_systems(judged, Compared(runs=run, measures=["AP"], against=baseline))
    write_qrels(files / "other.tsv", {f"q{place}": {"a": 1, "b": 1} for place in range(8)})
    with pytest.raises(DataError, match="was measured with other judgements"):
        evaluate_systems(JudgedQueries(qrels=files / "other.tsv"), Compared(runs=run, against=baseline))
    with pytest.raises(DataError, match="cannot be read"):
        evaluate_systems(judged, Compared(runs=run, against=files / "nowhere.json"))
    for text in ("{}", "[]", '{"kind": "hybridr evaluation", "per_query": {"mine": 3}}'):
        baseline.write_text(text)
        with pytest.raises(DataError, match="is not a baseline"):
            evaluate_systems(judged, Compared(runs=run, against=baseline))
    for limits in ({"at_most": 0.1}, {"allow": 0.1}):
        with pytest.raises(SettingsError, match="--allow or --at-most without a baseline"):
            evaluate_systems(judged, Compared(runs=run, **limits))
    with pytest.raises(SettingsError, match="--allow -1"):
        evaluate_systems(judged, Compared(runs=run, allow=-1))
