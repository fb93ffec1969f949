"""The pages under docs name tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.places import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))


def named_tests(page: Path) -> set[tuple[str, str]]:
    return set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")))


def defined(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_test_exists(page: Path) -> None:
    missing = [
        f"{file}::{test}"
        for file, test in sorted(named_tests(page))
        if not (ROOT / file).is_file() or test not in defined(ROOT / file)
    ]
    files = re.findall(r"`(tests/[\w/]+\.py)`", page.read_text(encoding="utf-8"))
    assert missing + [file for file in files if not (ROOT / file).is_file()] == []


def test_every_case_of_the_reindex_page_has_a_test() -> None:
    page = ROOT / "docs" / "reindex.md"
    cases = page.read_text(encoding="utf-8").split("## Before the first write")[1].split("## Limits")[0]
    rows = [line for line in cases.splitlines() if re.match(r"\| (?!case |---)", line)]
    assert len(rows) > 50
    assert [row for row in rows if not re.search(r"`tests/\S+::test_\w+` \|$", row)] == []
