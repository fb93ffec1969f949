"""Kinds of requests that a search application sends, and what a transparent deployment makes of each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError
from support.corpus import WORDS, create, put

TEXT = "anchor needle velvet"
NONSENSE = "qqxyzzy blorp"
MATCH = {"match": {"text": TEXT}}
TITLE = {"match": {"title": TEXT}}
CHEAP = {"range": {"price": {"lt": 20}}}
BRAND = {"term": {"brand": "b1"}}
AGGS = {"brands": {"terms": {"field": "brand"}}, "prices": {"avg": {"field": "price"}}}
STARS = {"nested": {"path": "comments", "query": {"range": {"comments.stars": {"gte": 4}}}, "inner_hits": {}}}
PROPERTIES: dict[str, Any] = {
    "title": {"type": "text"},
    "text": {"type": "text"},
    "brand": {"type": "keyword"},
    "price": {"type": "float"},
    "stock": {"type": "integer"},
    "date": {"type": "date"},
    "comments": {
        "type": "nested",
        "properties": {"author": {"type": "keyword"}, "stars": {"type": "integer"}, "said": {"type": "text"}},
    },
    "suggest": {"type": "completion"},
}
FUNCTIONS = {"functions": [{"field_value_factor": {"field": "stock", "modifier": "log1p", "missing": 0}}]}


@dataclass(frozen=True)
class Asked:
    """A request: its body, API and parameters; why it stays as it was, None where it is ranked anew.

    `within` is what every hit of a ranked one has to match; `text` is another text than TEXT.
    """

    name: str
    body: dict[str, Any]
    reason: str | None = None
    api: str = "_search"
    params: dict[str, Any] = field(default_factory=dict)
    within: dict[str, Any] | None = None


def query(query: dict[str, Any], **besides: Any) -> dict[str, Any]:
    return {"query": query, **besides}


def of_bool(**parts: Any) -> dict[str, Any]:
    return {"bool": parts}


RANKED = [
    Asked("match", query(MATCH)),
    Asked("match, long form", query({"match": {"text": {"query": TEXT, "boost": 2, "fuzziness": "AUTO"}}})),
    Asked("multi_match", query({"multi_match": {"query": TEXT, "fields": ["title^3", "text"]}})),
    Asked("multi_match, most_fields", query({"multi_match": {"query": TEXT, "type": "most_fields"}})),
    Asked(
        "multi_match, cross_fields",
        query({"multi_match": {"query": TEXT, "type": "cross_fields", "fields": ["title", "text"]}}),
    ),
    Asked("combined_fields", query({"combined_fields": {"query": TEXT, "fields": ["title", "text"]}})),
    Asked("query_string of words", query({"query_string": {"query": TEXT, "fields": ["title", "text"]}})),
    Asked(
        "simple_query_string of words", query({"simple_query_string": {"query": TEXT, "fields": ["text"]}})
    ),
    Asked("q=", {}, params={"q": TEXT, "df": "text"}),
    Asked("q= in all fields", {}, params={"q": TEXT}),
    Asked("dis_max", query({"dis_max": {"queries": [MATCH, TITLE], "tie_breaker": 0.3}})),
    Asked("bool of should", query(of_bool(should=[MATCH, TITLE]))),
    Asked("bool, filter", query(of_bool(must=[MATCH], filter=[CHEAP])), within=CHEAP),
    Asked("bool, must term", query(of_bool(must=[MATCH, BRAND])), within=BRAND),
    Asked("bool, must_not", query(of_bool(must=[MATCH], must_not=[BRAND])), within=of_bool(must_not=[BRAND])),
    Asked("bool, nested filter with inner hits", query(of_bool(must=[MATCH], filter=[STARS])), within=STARS),
    Asked("function_score", query({"function_score": {"query": MATCH, **FUNCTIONS}})),
    Asked(
        "function_score, decay",
        query(
            {"function_score": {"query": MATCH, "gauss": {"date": {"origin": "2026-06-01", "scale": "90d"}}}}
        ),
    ),
    Asked("boosting", query({"boosting": {"positive": MATCH, "negative": BRAND, "negative_boost": 0.2}})),
    Asked("size 200", query(MATCH, size=200)),
    Asked("page", query(MATCH, **{"from": 30, "size": 7})),
    Asked("deep page", query(MATCH, **{"from": 150, "size": 20})),
    Asked("a page beyond the last hit", query(MATCH, **{"from": 900, "size": 20})),
    Asked("sort by score", query(MATCH, sort=["_score"])),
    Asked("_source of some fields", query(MATCH, _source=["price", "brand"])),
    Asked("no _source", query(MATCH, _source=False)),
    Asked("stored_fields", query(MATCH, stored_fields=["_id"])),
    Asked("docvalue_fields", query(MATCH, docvalue_fields=["price"])),
    Asked("fields", query(MATCH, fields=["brand", "date"])),
    Asked("script_fields", query(MATCH, script_fields={"double": {"script": "doc['price'].value * 2"}})),
    Asked("highlight", query(MATCH, highlight={"fields": {"text": {}}})),
    Asked("aggregations", query(MATCH, aggs=AGGS)),
    Asked("aggregations alone", query(MATCH, aggs=AGGS, size=0)),
    Asked("top_hits", query(MATCH, size=0, aggs={"a": {"top_hits": {"size": 2, "_source": ["price"]}}})),
    Asked("filter aggregation", query(MATCH, aggs={"cheap": {"filter": CHEAP, "aggs": AGGS}})),
    Asked("post_filter", query(MATCH, post_filter=CHEAP, aggs=AGGS), within=CHEAP),
    Asked("track_total_hits", query(MATCH, track_total_hits=True)),
    Asked("track_total_hits of 5", query(MATCH, track_total_hits=5)),
    Asked("no totals", query(MATCH, track_total_hits=False)),
    Asked("terminate_after", query(MATCH, terminate_after=100)),
    Asked("explain", query(MATCH, explain=True)),
    Asked("version", query(MATCH, version=True, seq_no_primary_term=True)),
    Asked("named queries", query(of_bool(must=[{"match": {"text": {"query": TEXT, "_name": "words"}}}]))),
    Asked("suggest beside", query(MATCH, suggest={"s": {"text": "ancor", "term": {"field": "text"}}})),
    Asked("timeout", query(MATCH, timeout="5s")),
    Asked("request cache", query(MATCH, size=0, aggs=AGGS), params={"request_cache": "true"}),
    Asked("request cache again", query(MATCH, size=0, aggs=AGGS), params={"request_cache": "true"}),
    Asked("dfs_query_then_fetch", query(MATCH), params={"search_type": "dfs_query_then_fetch"}),
    Asked("size and from in the address", query(MATCH), params={"size": 3, "from": 4}),
    Asked("_source in the address", query(MATCH), params={"_source_includes": "price"}),
    Asked("preference", query(MATCH), params={"preference": "_local"}),
    Asked("routing", query(MATCH), params={"routing": "big"}),
    Asked("typed_keys", query(MATCH, aggs=AGGS), params={"typed_keys": "true"}),
    Asked("hits' total as a number", query(MATCH), params={"rest_total_hits_as_int": "true"}),
    Asked("filter_path", query(MATCH), params={"filter_path": "hits.hits._id,hits.total,_shards"}),
    Asked(
        "template",
        {"source": {"query": {"match": {"text": "{{t}}"}}}, "params": {"t": TEXT}},
        api="_search/template",
    ),
    Asked(
        "should beside",
        query(of_bool(must=[MATCH], should=[{"term": {"brand": {"value": "b1", "boost": 9}}}])),
    ),
    Asked("should of another kind", query(of_bool(should=[MATCH, BRAND]))),
    Asked("script_score", query({"script_score": {"query": MATCH, "script": {"source": "_score * 2"}}})),
    Asked(
        "script_score that divides",
        query({"script_score": {"query": MATCH, "script": {"source": "1 / _score"}}}),
    ),
    Asked(
        "function_score, added",
        query({"function_score": {"query": MATCH, "boost_mode": "sum", **FUNCTIONS}}),
    ),
    Asked(
        "match of another field, too", query({"multi_match": {"query": TEXT, "fields": ["text", "brand"]}})
    ),
    Asked("dis_max of others", query({"dis_max": {"queries": [MATCH, BRAND]}})),
    Asked("collapse", query(MATCH, collapse={"field": "brand"})),
    Asked("sort by score and a field", query(MATCH, sort=["_score", {"price": "asc"}])),
]
ONLY_FOR_ALL = ("operator", "minimum_should_match", "phrase", "syntax", "texts", "clauses", "min_score")
"""Reasons that hold only where neighbours are found; `brand:b1` is left alone for the same one always."""
KEPT = [
    Asked("profile", query(MATCH, profile=True), "part"),
    Asked("no body", {}, "no_query"),
    Asked("match_all", query({"match_all": {}}), "kind"),
    Asked("match_none", query({"match_none": {}}), "kind"),
    Asked("term", query(BRAND), "kind"),
    Asked("terms", query({"terms": {"brand": ["b1", "b2"]}}), "kind"),
    Asked("range of dates", query({"range": {"date": {"gte": "2026-03-01"}}}), "kind"),
    Asked("ids", query({"ids": {"values": ["d1", "d2"]}}), "kind"),
    Asked("exists", query({"exists": {"field": "price"}}), "kind"),
    Asked("prefix", query({"prefix": {"brand": "b"}}), "kind"),
    Asked("wildcard", query({"wildcard": {"brand": "b*"}}), "kind"),
    Asked("regexp", query({"regexp": {"brand": "b[12]"}}), "kind"),
    Asked("fuzzy", query({"fuzzy": {"text": "ancor"}}), "kind"),
    Asked("match_phrase", query({"match_phrase": {"text": "anchor needle"}}), "phrase"),
    Asked("match_phrase_prefix", query({"match_phrase_prefix": {"text": "anchor nee"}}), "phrase"),
    Asked("match_bool_prefix", query({"match_bool_prefix": {"text": "anchor nee"}}), "phrase"),
    Asked("multi_match phrase", query({"multi_match": {"query": TEXT, "type": "phrase"}}), "phrase"),
    Asked("match of a keyword", query({"match": {"brand": "b1"}}), "field"),
    Asked("match of a number", query({"match": {"price": 3}}), "field"),
    Asked(
        "nested",
        query({"nested": {"path": "comments", "query": {"match": {"comments.said": "anchor"}}}}),
        "clauses",
    ),
    Asked("nested, inner hits", query(STARS), "kind"),
    Asked("constant_score", query({"constant_score": {"filter": MATCH}}), "only_a_filter"),
    Asked("a text in a filter", query(of_bool(filter=[MATCH])), "only_a_filter"),
    Asked("two texts", query(of_bool(must=[MATCH, {"match": {"title": "orange"}}])), "texts"),
    Asked(
        "function_score, replaced",
        query({"function_score": {"query": MATCH, "boost_mode": "replace", **FUNCTIONS}}),
        "functions",
    ),
    Asked("query_string, syntax", query({"query_string": {"query": "text:(anchor AND needle)"}}), "syntax"),
    Asked(
        "simple_query_string, syntax",
        query({"simple_query_string": {"query": '"anchor needle" -velvet', "fields": ["text"]}}),
        "syntax",
    ),
    Asked("q= with syntax", {}, "syntax", params={"q": "brand:b1"}),
    Asked(
        "operator and", query({"match": {"text": {"query": "anchor needle", "operator": "and"}}}), "operator"
    ),
    Asked(
        "minimum_should_match",
        query({"match": {"text": {"query": TEXT, "minimum_should_match": 2}}}),
        "minimum_should_match",
    ),
    Asked("zero hits", query({"match": {"text": NONSENSE}}, aggs=AGGS), "unknown_words"),
    Asked(
        "zero hits, counted", query({"match": {"text": NONSENSE}}, size=0, track_total_hits=True), "counting"
    ),
    Asked(
        "zero hits, operator and",
        query({"match": {"text": {"query": NONSENSE, "operator": "and"}}}),
        "operator",
    ),
    Asked(
        "zero hits, suggestion",
        query({"match": {"text": NONSENSE}}, suggest={"s": {"text": "ancor", "term": {"field": "text"}}}),
        "unknown_words",
    ),
    Asked("min_score", query(MATCH, min_score=3), "min_score"),
    Asked("sort", query(MATCH, sort=[{"price": "desc"}]), "sort"),
    Asked("sort in the address", query(MATCH), "sort", params={"sort": "price:asc"}),
    Asked(
        "sort by a script",
        query(MATCH, sort={"_script": {"type": "number", "script": "doc['price'].value", "order": "asc"}}),
        "sort",
    ),
    Asked("search_after", query(MATCH, sort=[{"price": "asc"}], search_after=[3.0]), "sort"),
    Asked("ids with signs", query({"ids": {"values": ["$1", "d3", "${x}"]}}), "kind"),
    Asked("large numbers", query({"terms": {"price": [1, 2.5, 9007199254740993]}}), "kind"),
    Asked("wrapper", query({"wrapper": {"query": "eyJtYXRjaF9hbGwiOnt9fQ=="}}), "kind"),
    Asked("a term that no shard can match", query({"term": {"nothing": 1}}), "kind"),
    Asked("rescore", query(MATCH, rescore={"window_size": 5, "query": {"rescore_query": BRAND}}), "rescore"),
    Asked("indices_boost", query(MATCH, indices_boost=[{"mart-hybridr-1": 2.0}]), "indices_boost"),
    Asked("size 0", query(MATCH, size=0, track_total_hits=True), "counting"),
    Asked("suggest alone", {"suggest": {"s": {"text": "ancor", "term": {"field": "text"}}}}, "no_query"),
    Asked(
        "completion", {"suggest": {"s": {"prefix": "anc", "completion": {"field": "suggest"}}}}, "no_query"
    ),
    Asked(
        "more_like_this",
        query(
            {
                "more_like_this": {
                    "fields": ["text"],
                    "like": "anchor needle",
                    "min_term_freq": 1,
                    "min_doc_freq": 1,
                }
            }
        ),
        "kind",
    ),
    Asked(
        "runtime field",
        query(MATCH, derived={"d": {"type": "keyword", "script": "emit(doc['brand'].value)"}}, fields=["d"]),
        "part",
    ),
    Asked("pipeline switched off", query(MATCH), "pipeline", params={"search_pipeline": "_none"}),
    Asked("_count", query(MATCH), "counting", api="_count"),
    Asked("_count of nonsense", query({"match": {"text": NONSENSE}}), "counting", api="_count"),
    Asked("_validate", query(MATCH), "no_search", api="_validate/query"),
    Asked("_field_caps", {}, "no_search", api="_field_caps", params={"fields": "price"}),
    Asked("too large a page", query(MATCH, **{"from": 10_000, "size": 2}), "window"),
    Asked("a query that is none", query({"mtach": {"text": TEXT}}), "kind"),
    Asked("a sort that is none", query(MATCH, sort=[{"nothing": "asc"}]), "sort"),
]


def asked(cluster: Cluster, index: str, one: Asked) -> Any:
    """Ask, and give the answer, or the status of a refusal."""
    path = f"{path_of(index)}/{one.api}"
    try:
        return cluster.request("POST", path, one.body or None, one.params)
    except ClusterError as failure:
        return failure.status


def told(answer: Any) -> Any:
    """Give of an answer what does not change from time to time, and no vectors: the undeployed shows them."""
    left_out = ("took", "_scroll_id", "profile", "hybridr_vector")
    if isinstance(answer, dict):
        return {name: told(of) for name, of in answer.items() if name not in left_out}
    return [told(one) for one in answer] if isinstance(answer, list) else answer


def fill_mart(cluster: Cluster, index: str, count: int, *, shards: int = 3) -> None:
    """Create an index of uneven shards: every other document has the same routing."""
    create(cluster, index, PROPERTIES, {"number_of_shards": shards, "number_of_replicas": 0})
    dice, documents = random.Random(7), {}
    odds = [1 / (place + 2) for place in range(len(WORDS))]
    for number in range(count):
        words = dice.choices(WORDS, odds, k=dice.choice([4, 9, 30]))
        documents[f"d{number}"] = {
            "title": " ".join(dice.choices(WORDS, odds, k=3)),
            "text": " ".join(words),
            "brand": f"b{number % 4}",
            "price": round(dice.uniform(1, 60), 2),
            "stock": number % 17,
            "date": f"2026-{1 + number % 12:02}-{1 + number % 27:02}",
            "comments": [{"author": f"a{number % 5}", "stars": number % 6, "said": words[0]}],
            "suggest": words[:2],
        }
    put(cluster, index, documents, {f"d{number}": "big" for number in range(1, count, 2)})
