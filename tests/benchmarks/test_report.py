"""The committed page, headline and plot are what the committed results give; marks and means are right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import report
import study
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


def test_means_are_of_the_twelve_that_ran_and_losses_are_counted(record: dict[str, Any]) -> None:
    text = headline.tables(record)
    mean = next(line for line in text.splitlines() if "mean of 2 of the twelve" in line)
    assert "**0.3500**" in mean
    assert "0.9000" not in mean
    hybrid = next(line for line in text.splitlines() if line.startswith("| hybrid |"))
    assert hybrid.split(" | ")[1:5] == ["-0.0050", "1/1", "1/1", "-0.0300 (lisa)"]
    assert hybrid.rstrip(" |").split(" | ")[5:] == ["-0.0050", "1/1", "-0.0300 (cisi)"]


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


def test_the_same_values_give_the_same_plot(record: dict[str, Any], tmp_path: Path) -> None:
    changes = report.changes_of(record)
    assert changes == {
        "hybrid": {"cisi": pytest.approx((0.02, 0.01, 0.03)), "lisa": pytest.approx((-0.03, -0.04, -0.02))}
    }
    for name in ("a.svg", "b.svg"):
        report.draw(tmp_path / name, changes, report.identity(changes))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert report.is_current(tmp_path / "a.svg", changes)
    assert not report.is_current(tmp_path / "a.svg", {"hybrid": {}})
