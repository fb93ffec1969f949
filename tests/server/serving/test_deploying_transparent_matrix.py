"""Every kind of request of `support.matrix`, asked without and with a transparent deployment on three uneven
shards: ranked ones keep their contract, all others their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.indexing.reindexing import reindex
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.rewriting.explaining import verdicts_on
from hybridr.serving.settings import DeploySettings
from hybridr.serving.telemetry import UNCOUNTED
from support.corpus import WORDS, add_alias, drop_indices
from support.deployed import Server, ids, serving_index
from support.hashing import HashingEncoder
from support.matrix import (
    AGGS,
    CHEAP,
    KEPT,
    MATCH,
    NONSENSE,
    ONLY_FOR_ALL,
    RANKED,
    TEXT,
    Asked,
    asked,
    fill_mart,
    query,
    told,
)

pytestmark = [pytest.mark.node, pytest.mark.ml, pytest.mark.usefixtures("few_probes")]
SOURCE, INDEX, OTHER, COUNT = "mart", "mart-hybridr-1", "mart-other", 400
ALL = [*RANKED, *KEPT]


@pytest.fixture(scope="module")
def mart(ml_cluster: Cluster) -> Iterator[Cluster]:
    fill_mart(ml_cluster, SOURCE, COUNT)
    fill_mart(ml_cluster, OTHER, 60, shards=1)
    reindex(ml_cluster, SOURCE, HashingEncoder())
    yield ml_cluster
    drop_indices(ml_cluster, f"{SOURCE}*")


@pytest.fixture(scope="module")
def before(mart: Cluster) -> dict[str, Any]:
    """The answers of the index before it is deployed."""
    return {one.name: asked(mart, INDEX, one) for one in ALL}


@pytest.fixture(scope="module")
def server(mart: Cluster) -> Iterator[Server]:
    with serving_index(mart, SOURCE) as running:
        yield running


@pytest.fixture(scope="module", params=["lexical", "all"])
def recall(
    mart: Cluster, before: dict[str, Any], server: Server, request: pytest.FixtureRequest
) -> Iterator[str]:
    settings = DeploySettings(
        way="transparent", server=server.url, set_cluster_settings=True, recall=request.param
    )
    deploy(mart, SOURCE, settings, SearchSettings())
    yield request.param
    undeploy(mart, SOURCE)


def left_alone(server: Server, reason: str) -> float:
    registry = server.app.state.embedder.metrics.registry
    return registry.get_sample_value("hybridr_left_alone_total", {"reason": reason}) or 0.0


UNSEEN = ("pipeline", "no_search", UNCOUNTED)


@pytest.mark.attack(13, 15, 16)
@pytest.mark.parametrize("one", KEPT, ids=lambda one: one.name)
def test_what_is_not_ranked_is_answered_as_before(mart, before, recall, server, one):
    if recall == "lexical" and one.reason in ONLY_FOR_ALL:
        answer, plain = asked(mart, INDEX, one), before[one.name]
        assert answer["hits"]["total"] == plain["hits"]["total"], "ranked, where only words find"
        return
    if recall == "all" and one.reason == "unknown_words":
        assert total(asked(mart, INDEX, one)) > total(before[one.name]) == 0, "neighbours are found"
        return
    counted = left_alone(server, one.reason or "")
    assert told(asked(mart, INDEX, one)) == told(before[one.name])
    if isinstance(before[one.name], dict) and one.reason not in UNSEEN:
        assert left_alone(server, one.reason or "") == counted + 1, "with its reason"


@pytest.mark.attack(17)
@pytest.mark.parametrize("one", RANKED, ids=lambda one: one.name)
def test_what_is_ranked_keeps_its_contract(mart, before, recall, one):
    answer, plain = asked(mart, INDEX, one), before[one.name]
    assert isinstance(plain, dict), plain
    assert answer.keys() == plain.keys()
    assert not any("hybridr_vector" in hit.get("_source", {}) for hit in answer["hits"]["hits"])
    assert answer["_shards"] == plain["_shards"], "no shard fails"
    assert answer.get("suggest") == plain.get("suggest")
    hits, earlier = answer["hits"]["hits"], {hit["_id"]: hit for hit in plain["hits"]["hits"]}
    assert len(hits) == len(earlier) or total(answer) > total(plain)
    shown = told(answer)["hits"]["hits"]
    for hit in shown:
        if old := earlier.get(hit["_id"]):
            kept = told({"hits": {"hits": [old]}})["hits"]["hits"][0]
            assert without_score(hit) == without_score(kept), "what is shown of a hit"
    if one.within and hits:
        ids_within = {"bool": {"filter": [one.within, {"ids": {"values": ids(answer)}}]}}
        found = mart.search(INDEX, {"query": ids_within, "size": 0, "track_total_hits": True})
        assert total(found) == len(hits), "filters hold"
    if recall == "lexical":
        assert answer["hits"].get("total") == plain["hits"].get("total")
        assert without_hits(answer.get("aggregations")) == without_hits(plain.get("aggregations"))
    elif (
        total(plain) is not None
        and one.body.get("track_total_hits") != 5
        and "terminate_after" not in one.body
    ):
        assert total(answer) >= total(plain)


def without_score(hit: dict[str, Any]) -> dict[str, Any]:
    left_out = ("_score", "_explanation", "sort", "inner_hits")
    return {name: of for name, of in hit.items() if name not in left_out}


def without_hits(aggregations: Any) -> Any:
    return {name: of for name, of in (aggregations or {}).items() if name != "a"}


def total(answer: dict[str, Any]) -> Any:
    found = answer["hits"].get("total")
    return found["value"] if isinstance(found, dict) else found


def test_an_application_is_told_so_before(mart):
    requests = [{"path": f"/mart/{one.api}", "params": one.params, "body": one.body} for one in ALL]
    expected = {one.name: one.reason for one in ALL}
    changed = {
        "all": {one.name for one in ALL if one.reason == "unknown_words"},
        "lexical": {
            one.name
            for one in ALL
            if (one.reason in ONLY_FOR_ALL and one.name != "q= with syntax")
            or (one in RANKED and one.body.get("size") == 0)
        },
    }
    for finds in ("all", "lexical"):
        verdicts = verdicts_on(mart, SOURCE, requests, SearchSettings(), finds)
        told = {one.name: verdict.reason for one, verdict in zip(ALL, verdicts, strict=True)}
        assert {name for name in told if told[name] != expected[name]} == changed[finds]


def test_ranked_as_by_search_whatever_looks_for_the_text(mart, recall):
    search = Search(mart, SOURCE, HashingEncoder())
    best = [hit.doc_id for hit in search(TEXT, 100)]
    words = {hit["_id"] for hit in mart.search(INDEX, query(MATCH, size=COUNT))["hits"]["hits"]}
    expected = best[:10] if recall == "all" else [doc for doc in best if doc in words][:10]
    for name in ("match", "q=", "query_string of words", "request cache"):
        [one] = [one for one in RANKED if one.name == name]
        if "aggs" not in one.body:
            assert ids(asked(mart, INDEX, one)) == expected, name
    both = [one for one in RANKED if "should" in str(one.body) or "dis_max" in one.name]
    both = [one for one in both if not one.name.startswith("should") and "others" not in one.name]
    for one in both if recall == "all" else []:
        assert ids(asked(mart, INDEX, one)) == expected, one.name


def test_totals_and_facets_count_the_same_documents(mart, recall):
    answer = asked(mart, INDEX, Asked("", query(MATCH, size=COUNT, aggs=AGGS, track_total_hits=True)))
    assert answer["hits"]["total"] == {"value": len(set(ids(answer))), "relation": "eq"}
    brands = answer["aggregations"]["brands"]
    assert sum(one["doc_count"] for one in brands["buckets"]) == len(ids(answer))


@pytest.mark.parametrize("size", [10, 64])
def test_pages_join_from_the_first_hit_to_the_last(mart, recall, size):
    frequent = {"match": {"text": " ".join(WORDS[:3])}}

    def page(at: int) -> dict[str, Any]:
        return asked(mart, INDEX, Asked("", query(frequent, **{"from": at, "size": size, "_source": False})))[
            "hits"
        ]

    total = page(0)["total"]
    pages = [page(at) for at in range(0, total["value"] + size, size)]
    assert all(one["total"] == total for one in pages)
    hits = [hit for one in pages for hit in one["hits"]]
    assert len({hit["_id"] for hit in hits}) == len(hits) == total["value"], "none twice, none left out"
    scores = [hit["_score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0.01 > 1e-6 > scores[-1] > 0, "the last ones lie beyond what is scored again"


@pytest.mark.attack(12)
def test_no_other_index_loses_hits(mart, recall):
    wide = {"query": MATCH, "size": 500, "track_total_hits": True}
    alone = {hit["_id"] for hit in mart.search(OTHER, wide)["hits"]["hits"]}
    answer = mart.request("POST", "/mart-*/_search", wide)
    assert not answer["_shards"]["failed"]
    assert {hit["_id"] for hit in answer["hits"]["hits"] if hit["_index"] == OTHER} == alone != set()


@pytest.mark.attack(18)
def test_a_filtered_alias_shows_no_more_than_before(mart, recall):
    add_alias(mart, INDEX, "mart-cheap", filter=CHEAP)
    answer = mart.request("POST", "/mart-cheap/_search", {"query": MATCH, "size": 400})
    assert ids(answer)
    assert all(hit["_source"]["price"] < 20 for hit in answer["hits"]["hits"])
    counted = mart.request(
        "POST", "/mart-cheap/_search", {"query": CHEAP, "size": 0, "track_total_hits": True}
    )
    assert len(ids(answer)) <= total(counted)


@pytest.mark.attack(107)
def test_107_nothing_that_a_cluster_tells_of_its_work_shows_what_is_added(mart, recall):
    """The server is not told by which alias a search came, so that a profile shows the client's own query."""
    add_alias(mart, INDEX, "mart-cheap", filter=CHEAP)
    ways: list[tuple[dict[str, Any], dict[str, str]]] = [
        (query(MATCH, profile=True), {}),
        (query(MATCH), {"verbose_pipeline": "true"}),
        (query(MATCH, profile=True), {"verbose_pipeline": "true"}),
    ]
    for body, params in ways:
        answer = mart.request("POST", "/mart-cheap/_search", body, params)
        assert ids(answer)
        work = {name: of for name, of in answer.items() if name not in ("hits", "_shards")}
        assert not re.search("constant|knn|rescore|dis_max", json.dumps(work).lower())


