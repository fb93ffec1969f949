"""How bodies are written, and what a leg holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr.cluster.connection import as_json
from hybridr.cluster.legs.dense import dense_query
from hybridr.cluster.legs.lexical import lexical_leg

MATCH = {"match": {"text": {"query": "wing"}}}


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


def test_a_leg_holds_only_what_is_asked_for() -> None:
    assert lexical_leg(MATCH) is MATCH
    only = {"term": {"tag": "a"}}
    assert lexical_leg(MATCH, filter=only) == {"bool": {"must": [MATCH], "filter": [only]}}
    assert lexical_leg(MATCH, "words") == {"bool": {"must": [MATCH], "_name": "words"}}
    assert "_name" not in dense_query([1.0], "v", 3)["knn"]["v"]
    assert dense_query([1.0], "v", 3, "near")["knn"]["v"]["_name"] == "near"
