"""The table of attacks says what the tests say."""

from __future__ import annotations

from support.attacks import PAGE, ROW, marked, page_now


def test_the_table_of_attacks_is_as_the_tests_are() -> None:
    assert page_now() == PAGE.read_text(encoding="utf-8"), (
        "docs/measured/attacks.md is stale: python tests/support/attacks.py"
    )


def test_every_row_stands_in_the_table_once() -> None:
    rows = [int(row) for row, _, _ in ROW.findall(PAGE.read_text(encoding="utf-8"))]
    assert rows == sorted(set(rows))
    assert {row for row, _ in marked()} <= set(rows)
    security = PAGE.parents[1] / "security.md"
    assert f"{len(rows)} attacks and faults were tried" in security.read_text(encoding="utf-8")
