"""Which search bodies are ranked anew, and what else of them stays."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.serving.searching import asks_by_words, is_rankable, without_field

FIELDS = frozenset({"text", "title"})
MATCH = {"match": {"text": {"query": "two words", "operator": "OR"}}}
TITLE = {"match": {"title": "two words"}}
SHOES = {"term": {"category": "shoes"}}


@pytest.mark.parametrize(
    "query",
    [
        MATCH,
        {"multi_match": {"query": "w", "fields": ["title^3", "text"], "operator": "OR"}},
        {"bool": {"must": [MATCH, SHOES], "filter": [SHOES], "must_not": [SHOES]}},
        {"bool": {"must": [{"bool": {"must": [MATCH], "filter": [SHOES]}}]}},
        {"bool": {"should": [MATCH, TITLE], "minimum_should_match": 1}},
        {"bool": {"must": [MATCH], "should": [TITLE]}},
    ],
)
def test_a_text_any_word_of_which_will_do(query: dict[str, Any]) -> None:
    assert asks_by_words(query, FIELDS)


@pytest.mark.parametrize(
    "query",
    [
        SHOES,
        {"match": {"text": {"query": "two words", "operator": "AND"}}},
        {"match": {"text": {"query": "two words", "minimum_should_match": "2"}}},
        {"multi_match": {"query": "two words", "fields": ["text"], "operator": "and"}},
        {"bool": {"must": [MATCH], "should": [SHOES]}},
        {"bool": {"must": [MATCH, {"match": {"category": "shoes"}}]}},
        {"bool": {"must": [MATCH, {"function_score": {"query": SHOES}}]}},
        {"bool": {"should": [MATCH, TITLE], "minimum_should_match": "2"}},
        {"bool": {"must": [{"bool": {"must": [{"match": {"text": {"query": "a b", "operator": "and"}}}]}}]}},
        {"function_score": {"query": MATCH}},
        {},
        "text",
    ],
)
def test_queries_with_limits_and_scores_of_their_own(query: Any) -> None:
    assert not asks_by_words(query, FIELDS)


@pytest.mark.parametrize(
    "besides",
    [
        {},
        {"from": 20, "size": 5, "track_total_hits": 2147483647, "_source": {"includes": [], "excludes": []}},
        {"size": 0, "aggregations": {"a": {"terms": {"field": "n"}}}},
        {"sort": [{"_score": {"order": "desc"}}], "highlight": {"fields": {"text": {}}}},
    ],
)
def test_what_a_ranking_leaves_as_it_is(besides: dict[str, Any]) -> None:
    assert is_rankable({"query": MATCH, **besides})


@pytest.mark.parametrize(
    "besides",
    [
        {"sort": [{"_score": {"order": "desc"}}, {"n": {"order": "asc"}}]},
        {"sort": [{"_doc": {"order": "asc"}}]},
        {"rescore": []},
        {"collapse": {"field": "n"}},
        {"search_after": [3]},
        {"min_score": 2.0},
        {"indices_boost": [{"a": 2.0}]},
        {"slice": {"id": 0, "max": 2}},
        {"ext": {"rerank": {}}},
        {"size": 0, "track_total_hits": 2147483647},
    ],
)
def test_what_a_ranking_would_break(besides: dict[str, Any]) -> None:
    assert not is_rankable({"query": MATCH, **besides})


def test_a_body_without_a_query() -> None:
    assert not is_rankable({"size": 3})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, {"excludes": ["v"]}),
        ({"includes": [], "excludes": ["price"]}, {"includes": [], "excludes": ["price", "v"]}),
        ({"includes": ["price"], "excludes": []}, {"includes": ["price"], "excludes": ["v"]}),
        ({"includes": ["v"], "excludes": []}, {"includes": ["v"], "excludes": []}),
        (False, False),
    ],
)
def test_the_vector_stays_out_of_answers_unless_it_is_named(source: Any, expected: Any) -> None:
    assert without_field("v", source) == expected
