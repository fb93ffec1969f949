"""The text of documents as they come."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.reading import joined_pages, text_of


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"text": "half \ud83d of one"}, "half \ufffd of one"),
        ({"text": ["\udc00", "a\udfffb"]}, "\ufffd a\ufffdb"),
        ({"text": "whole \U0001f600 日本語"}, "whole \U0001f600 日本語"),
        ({"text": None}, ""),
    ],
)
def test_half_a_character_becomes_a_sign_that_encoders_read(source: dict[str, Any], expected: str) -> None:
    found = text_of(source, ["text"])
    assert found == expected
    assert found.encode().decode() == found


def test_pages_are_joined_until_they_are_long_enough() -> None:
    pages = [[1, 2], [], [3], [4, 5, 6], [7]]
    assert list(joined_pages(iter(pages), 3)) == [[1, 2, 3], [4, 5, 6], [7]]
    assert list(joined_pages(iter(pages), 1)) == [[1, 2], [3], [4, 5, 6], [7]]
