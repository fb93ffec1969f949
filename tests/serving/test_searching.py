from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridr.serving.searching import Wanted, filter_of, rewritten, wanted

FIELDS = frozenset({"text", "title"})
MATCH = {"match": {"text": "two words"}}
SHOES = {"term": {"category": "shoes"}}
CHEAP = {"range": {"price": {"lt": 10}}}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (MATCH, Wanted("two words")),
        ({"match": {"text": {"query": "two words", "operator": "and", "boost": 2}}}, Wanted("two words")),
        ({"multi_match": {"query": "w", "fields": ["title^3", "text"]}}, Wanted("w")),
        ({"multi_match": {"query": "w", "type": "most_fields", "fuzziness": 0}}, Wanted("w")),
        ({"multi_match": {"query": "w", "fields": []}}, Wanted("w")),
        ({"bool": {"must": MATCH}}, Wanted("two words")),
        ({"bool": {"should": [MATCH]}}, Wanted("two words")),
        ({"bool": {"must": [MATCH], "filter": [SHOES, CHEAP]}}, Wanted("two words", (SHOES, CHEAP))),
        ({"bool": {"must": [MATCH, SHOES], "must_not": CHEAP}}, Wanted("two words", (SHOES,), (CHEAP,))),
        ({"bool": {"must": [MATCH], "should": [SHOES]}}, Wanted("two words")),
        (
            {"bool": {"must": [{"bool": {"must": MATCH, "filter": SHOES}}], "filter": CHEAP}},
            Wanted("two words", (SHOES, CHEAP)),
        ),
        (
            {"bool": {"should": [MATCH, {"match": {"title": "two words"}}]}},
            Wanted("two words"),
        ),
    ],
)
def test_one_text_is_found_with_its_filters(query: dict[str, Any], expected: Wanted) -> None:
    assert wanted(query, FIELDS) == expected


@pytest.mark.parametrize(
    "query",
    [
        {"match_all": {}},
        {"match": {"category": "shoes"}},
        {"match": {"text": 7}},
        {"match": {"text": "  "}},
        {"match_phrase": {"text": "two words"}},
        {"multi_match": {"query": "two words", "fields": ["text"], "type": "phrase"}},
        {"multi_match": {"query": "two words", "fields": ["text", "category"]}},
        {"bool": {"filter": [MATCH]}},
        {"bool": {"must_not": [MATCH]}},
        {"bool": {"must": [MATCH, {"match": {"title": "others"}}]}},
        {"bool": {"should": [MATCH, SHOES]}},
        {"bool": {"must": [MATCH] * 51}},
        {"hybrid": {"queries": [MATCH]}},
        {"knn": {"v": {"vector": [1.0], "k": 1}}},
        {"match": MATCH["match"], "term": {}},
        {"match": ["text"]},
        {"bool": "text"},
        {},
    ],
)
def test_every_other_query_is_left_alone(query: dict[str, Any]) -> None:
    assert wanted(query, FIELDS) is None


@given(st.text(min_size=1).filter(str.strip))
def test_a_text_stays_a_text_whatever_is_in_it(text: str) -> None:
    query = {"bool": {"must": [{"match": {"text": text}}], "filter": [SHOES]}}
    one = wanted(query, FIELDS)
    assert one is not None
    assert one.text == text
    made = rewritten(query, {"knn": {"v": {"vector": [1.0], "k": 3, "filter": filter_of(one)}}}, 3)
    legs = json.loads(json.dumps(made))["hybrid"]["queries"]
    assert legs[0] == json.loads(json.dumps(query))
    assert legs[1]["knn"]["v"]["filter"] == {"bool": {"filter": [SHOES]}}


def test_no_filter_where_everything_may_be_found() -> None:
    assert filter_of(Wanted("x")) is None
    assert filter_of(Wanted("x", (SHOES,), (CHEAP,))) == {"bool": {"filter": [SHOES], "must_not": [CHEAP]}}
