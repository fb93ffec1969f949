"""How bodies are written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr.cluster.connection import as_json


@pytest.mark.parametrize(
    "body",
    [
        {"vector": [0.1, -3e-8, 1.0], "k": 10},
        {"query": "Größe, 日本語 and 🎉, \x00 and \u2028"},
        {"query": "half of a pair \ud800"},
        {"query": {"bool": {"should": []}}, "size": 0, "none": None},
    ],
)
def test_a_body_is_read_back_as_it_was(body: dict[str, Any]) -> None:
    assert json.loads(as_json(body)) == body


def test_keys_that_are_numbers_become_text() -> None:
    assert json.loads(as_json({1: "one"})) == {"1": "one"}
