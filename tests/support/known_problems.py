"""The page of known problems: `python tests/support/known_problems.py` writes its table anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hybridr.cluster.known_problems import KnownProblem, all_problems

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measured" / "known-problems.md"
TABLE = re.compile(r"(?<=<!-- table -->\n\n).*?(?=\n\n<!-- table -->)", re.S)
HEAD = [
    "| known problem | versions | what happens | what to do | seen here |",
    "| --- | --- | --- | --- | --- |",
]
SEEN = re.compile(r"@shown\(\"([\w-]+)\"\)\ndef (\w+)")
TESTS = "tests/server/cluster"
Test = TypeVar("Test", bound=Callable[..., object])


def shown(name: str) -> Callable[[Test], Test]:
    """Name the problem that a test shows on a node; the page links to it."""
    return lambda test: test


def page_now() -> str:
    """Return the page with a row for each problem; the last column names the test that shows it on a node."""
    seen = {
        name: f"{TESTS}/{file.name}::{test}"
        for file in sorted((PAGE.parents[2] / TESTS).glob("test_*.py"))
        for name, test in SEEN.findall(file.read_text(encoding="utf-8"))
    }
    rows = "\n".join([*HEAD, *(row_of(problem, seen.get(problem.name)) for problem in all_problems())])
    return TABLE.sub(lambda _: rows, PAGE.read_text(encoding="utf-8"))


def row_of(problem: KnownProblem, test: str | None) -> str:
    """Return the row of a problem."""
    name = f"[`{problem.name}`]({problem.source})" + " (refused)" * problem.loses
    cells = [name, problem.versions, problem.happens, problem.remedy, f"`{test}`" if test else ""]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page_now(), encoding="utf-8")
