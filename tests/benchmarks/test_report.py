"""The committed page, headline and plot are what the committed results give; marks and means are right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import report
import study
from conditions import read_conditions
from studies import collections as headline
from study import LEAD


def made(values: dict[str, float], stock: dict[str, tuple[float, float]], **more: Any) -> dict[str, Any]:
    """A result: means by system, and against hybrid-stock (difference, p after Holm)."""
    versus = [
        {"system": name, "measure": "nDCG@10", "difference": change, "p_holm": p}
        | {"low": change - 0.01, "high": change + 0.01}
        for name, (change, p) in stock.items()
    ]
    return {
        "documents": 1000,
        "queries": 50,
        "systems": {name: {"nDCG@10": value} for name, value in values.items()},
        "comparisons": {"hybrid-stock": versus, "bm25": []},
        "machine": {"cpu": "x", "cores": 2},
        "versions": {"opensearch": "3.6.0"},
        **more,
    }


@pytest.fixture
def record() -> dict[str, Any]:
    return {
        "cisi": made(
            {"bm25": 0.4, "dense": 0.5, "hybrid-stock": 0.45, "hybrid": 0.47},
            {"bm25": (-0.05, 0.01), "dense": (0.05, 0.2), "hybrid": (0.02, 0.04)},
        ),
        "lisa": made(
            {"bm25": 0.3, "dense": 0.1, "hybrid-stock": 0.35, "hybrid": 0.32},
            {"bm25": (-0.05, 0.3), "dense": (-0.25, 0.001), "hybrid": (-0.03, 0.049)},
        ),
        "xquad_zh": made({"bm25": 0.9}, {}),
    }


def test_the_committed_pages_and_the_plot_say_what_the_results_say() -> None:
    assert report.stale() == []


def test_a_changed_result_makes_everything_stale(record: dict[str, Any], tmp_path, monkeypatch) -> None:
    (tmp_path / "collections").mkdir()
    for name, found in record.items():
        (tmp_path / "collections" / f"{name}.json").write_text(json.dumps(found))
    (tmp_path / "README.md").write_text("before\n<!-- headline -->\nold\n<!-- /headline -->\nafter\n")
    for name, value in {
        "README": tmp_path / "README.md",
        "PAGE": tmp_path / "page.md",
        "PLOT": tmp_path / "headline.svg",
        "HERE": tmp_path / "benchmarks",
    }.items():
        monkeypatch.setattr(report, name, value)
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    assert report.stale() == ["page.md", "README.md", "headline.svg"]
    report.write()
    assert report.stale() == []
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("before\n<!-- headline -->\n| mean of 2 collections | nDCG@10 |")
    assert page.endswith("\n<!-- /headline -->\nafter\n")
    record["cisi"]["systems"]["hybrid"]["nDCG@10"] = 0.48
    record["cisi"]["comparisons"]["hybrid-stock"][-1]["difference"] = 0.03
    (tmp_path / "collections" / "cisi.json").write_text(json.dumps(record["cisi"]))
    assert report.stale() == ["page.md", "README.md", "headline.svg"]


def test_a_section_says_at_which_commits_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "ranking_code", lambda: "now")
    now, before = ({"code": [{"commit": name, "ranking": name}]} for name in ("now", "before"))
    assert report.told_code([{}]) == "Commit: not recorded."
    assert report.told_code([now, now]) == "Commit: now."
    assert report.told_code([before]) == "Commit: before (the code that ranks has changed since)."
    assert report.told_code([{}, now, {}]) == "Commit: not recorded, 2 of 3; now, 1 of 3."


def test_significantly_worse_is_marked_too(record: dict[str, Any]) -> None:
    rows = {line.split(" | ")[0].strip("| "): line for line in headline.tables(record).splitlines()}
    assert "| 0.4000 h- |" in rows["cisi"]
    assert "| 0.4700 h+ |" in rows["cisi"]
    assert "| 0.3200 h- |" in rows["lisa"]
    assert "| 0.5000 |" in rows["cisi"]
    assert "not run" in rows["npl"]
    assert "0.9000" in rows["xquad_zh"]
    assert "not run" in rows["xquad_zh"]


def test_means_are_of_the_twelve_that_ran_and_losses_are_counted(record: dict[str, Any]) -> None:
    text = headline.tables(record)
    mean = next(line for line in text.splitlines() if "mean of 2 of the twelve" in line)
    assert "**0.3500**" in mean
    assert "0.9000" not in mean
    hybrid = next(line for line in text.splitlines() if line.startswith("| hybrid |"))
    assert hybrid.split(" | ")[1:5] == ["-0.0050", "1/1", "1/1", "-0.0300 (lisa)"]
    assert hybrid.rstrip(" |").split(" | ")[5:] == ["-0.0050", "1/1", "-0.0300 (cisi)"]


def test_a_system_that_misses_a_set_has_no_mean(record: dict[str, Any]) -> None:
    del record["lisa"]["systems"]["hybrid"]
    mean = next(line for line in headline.tables(record).splitlines() if "mean of 2" in line)
    assert mean.rstrip(" |").endswith("not run")
    assert "| hybrid (1 sets) | +0.0200 |" in headline.tables(record)


def test_systems_that_no_set_has_are_named_once_and_have_no_column(record: dict[str, Any]) -> None:
    [said] = headline.not_asked(record)
    assert said.startswith("Not run on any set so far: rm3, dense-adapted, ")
    assert "hybrid-adapted." in said
    assert "rm3" not in headline.tables(record).splitlines()[0].lower()


def test_systems_that_went_are_told_and_have_no_row(record: dict[str, Any]) -> None:
    assert "-tuned" not in headline.tables(record)
    assert headline.WENT not in headline.tables(record)
    record["cisi"]["systems"]["dense-tuned"] = record["cisi"]["systems"]["dense"]
    told = headline.tables(record)
    assert headline.WENT in told
    assert "dense-tuned" not in told


def test_the_default_comes_from_the_study_of_signals_over_the_same_sample(record, monkeypatch):
    sample = {"settings": {"queries": 50}, "inputs": {"corpus": "a"}, "encoder": "e"}
    signals = {}
    for name, found in record.items():
        signals[name] = made({"hybrid": 0.6, "hybrid-plain": 0.5}, {"hybrid": (0.1, 0.01)}, **sample)
        found |= sample
        found["systems"].pop("hybrid", None)
    record["lisa"]["encoder"] = "another"
    monkeypatch.setattr(headline, "read_result", lambda name: signals if name == "signals" else None)
    found = headline.with_default(record)
    assert found["cisi"]["systems"] == record["cisi"]["systems"] | {"hybrid": {"nDCG@10": 0.6}}
    assert "0.6000 h+" in headline.tables(found)
    assert "hybrid-plain" not in headline.tables(found).splitlines()[0]
    assert found["lisa"] == record["lisa"]
    record["cisi"]["systems"]["hybrid"] = {"nDCG@10": 0.55}
    assert headline.with_default(record)["cisi"] == record["cisi"]


@pytest.fixture
def adapted(record: dict[str, Any]) -> dict[str, Any]:
    """cisi gains by an adapted encoder, lisa's was vetoed."""
    for name, value, promoted in (("cisi", 0.53, True), ("lisa", 0.1, False)):
        change = value - record[name]["systems"]["dense"]["nDCG@10"]
        record[name]["systems"]["dense-adapted"] = {"nDCG@10": value}
        record[name]["comparisons"]["dense"] = [
            {"system": "dense-adapted", "measure": "nDCG@10", "difference": change, "p_holm": 0.01}
        ]
        record[name]["adaptation"] = {"promoted": promoted}
    return record