def test_several_searches_in_one_request(mart, recall):
    bodies = [query(MATCH), query({"match": {"text": NONSENSE}}), query(MATCH, sort=[{"price": "asc"}])]
    lines = "".join(f"{{}}\n{json.dumps(one)}\n" for one in bodies)
    answers = mart.request("POST", path_of(INDEX, "_msearch"), lines)["responses"]
    for answer, body in zip(answers, bodies, strict=True):
        assert told(answer)["hits"] == told(asked(mart, INDEX, Asked("", body)))["hits"]


def test_groups_and_the_hits_inside_have_the_order_of_all_hits(mart, recall):
    body = query(MATCH, collapse={"field": "brand", "inner_hits": {"name": "more", "size": 40}})
    answer, whole = asked(mart, INDEX, Asked("", body)), asked(mart, INDEX, Asked("", query(MATCH, size=100)))
    best = {hit["_source"]["brand"]: hit["_id"] for hit in reversed(whole["hits"]["hits"])}
    assert {hit["_source"]["brand"]: hit["_id"] for hit in answer["hits"]["hits"]} == best
    for hit in answer["hits"]["hits"]:
        inner = hit["inner_hits"]["more"]["hits"]["hits"]
        assert {one["_source"]["brand"] for one in inner} == {hit["_source"]["brand"]}
        best_of = [one for one in whole["hits"]["hits"] if one["_source"]["brand"] == hit["_source"]["brand"]]
        both = list(zip(inner, best_of, strict=False))
        assert len(both) > 5
        assert all(one["_id"] == other["_id"] for one, other in both)


