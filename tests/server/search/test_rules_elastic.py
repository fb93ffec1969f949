"""Which filters of rules an index refuses, asked on Elasticsearch as on OpenSearch."""

from __future__ import annotations

import pytest

from hybridr.cluster.connection import path_of
from hybridr.search.rules.rule import Rule
from hybridr.search.rules.rules import find_refused_filters

pytestmark = [pytest.mark.node, pytest.mark.elastic]


@pytest.mark.attack(134)
def test_elasticsearch_refuses_the_same_filters(elastic, monkeypatch):
    name = "t-rules-kept"
    properties = {"number": {"type": "integer"}, "day": {"type": "date"}, "text": {"type": "text"}}
    elastic.request("PUT", path_of(name), {"mappings": {"properties": properties}})
    try:
        filters = {
            "no number": {"range": {"number": {"gte": "notanumber"}}},
            "no date": {"term": {"day": "someday"}},
            "no operator": {"match": {"text": {"query": "a", "operator": "xor"}}},
            "good": {"range": {"number": {"gte": 1}}},
            "unmapped": {"term": {"later": "x"}},
        }
        rules = [Rule(name=key, text="x", filter=clause) for key, clause in filters.items()]
        rules += [Rule(name=f"r{n}", text="x", filter={"term": {"number": n}}) for n in range(700)]
        searches = 0
        search = elastic.search

        def counted(*given: object, **options: object) -> object:
            nonlocal searches
            searches += 1
            return search(*given, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(elastic, "search", counted)
        refused = find_refused_filters(elastic, elastic.index_info(name), rules)
        assert sorted(refused) == ["no date", "no number", "no operator"]
        assert all("its filter is refused: " in reason and len(reason) <= 300 for reason in refused.values())
        assert searches < 40, "several filters in one search"
    finally:
        elastic.request("DELETE", path_of(name))
