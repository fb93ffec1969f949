"""The table of attacks in docs/measured/attacks.md: its last column says which tests hold a row now.

A test that holds a row is marked `@pytest.mark.attack(48)`; `python tests/support/attacks.py` writes the
column anew, and tests/hostile/test_attacks.py fails when it is stale.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "measured" / "attacks.md"
ROW = re.compile(r"^\| (\d+) \| (.*?) \| (holds|weak|broken) \| .* \|$", re.M)


def marked() -> Iterator[tuple[int, str]]:
    """Yield (row, test) of every marked test, as they stand in the files."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for row in rows_of(node):
                    yield row, f"`{file.relative_to(ROOT).as_posix()}::{node.name}`"


def rows_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    """Read the rows of a test's marker."""
    calls = [call for call in test.decorator_list if isinstance(call, ast.Call)]
    found = [call for call in calls if ast.unparse(call.func) == "pytest.mark.attack"]
    return [int(ast.literal_eval(row)) for call in found for row in call.args]


def page_now() -> str:
    """Give the page with its last column as the tests are."""
    tests: dict[int, list[str]] = {}
    for row, test in sorted(marked()):
        tests.setdefault(row, []).append(test)

    def line(found: re.Match[str]) -> str:
        row, attack, before = found.groups()
        now = "holds: " + ", ".join(tests[int(row)]) if int(row) in tests else "no test yet"
        return f"| {row} | {attack} | {before} | {now} |"

    return ROW.sub(line, PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page_now(), encoding="utf-8")
    security = PAGE.parents[1] / "security.md"
    count = f"{len(ROW.findall(page_now()))} attacks and faults were tried"
    text = re.sub(r"\d+ attacks and faults were tried", count, security.read_text(encoding="utf-8"))
    security.write_text(text, encoding="utf-8")
    sys.stdout.write(
        f"{len({row for row, _ in marked()})} of {len(ROW.findall(page_now()))} rows have a test\n"
    )
