"""Counts in messages."""

from __future__ import annotations

import pytest

from hybridr.errors import quantity


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [
        (0, "document", "0 documents"),
        (1, "document", "1 document"),
        (2_000, "query", "2,000 queries"),
        (3, "search", "3 searches"),
    ],
)
def test_a_count_and_its_noun_agree(count: int, noun: str, expected: str) -> None:
    assert quantity(count, noun) == expected