def test_no_hit_of_any_kind_brings_a_vector_that_nobody_asked_for(mart, recall):
    best = {"best": {"top_hits": {"size": 1}}}
    bodies = [
        query(MATCH, aggs=best),
        query(MATCH, aggs={"brands": {"terms": {"field": "brand"}, "aggs": best}}, sort=[{"price": "asc"}]),
        query({"match_all": {}}, aggs=best, size=0),
        query(MATCH, collapse={"field": "brand", "inner_hits": {"name": "more"}}),
        query({"match": {"text": TEXT + " " * 150_000}}),
    ]
    for body in bodies:
        answer = asked(mart, INDEX, Asked("", body))
        assert "hits" in answer
        assert '"hybridr_vector"' not in json.dumps(answer)
    named = {"best": {"top_hits": {"size": 1, "_source": ["hybridr_vector"]}}}
    assert '"hybridr_vector"' in json.dumps(asked(mart, INDEX, Asked("", query(MATCH, aggs=named))))


def test_a_scroll_reads_everything_that_words_match(mart, recall):
    answer = mart.request("POST", path_of(INDEX, "_search"), {"query": MATCH, "size": 90}, {"scroll": "1m"})
    seen = ids(answer)
    while ids(answer):
        answer = mart.request("POST", "/_search/scroll", {"scroll": "1m", "scroll_id": answer["_scroll_id"]})
        seen += ids(answer)
    mart.request("DELETE", "/_search/scroll", {"scroll_id": answer["_scroll_id"]})
    words = ids(mart.search(INDEX, query(MATCH, size=COUNT)))
    assert len(seen) == len(set(seen))
    assert set(words) <= set(seen)
    assert recall == "all" or set(words) == set(seen)


