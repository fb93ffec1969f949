"""What a request may hold."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hybridr.search.rules.rule import MAX_VALUES
from hybridr.serving.requests import Refused, SearchRequest, check_filter
from hybridr.serving.settings import ServeSettings
from support.asking import client_of, embed
from support.hashing import HashingEncoder


@pytest.mark.parametrize(
    "text", ["word " * 20_000, "x" * 100_000, "飛" * 100_000, "a\x00b\x1b[31m\x7f\r\n\u2028"]
)
def test_long_and_odd_texts_are_encoded(text):
    assert embed(client_of(HashingEncoder()), text).status_code == 200


def test_malformed_json_is_refused_in_openais_form():
    headers = {"Content-Type": "application/json"}
    answer = client_of().post("/v1/embeddings", content=b'{"input": ', headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/embeddings", 405)]
)
def test_unknown_routes_and_methods_have_openais_form(method, path, status):
    answer = client_of().request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)


def nested(depth):
    return {"bool": {"must": [nested(depth - 1)]}} if depth else {"exists": {"field": "a"}}


@pytest.mark.parametrize(
    "filter",
    [
        {"term": {"tags": "a"}},
        {"term": {"tags": {"value": "a", "case_insensitive": True}}},
        {"terms": {"tags": ["a", 1, None, True], "boost": 2}},
        {"range": {"price": {"gte": 1, "lt": "now-1d/d", "format": "yyyy", "time_zone": "+01:00"}}},
        {"exists": {"field": "price"}},
        {"ids": {"values": ["1", "2"]}},
        {"match": {"text": "two words"}},
        {"match": {"text": {"query": "two words", "operator": "and"}}},
        {"bool": {"must": {"term": {"a": 1}}, "must_not": [nested(1)], "minimum_should_match": 1}},
        nested(7),
    ],
)
def test_a_filter_that_compares_is_taken(filter):
    check_filter(filter, ServeSettings())


@pytest.mark.attack(6)
@pytest.mark.parametrize(
    ("filter", "said"),
    [
        ({"terms": {"_id": {"index": "secret", "id": "1", "path": "salary"}}}, "'index' of terms is not"),
        ({"script": {"script": "true"}}, "'script' is not supported"),
        ({"regexp": {"text": ".*.*.*"}}, "'regexp' is not supported"),
        ({"percolate": {"field": "q", "index": "secret", "id": "1"}}, "'percolate' is not supported"),
        ({"geo_shape": {"at": {"indexed_shape": {"index": "secret", "id": "1"}}}}, "is not supported"),
        ({"bool": {"must": [{"bool": {"filter": {"script": {}}}}]}}, "'script' is not supported"),
        ({"bool": {"adjust_pure_negative": True}}, "'adjust_pure_negative' of bool is not supported"),
        ({"match": {"text": {"query": "a", "fuzziness": 2}}}, "'fuzziness' of match is not supported"),
        ({"term": {"a": {"value": {"b": 1}}}}, "plain values"),
        ({"ids": {"values": [["1"]]}}, "plain values"),
        ({"terms": {"a": list(range(MAX_VALUES + 1))}}, "at most 1024"),
        ({"term": {"a": 1, "b": 2}}, "term names one field"),
        ({"term": {"a": 1}, "range": {}}, "one key"),
        ({"bool": {"must": ["a"]}}, "one key"),
        ({"bool": []}, "'bool' is not supported"),
        ({}, "one key"),
        (nested(20), "deeper than 8"),
        ({"bool": {"should": [{"exists": {"field": "a"}}] * 200}}, "more than 100 clauses"),
    ],
)
def test_6_a_filter_that_does_more_is_refused(filter, said):
    with pytest.raises(Refused, match=said) as caught:
        check_filter(filter, ServeSettings())
    assert caught.value.status_code == 422
    check_filter(filter, ServeSettings(filters="any"))


@pytest.mark.parametrize(
    ("wrong", "right"), [("size", "k"), ("top_k", "k"), ("limit", "k"), ("from", "offset")]
)
def test_a_page_by_another_apis_name_is_refused_with_the_name_of_this_one(wrong: str, right: str) -> None:
    with pytest.raises(ValidationError, match=f"'{wrong}' is called '{right}' here"):
        SearchRequest.model_validate({"query": "words", wrong: 3})
    assert SearchRequest.model_validate({"query": "words", right: 3})
