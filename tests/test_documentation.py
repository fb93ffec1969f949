"""The pages under docs name tests that exist, no page links to nothing, and studies import what there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.places import ROOT

PAGES = sorted((ROOT / "docs").rglob("*.md"))
MANUAL = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "house.md"})]
LINKING = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *PAGES]
FIRST_SCREEN, LONGEST, PAGE, ALL = 40, 100, 200, 1_880


def named_tests(page: Path) -> set[tuple[str, str]]:
    return set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")))


def defined(file: Path) -> set[str]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, functions)}


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
    cases = (ROOT / "docs" / "measured" / "cases.md").read_text(encoding="utf-8")
    rows = [line for line in cases.splitlines() if re.match(r"\| (?!case |where |---)", line)]
    assert len(rows) > 200
    assert [row for row in rows if not re.search(r"`tests/\S+\.py(::test_\w+)?` \|$", row)] == []


def test_the_manual_is_short() -> None:
    lines = {page.name: len(page.read_text(encoding="utf-8").splitlines()) for page in MANUAL}
    assert sum(lines.values()) <= ALL
    assert not {name for name, count in lines.items() if count > PAGE}


def test_the_map_names_every_page_of_the_manual() -> None:
    written = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(([\w/.-]+\.md)\)", written))
    there = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.parent.name != "recipes"}
    assert named == there - {"index.md"} | {"../README.md", "../benchmarks/README.md"}


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8"))
    for file, anchor in links:
        target = (page.parent / file) if file else page
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"


def test_the_readme_is_short_and_begins_with_what_it_is_worth() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST
    assert "<!-- /headline -->" in lines[:FIRST_SCREEN]
    assert sum(line.startswith("    hybridr ") for line in lines[:FIRST_SCREEN]) == 2


def top_level(file: Path) -> set[str]:
    """Return the names that a module binds at its top level."""
    names: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        for part in ast.walk(node) if not isinstance(node, ast.FunctionDef | ast.ClassDef) else [node]:
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                names.add(part.name)
            elif isinstance(part, ast.Name):
                names.add(part.id)
            elif isinstance(part, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in part.names}
    return names


@pytest.mark.parametrize("study", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda study: study.name)
def test_a_study_imports_what_the_library_has(study: Path) -> None:
    """Their own tests run apart (`make test-benchmarks`), so a rename in the library would go unseen."""
    for node in ast.walk(ast.parse(study.read_text(encoding="utf-8"))):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if module.startswith("hybridr."):
            place = ROOT / module.replace(".", "/")
            file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
            there = top_level(file) | {member.stem for member in place.glob("*")}
            assert isinstance(node, ast.ImportFrom)
            assert {alias.name for alias in node.names} <= there, f"{study.name}: {module}"
