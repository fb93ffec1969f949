"""Vectors stay out of every hit that a search shows, and nothing else of the search changes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hybridr.serving.rewriting.rewriting import HiddenField, body_without_field, without_field

HIDDEN = HiddenField("v", ("price", "text", "text.raw", "vat"))
LEFT_OUT = {"excludes": ["v"]}
CHILDREN = {"type": "part", "query": {"match": {"inner_hits": {"query": "top_hits"}}}}


@pytest.mark.attack(114)
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"_source": LEFT_OUT}),
        (
            {"_source": {"includes": [], "excludes": ["price"]}},
            {"_source": {"includes": [], "excludes": ["price", "v"]}},
        ),
        ({"_source": {"includes": ["price"]}}, {"_source": {"includes": ["price"], **LEFT_OUT}}),
        ({"_source": {"includes": ["v"]}}, {"_source": {"includes": ["v"]}}),
        ({"_source": False}, {"_source": False}),
        ({"stored_fields": ["price"]}, {"stored_fields": ["price"]}),
        ({"stored_fields": ["price"], "_source": {}}, {"stored_fields": ["price"], "_source": LEFT_OUT}),
        ({"fields": ["*"]}, {"fields": ["price", "text", "text.raw", "vat"], "_source": LEFT_OUT}),
        ({"fields": ["v*"], "_source": False}, {"fields": ["vat"], "_source": False}),
        ({"fields": "*v*", "_source": False}, {"fields": ["vat"], "_source": False}),
        ({"fields": ["te*", "v"], "_source": False}, {"fields": ["te*", "v"], "_source": False}),
        (
            {"fields": [{"field": "v*", "format": "x"}, {"field": "text"}], "_source": False},
            {"fields": [{"field": "vat", "format": "x"}, {"field": "text"}], "_source": False},
        ),
        ({"stored_fields": ["_source"]}, {"stored_fields": ["_source"], "_source": LEFT_OUT}),
        ({"stored_fields": "_source"}, {"stored_fields": "_source", "_source": LEFT_OUT}),
        (
            {"stored_fields": ["_source", "price"], "_source": False},
            {"stored_fields": ["_source", "price"], "_source": LEFT_OUT},
        ),
        ({"stored_fields": ["*"]}, {"stored_fields": ["*"]}),
        ({"_source": {"exclude": "text"}}, {"_source": {"excludes": ["text", "v"]}}),
        (
            {"_source": {"include": ["*"], "exclude": ["text"]}},
            {"_source": {"includes": ["*"], "excludes": ["text", "v"]}},
        ),
        ({"_source": {"include": "v"}}, {"_source": {"include": "v"}}),
    ],
)
def test_114_no_other_way_to_ask_for_fields_shows_it(asked: Any, expected: Any) -> None:
    assert without_field(HIDDEN, asked) == expected


@pytest.mark.attack(114)
def test_114_patterns_made_to_be_slow_or_to_fill_memory_cost_little() -> None:
    hidden = HiddenField("a" * 200, tuple(f"{'a' * 200}{number}" for number in range(1_000)))
    started = time.process_time()
    slow = ["*a" * 100 + "b", "*" * 10_000, "[a-z]*", "a?*", "*a" * 90 + "*"]
    shown = without_field(hidden, {"fields": slow, "_source": False})
    assert shown["fields"] == [slow[0], *hidden.others, "[a-z]*", "a?*", *hidden.others]
    many = ["*"] * 100_000
    assert without_field(hidden, {"fields": many, "_source": False})["fields"] == many
    assert time.process_time() - started < 5


def test_it_stays_out_of_hits_inside_groups_buckets_and_relatives() -> None:
    best = {"top_hits": {"size": 1}}
    body = {
        "_source": False,
        "collapse": {"field": "brand", "inner_hits": [{"size": 1}, {"_source": False}]},
        "aggregations": {
            "top_hits": {"terms": {"field": "brand"}, "aggregations": {"best": best}},
            "best": best,
            "top": {"max": {"field": "top_hits"}},
        },
        "query": {"bool": {"should": [{"has_child": {**CHILDREN, "inner_hits": {}}}, {"x": [1, "a"]}]}},
    }
    shown = {"top_hits": {"size": 1, "_source": LEFT_OUT}}
    found = body_without_field(HIDDEN, body)
    assert found["_source"] is False
    assert found["collapse"]["inner_hits"] == [{"size": 1, "_source": LEFT_OUT}, {"_source": False}]
    assert found["aggregations"] == {
        "top_hits": {"terms": {"field": "brand"}, "aggregations": {"best": shown}},
        "best": shown,
        "top": {"max": {"field": "top_hits"}},
    }
    [child, other] = found["query"]["bool"]["should"]
    assert child == {"has_child": CHILDREN | {"inner_hits": {"_source": LEFT_OUT}}}
    assert other == {"x": [1, "a"]}


@pytest.mark.parametrize(
    "odd",
    [{"collapse": 3}, {"aggregations": [1]}, {"aggregations": {"a": 3}}, {"query": None}, {"collapse": {}}],
)
def test_what_is_odd_stays(odd: dict[str, Any]) -> None:
    assert body_without_field(HIDDEN, odd) == {**odd, "_source": LEFT_OUT}
