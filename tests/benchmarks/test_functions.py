"""What a client's functions cost two rankings, as the page tells it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hybridr.records import Query
from studies import functions

MACHINE = {"cpu": "a processor", "cores": 2}


def test_values_are_made_up_once_for_all(tmp_path: Path) -> None:
    documents = [{"_id": str(number), "title": "", "text": "some words"} for number in range(50)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    first, again = (list(functions.with_values(tmp_path)) for _ in range(2))
    assert first == again
    assert {one["text"] for one in first} == {"some words"}
    assert all(1 <= one["rating"] <= 5 and one["reviews"] >= 0 for one in first)
    assert {one["in_stock"] for one in first} == {True, False}


def test_a_function_stands_around_the_text() -> None:
    search: Any = SimpleNamespace(lexical_fields=("contents",))
    match = {"match": {"contents": "blue hat"}}
    for function in functions.FUNCTIONS.values():
        body = functions.body_of(search, Query("q", "blue hat"), function)
        [kind] = function
        assert body["query"][kind][functions.INSIDE.get(kind, "query")] == match
    assert functions.body_of(search, Query("q", "blue hat"), {})["query"] == match


def test_functions_are_counted_that_cost_both_alike() -> None:
    measured = {f"{way} none": base for way, base in (("bm25", 0.4), ("ours", 0.6))}
    for number, name in enumerate(functions.FUNCTIONS):
        measured |= {f"bm25 {name}": 0.3, f"ours {name}": 0.48 if number else 0.4}
    found = functions.render({"sets": {"one": measured}, "machine": MACHINE})
    assert "| none | 0.400 / 0.600 |" in found
    assert "| multiplied by a rating of 1 to 5 | -0.100 / -0.200 |" in found
    count = len(functions.FUNCTIONS)
    assert f"| alike | {count - 1} of {count} |" in found
