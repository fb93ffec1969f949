"""Vectors stay out of every hit that a search shows, and nothing else of the search changes."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.rewriting.shown import without_field, without_field_inside

LEFT_OUT = {"excludes": ["v"]}
CHILDREN = {"type": "part", "query": {"match": {"inner_hits": {"query": "top_hits"}}}}


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
    ],
)
def test_the_vector_stays_out_of_answers_unless_it_is_named(asked: Any, expected: Any) -> None:
    assert without_field("v", asked) == expected


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
    found = without_field_inside("v", body)
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
    assert without_field_inside("v", odd) == {**odd, "_source": LEFT_OUT}
