"""Evaluation on a hand-worked example."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hybridr.errors import DataError, SettingsError
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.formats import read_run, write_beir, write_run
from hybridr.records import Document, Query
from hybridr_cli import main

QUERIES = [Query("q1", "one"), Query("q2", "two"), Query("q3", "three")]
QRELS = {"q1": {"a": 1, "b": 0, "c": 2}, "q2": {"d": 1}, "q3": {"z": 1}}
RUN = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"e": 1.0, "d": 0.5}}


def test_means_and_per_query_values() -> None:
    found = evaluate({"mine": RUN}, QUERIES, QRELS, ["nDCG@10", "R@100", "RR@10"])
    gain = 1 / math.log2(2) + 2 / math.log2(4)
    ideal = 2 / math.log2(2) + 1 / math.log2(3)
    values = found.per_query["mine"]
    assert values["nDCG@10"]["q1"] == pytest.approx(gain / ideal)
    assert values["nDCG@10"]["q2"] == pytest.approx(1 / math.log2(3))
    assert values["nDCG@10"]["q3"] == 0.0, "a query without results counts"
    assert found.systems["mine"]["nDCG@10"] == pytest.approx((gain / ideal + 1 / math.log2(3)) / 3)
    assert found.systems["mine"]["R@100"] == pytest.approx((1 + 1 + 0) / 3)
    assert values["RR@10"]["q2"] == pytest.approx(1 / 2)
    assert found.queries == 3


def test_table_compares_with_the_first_system() -> None:
    other = {**RUN, "q2": {"d": 1.0}}
    columns, rows = evaluate({"bm25": RUN, "hybrid": other}, QUERIES, QRELS).table()
    assert columns == ["system", "nDCG@10", "R@100", "nDCG@10 against bm25"]
    assert rows[0][-1] == ""
    assert rows[1][-1].startswith("+0.1230 (p ")


def test_refusals() -> None:
    with pytest.raises(DataError, match="no judged document was found"):
        evaluate({"mine": {"q1": {"elsewhere": 1.0}}}, QUERIES, QRELS)

    with pytest.raises(SettingsError, match="no system"):
        evaluate({}, QUERIES, QRELS)


BAD_TOPICS = {
    "no shared query": (QUERIES, {"x1": {"a": 1}}, "no query is judged: do queries and qrels belong"),
    "an id twice": ([*QUERIES, Query("q1", "again")], QRELS, "query id 'q1' occurs twice"),
    "a fraction": (QUERIES, {"q1": {"a": 0.5}}, "the grade 0.5, not a whole number"),
}


@pytest.mark.parametrize("case", BAD_TOPICS)
def test_bad_topics(case: str) -> None:
    queries, qrels, message = BAD_TOPICS[case]
    with pytest.raises(DataError, match=message):
        evaluate({"mine": RUN}, queries, qrels)


def test_a_run_of_other_topics_and_a_query_without_text() -> None:
    with pytest.raises(DataError, match="no query of the run 'other' is judged: .* such as 'PLAIN-1'"):
        evaluate({"mine": RUN, "other": {"PLAIN-1": {"a": 1.0}}}, QUERIES, QRELS)

    class Never:
        def run(self, queries, k=100):
            raise AssertionError

    with pytest.raises(DataError, match="query 'q1' has no text for 'bm25' to search with"):
        evaluate({"bm25": Never()}, [Query("q1", " ")], QRELS)

    with pytest.raises(SettingsError, match="no measure"):
        evaluate({"mine": RUN}, QUERIES, QRELS, [])


def test_systems_are_asked_as_deep_as_the_measures_look() -> None:
    asked = []

    class Recorder:
        def run(self, queries, k=100):
            asked.append((len(list(queries)), k))
            return RUN

    topics = [*QUERIES, Query("q9", "not judged")]
    evaluate({"one": Recorder()}, topics, QRELS, ["nDCG@10"])
    evaluate({"one": Recorder()}, topics, QRELS, ["R@1000"])
    assert asked == [(3, 100), (3, 1000)]


def test_baseline_intervals_and_json() -> None:
    other = {**RUN, "q2": {"d": 1.0}}
    found = evaluate({"bm25": RUN, "hybrid": other, "dense": RUN}, QUERIES, QRELS, baseline="hybrid")
    assert {(c.system, c.baseline) for c in found.comparisons} == {("bm25", "hybrid"), ("dense", "hybrid")}
    low, high = found.intervals["bm25"]["nDCG@10"]
    assert low <= found.systems["bm25"]["nDCG@10"] <= high
    again = json.loads(json.dumps(found.to_json()))
    assert {"queries", "baseline", "systems", "intervals", "comparisons", "per_query"} <= again.keys()
    assert again["comparisons"][0]["p_holm"] >= again["comparisons"][0]["p_value"]
    assert found.table()[0][-1] == "nDCG@10 against hybrid"
    assert (
        found.table(bounds=True)[1][0][1] == f"{found.systems['bm25']['nDCG@10']:.4f} [{low:.4f}, {high:.4f}]"
    )
    columns, rows = found.comparison_table()
    assert (len(rows), rows[0][-1]) == (4, "0/2/1")
    assert "95% interval" in columns


def test_differences_come_with_both_top_lists() -> None:
    other = {"q1": RUN["q1"], "q2": {"d": 1.0}}
    (only,) = evaluate({"bm25": RUN, "hybrid": other}, QUERIES, QRELS).differences()
    assert (only.query, only.values) == (QUERIES[1], (pytest.approx(1 / math.log2(3)), 1.0))
    assert [(one.doc_id, one.grade) for one in only.tops[0]] == [("e", None), ("d", 1)]
    assert [(one.doc_id, one.grade) for one in only.tops[1]] == [("d", 1)]
    assert evaluate({"bm25": RUN}, QUERIES, QRELS).differences() == []


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_run(tmp_path / "bm25.trec", RUN, "bm25")
    write_run(tmp_path / "other.trec", {**RUN, "q2": {"d": 1.0}}, "other")
    write_beir(tmp_path / "beir", [Document("d", "the <b>text</b> of <script>d")], QUERIES, QRELS)
    return tmp_path


def test_run_files_are_evaluated_without_a_cluster(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["evaluate", "--run", f"bm25={files / 'bm25.trec'}", "--run", str(files / "other.trec")]
    qrels = ["--qrels", str(files / "beir/qrels/test.tsv"), "--quiet"]
    assert main([*given, *qrels, "--measures", "nDCG@10,RR@10,Judged@10"]) == 0
    shown = capsys.readouterr().out
    assert "runs: 3 queries" in shown
    assert "+0.1230" in shown
    assert "0/2/1" not in shown
    assert "1/2/0" in shown
    assert main([*given, *qrels, "--baseline", "other", "--json", "--runs", str(files / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == "other"
    assert read_run(Path(found["runs"]["bm25"])) == RUN


def test_reports_from_the_command_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["evaluate", "--run", f"bm25={files / 'bm25.trec'}", "--run", f"new={files / 'other.trec'}"]
    beir = ["--beir", str(files / "beir"), "--quiet"]
    assert main([*given, *beir, "--report", str(files / "report.md")]) == 0
    assert (files / "report.md").read_text().startswith("| system | nDCG@10 |")
    page = files / "report.html"
    assert main([*given, *beir, "--report", str(page)]) == 0
    assert "the text of &lt;script&gt;d" in page.read_text()
    assert page.stat().st_mode & 0o077 == 0, "it holds text of documents"
    capsys.readouterr()
    assert main([*given, *beir, "--report", str(files / "report.txt")]) == 2
    assert "hint: end its name in .md or .html" in capsys.readouterr().err


BAD_CALLS = {
    "nothing": ([], "no judgements"),
    "no runs": (["--qrels", "{qrels}"], "no system to evaluate"),
    "a name twice": (["--qrels", "{qrels}", "--run", "{run}", "--run", "{run}"], "with a new name"),
    "an index without queries": (["some-index", "--qrels", "{qrels}"], "no queries to search with"),
    "an unknown measure": (["--qrels", "{qrels}", "--run", "{run}", "--measures", "best"], "unknown measure"),
    "an unknown baseline": (["--qrels", "{qrels}", "--run", "{run}", "--baseline", "x"], "the baseline 'x'"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls(files: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    options, message = BAD_CALLS[case]
    places = {"qrels": files / "beir/qrels/test.tsv", "run": files / "bm25.trec"}
    assert main(["evaluate", *(option.format(**places) for option in options)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err


@pytest.mark.parametrize("grades", [{"a": 0}, {"a": -1, "b": 0}, {}])
def test_queries_without_a_relevant_document_count_as_0_and_are_told(grades: dict[str, int]) -> None:
    whole = evaluate({"mine": RUN}, QUERIES, QRELS)
    assert whole.without_relevant == 0
    assert not whole.remarks
    found = evaluate({"mine": RUN}, [*QUERIES, Query("q4", "nothing")], {**QRELS, "q4": grades})
    assert found.queries == 4
    assert found.without_relevant == found.to_json()["without_relevant"] == 1
    [remark] = found.remarks
    assert remark.startswith("1 of 4 judged queries have no relevant document: they count as 0")
    share = float(remark.partition(" times")[0].split()[-1])
    assert found.systems["mine"]["nDCG@10"] * share == pytest.approx(whole.systems["mine"]["nDCG@10"], 0.01)