def test_a_vetoed_adaptation_is_told_and_changes_nothing(adapted: dict[str, Any]) -> None:
    lines = headline.tables(adapted).splitlines()
    assert "0.1000 vetoed |" in next(line for line in lines if line.startswith("| lisa |"))
    assert "0.5300 |" in next(line for line in lines if line.startswith("| cisi |"))
    row = next(line for line in lines if line.startswith("| dense-adapted | dense |"))
    assert row.strip("| ").split(" | ")[2:] == [
        *("+0.0150", "1 of 2", "1/0", "1/0", "+0.0300 (cisi)", "+0.0300 (cisi)"),
    ]


def test_adaptation_that_was_not_run_has_no_table(record: dict[str, Any]) -> None:
    assert headline.ADAPTATIONS not in headline.tables(record)


def test_the_main_readme_shows_what_was_asked_over_the_twelve(record: dict[str, Any]) -> None:
    header, _, *rows, _, verdict = headline.overview(record).splitlines()
    assert header == "| mean of 2 collections | nDCG@10 | against hybrid-stock | sets up/down |"
    assert rows == [
        "| BM25 | 0.3500 | -0.0500 | 0/2 |",
        "| dense | 0.3000 | -0.1000 | 1/1 |",
        "| hybrid-stock | 0.4000 |  |  |",
        "| hybrid | 0.3950 | -0.0050 | 1/1 |",
    ]
    assert verdict == (
        "On 1 of the 2 hybrid is significantly better than hybrid-stock, on 1 worse, on 0 neither; vectors "
        "alone rank better on cisi."
    )


