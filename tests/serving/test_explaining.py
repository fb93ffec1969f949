"""Fields are counted as clients name them, of what scores only."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.errors import AccessDenied, ClusterError, Unreachable
from hybridr.search.clauses import NotRanked
from hybridr.serving.rewriting.explaining import (
    Explained,
    LoggedRequest,
    RequestLog,
    Verdict,
    parsed_query,
    searched_fields,
)

SHOP = {"multi_match": {"query": "red scarf", "fields": ["title^5", "title.english^3", "attr*"]}}
MATCH = {"match": {"title": "red"}}


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        (MATCH, {"title"}),
        (SHOP, {"title", "title.english", "attr*"}),
        (
            {"bool": {"must": [SHOP], "filter": [{"match": {"brand": "x"}}]}},
            {"title", "title.english", "attr*"},
        ),
        ({"function_score": {"query": {"match_phrase": {"title": "red"}}, "functions": []}}, {"title"}),
        ({"nested": {"path": "specs", "query": {"match": {"specs.text": "wool"}}}}, {"specs.text"}),
        ({"dis_max": {"queries": [{"match": {"a": "x"}}, {"match_bool_prefix": {"b": "x"}}]}}, {"a", "b"}),
        ({"query_string": {"query": "red"}}, {"*"}),
        ({"query_string": {"query": "red", "fields": [], "default_field": "title"}}, {"title"}),
        ({"term": {"brand": "x"}}, set()),
        (None, set()),
        ([["match"]], set()),
        ({"multi_match": {"fields": 7}}, set()),
    ],
)
def test_fields_are_named_as_clients_name_them(query: Any, fields: set[str]) -> None:
    body = {"query": query}
    for request in (body, {"body": body}, {"path": "/s/_search", "body": body}):
        assert searched_fields(request) == fields


def test_what_each_field_gets_is_counted() -> None:
    requests = [{"query": SHOP}, {"query": MATCH}, {"size": 0}]
    log = RequestLog(tuple(LoggedRequest(*numbered) for numbered in enumerate(requests, 1)), (4,))
    verdicts = [
        Verdict(True, None, "ranked"),
        Verdict(False, "sort", "price: another order"),
        Verdict(False, "no_query", "none"),
    ]
    found = Explained(log, tuple(verdicts)).to_json()
    assert found["by_field"] == {
        "title": {"asked": 2, "ranked": 1},
        **{name: {"asked": 1, "ranked": 1} for name in found["by_field"] if name != "title"},
    }
    assert len(found["by_field"]) == 3
    read = json.loads(json.dumps(found["requests"]))
    assert read[1] == {"line": 2, "ranked": False, "reason": "sort", "why": "price: another order"}
    assert [one["reason"] for one in read] == [None, "sort", "no_query"]
    assert (found["ranked"], found["unreadable"]) == (1, (4,))


@pytest.mark.parametrize(
    ("error", "is_raised"),
    [
        (ClusterError("too many requests", status=429), True),
        (ClusterError("no shard answers", status=503), True),
        (Unreachable("nothing answers"), True),
        (AccessDenied("a right is missing", status=403), True),
        (ClusterError("unknown analyzer", status=400), False),
        (ValueError("not a number"), False),
    ],
)
def test_a_busy_cluster_says_nothing_about_a_request(error: Exception, is_raised: bool) -> None:
    def read(body: Any) -> Any:
        raise error

    ranking: Any = SimpleNamespace(search=SimpleNamespace(cluster=None), read=read)
    if is_raised:
        with pytest.raises(type(error), match=str(error)):
            parsed_query(ranking, {"query": MATCH})
    else:
        assert parsed_query(ranking, {"query": MATCH}) == NotRanked("unreadable")