def test_a_point_in_time_with_search_after_reads_as_before(mart, recall):
    with mart.point_in_time(INDEX) as pit:
        body = query(MATCH, size=60, sort=[{"price": "asc"}, {"_shard_doc": "asc"}], pit={"id": pit})
        seen: list[str] = []
        while hits := mart.request("POST", "/_search", body)["hits"]["hits"]:
            seen += [hit["_id"] for hit in hits]
            body["search_after"] = hits[-1]["sort"]
    assert sorted(seen) == sorted(ids(mart.search(INDEX, query(MATCH, size=COUNT))))


@pytest.mark.attack(14)
def test_changes_by_query_touch_what_words_match_and_keep_vectors(mart, recall):
    if recall == "lexical":
        return  # what is written moves, and answers are compared hit by hit: once, at the end
    words = total(mart.search(INDEX, query(MATCH, size=0, track_total_hits=True)))
    vectors = {"query": {"exists": {"field": "hybridr_vector"}}, "size": 0, "track_total_hits": True}
    for params in ({}, {"sort": "_score:desc"}, {"sort": "price:asc"}):
        path, wait = path_of(INDEX, "_update_by_query"), {"refresh": "true", "conflicts": "proceed"}
        assert mart.request("POST", path, {"query": MATCH}, params | wait)["updated"] == words
        assert total(mart.search(INDEX, vectors)) == COUNT
    by_score = {"sort": "_score:desc", "conflicts": "proceed"}
    gone = {"query": {"bool": {"must": [MATCH], "filter": [{"ids": {"values": ["none"]}}]}}}
    assert mart.request("POST", path_of(INDEX, "_delete_by_query"), gone, by_score)["deleted"] == 0
    for sort in ({}, {"sort": ["_score"]}, {"sort": [{"price": "asc"}]}):
        copying = {"source": {"index": INDEX, "query": MATCH, **sort}, "dest": {"index": "copy-of-mart"}}
        mapping = {"mappings": {"properties": {"hybridr_vector": {"type": "knn_vector", "dimension": 16}}}}
        mart.request("PUT", "/copy-of-mart", mapping | {"settings": {"number_of_replicas": 0}})
        try:
            assert mart.request("POST", "/_reindex", copying, {"refresh": "true"})["created"] == words
            assert total(mart.search("copy-of-mart", vectors)) == words
        finally:
            mart.request("DELETE", "/copy-of-mart")