def test_the_main_readme_says_what_the_long_table_says(record: dict[str, Any]) -> None:
    """Mean and changes of the committed results are the same in both, and tables have six rows at most."""
    shown = report.BLOCK.search(report.read(report.README))
    assert shown
    _, _, *rows = (line for line in shown[0].splitlines() if line.startswith("|"))
    assert 1 <= len(rows) <= 6
    page = report.read(report.PAGE)
    for row in rows:
        system, mean, *against = row.strip("| ").split(" | ")
        assert f"**{mean}**" in page
        assert f"| {system} | {' | '.join(against)} |" in page or system == "hybrid-stock"


FIGURE = re.compile(r"(?<![\w.])([+-]?)0?(\.\d{2,4})(?![\d%]|\.\d)")
MANUAL = [report.README, *sorted((report.README.parent / "docs").glob("*.md"))]
OTHERS = {".25": "milliseconds", ".05": "a weight of a boost"}
"""Figures that no study measures."""


def figures(text: str) -> list[str]:
    """Give the figures of a text: those of four digits, and all where nDCG is told; none of what is code."""
    prose = re.sub(r"```.*?```|^    .*?$|`[^`]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    return [
        f"{sign}{digits}"
        for paragraph in re.split(r"\n\n|\n(?=[|*-] )", prose)
        for sign, digits in FIGURE.findall(paragraph)
        if len(digits) == 5 or LEAD in paragraph
    ]


def unheld(text: str) -> list[str]:
    """Name the figures that the page of the results does not print."""
    held = {figure for figure in figures(report.read(report.PAGE)) if len(figure.strip("+-")) == 5}
    held |= {figure.strip("+-") for figure in held}
    return [figure for figure in figures(text) if figure not in held and figure not in OTHERS]


def test_a_figure_that_no_result_holds_is_found() -> None:
    text = "nDCG@10 was .5731 (+.0262), then .5732; a gain of .01.\n\nA share of .01, `.5733`, p .5736."
    assert unheld(text) == [".5732", ".01", ".5736"]


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
def test_figures_of_rankings_in_the_manual_come_from_committed_results(page: Path) -> None:
    """The figures of the house stand on a page that a test writes."""
    if page.name != "house.md":
        assert unheld(report.read(page)) == []


def test_what_was_not_expected_is_named(record: dict[str, Any]) -> None:
    expected = read_conditions()["cisi"].expected["bm25"]
    said = headline.expectation(record)
    assert "cisi bm25 0.4000" in said
    record["cisi"]["systems"]["bm25"]["nDCG@10"] = expected
    assert "cisi bm25" not in headline.expectation(record)


def test_the_same_values_give_the_same_plot(record: dict[str, Any], tmp_path: Path) -> None:
    changes = report.changes_of(record)
    assert changes == {
        "hybrid": {
            "cisi": pytest.approx((0.02, 0.01, 0.03)),
            "lisa": pytest.approx((-0.03, -0.04, -0.02)),
        }
    }
    for name in ("a.svg", "b.svg"):
        report.draw(tmp_path / name, changes, report.identity(changes))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert report.is_current(tmp_path / "a.svg", changes)
    assert not report.is_current(tmp_path / "a.svg", {"hybrid": {}})
