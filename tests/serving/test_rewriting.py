"""Which search bodies are ranked anew, what else of them stays, and what clients are told of theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo, Record
from hybridr.cluster.retrievers.lexical import LexicalRetriever
from hybridr.cluster.word_fields import SearchedField
from hybridr.indexing.terms.terms import Analysed
from hybridr.search.calibration import PlainQuery
from hybridr.search.clauses import REASONS, NotRanked, ParsedQuery
from hybridr.search.client_query import dense_filter
from hybridr.search.rules.matching import MatchedRules
from hybridr.serving.rewriting.explaining import parsed_query, verdict_on
from hybridr.serving.rewriting.rewriting import BodyRanking, is_by_query, normalised_body

FIELDS = ("text", "title")
MATCH = {"match": {"text": {"query": "two words", "operator": "OR"}}}
SHOES = {"term": {"category": "shoes"}}
AND = {"match": {"text": {"query": "two words", "operator": "AND"}}}
BY_SCORE = [{"_score": {"order": "desc"}}]


def ranking(recall="all", fusion="absolute", *, in_place=False, **settings):
    record = Record(fields=FIELDS, vector_field="v", in_place=in_place)
    search: Any = SimpleNamespace(
        lexical_fields=FIELDS,
        info=IndexInfo("docs", settings, {}, {}).with_record(record),
        settings=SimpleNamespace(depth=100),
        reranked_by=[],
        ruling=MatchedRules,
        has_word_of=lambda text: text != "unheard",
        analysis=SimpleNamespace(of=lambda texts: [Analysed()] * len(texts)),
        cluster=None,
        context=SimpleNamespace(
            words=LexicalRetriever((SearchedField("text"),)),
            max_clauses=1_000,
            plain=PlainQuery(FIELDS, list),
        ),
    )
    return BodyRanking(search, recall, fusion=fusion)


@pytest.mark.parametrize(
    "besides",
    [
        {},
        {"from": 20, "size": 5, "track_total_hits": 2147483647, "_source": {"includes": [], "excludes": []}},
        {"size": 0, "aggregations": {"a": {"terms": {"field": "n"}}}},
        {"sort": BY_SCORE, "highlight": {"fields": {"text": {}}}},
        {"sort": [*BY_SCORE, {"n": {"order": "asc"}}], "search_after": [1.5, 3]},
        {"from": 9_000, "size": 1000},
        {"ext": {"rerank": {"query_context": {"query_text": "two words"}}}},
    ],
)
def test_what_a_ranking_leaves_as_it_is(besides: dict[str, Any]) -> None:
    assert parsed_query(ranking(), {"query": MATCH, **besides}) == ParsedQuery("two words")


def test_a_re_ranker_behind_the_search_is_told_as_what_it_is() -> None:
    reranked = ranking()
    reranked.search.reranked_by.append("cross")
    assert parsed_query(reranked, {"query": MATCH}) == NotRanked("fusion")


@pytest.mark.parametrize(
    ("besides", "reason"),
    [
        ({"sort": [*BY_SCORE, {"_doc": {"order": "asc"}}]}, "sort"),
        ({"sort": [*BY_SCORE, {"n": {"order": "asc"}}], "pit": {"id": "x"}}, "sort"),
        ({"sort": [*BY_SCORE, {"n": {"order": "asc"}}], "min_score": 3}, "min_score"),
        ({"sort": BY_SCORE, "search_after": [1.5]}, "search_after"),
        ({"sort": [{"n": {"order": "asc"}}]}, "sort"),
        ({"sort": [{"_doc": {"order": "asc"}}]}, "by_query"),
        ({"sort": BY_SCORE, "size": 1000}, "by_query"),
        ({"sort": BY_SCORE, "seq_no_primary_term": True}, "by_query"),
        ({"rescore": []}, "rescore"),
        ({"collapse": {"field": "n"}, "min_score": 2.0}, "min_score"),
        ({"search_after": [3]}, "search_after"),
        ({"min_score": 2.0}, "min_score"),
        ({"indices_boost": [{"a": 2.0}]}, "indices_boost"),
        ({"slice": {"id": 0, "max": 2}}, "slice"),
        ({"ext": {"rerank": {}, "mmr": {}}}, "part"),
        ({"size": 0, "track_total_hits": 2147483647}, "counting"),
        ({"from": 9_000, "size": 10_001}, "window"),
        ({"query": {"match": {"text": "\ud800 lone"}}}, "no_text"),
        ({"query": AND}, "operator"),
        ({"query": SHOES}, "kind"),
    ],
)
def test_what_a_ranking_would_break_has_a_reason(besides: dict[str, Any], reason: str) -> None:
    left = parsed_query(ranking(), {"query": MATCH, **besides})
    assert isinstance(left, NotRanked)
    assert left.reason == reason
    assert reason in REASONS


def test_a_body_without_a_query_and_an_index_without_true_scores() -> None:
    assert parsed_query(ranking(), {"size": 3}) == NotRanked("no_query")
    assert parsed_query(ranking(fusion="pipeline"), {"query": MATCH}) == NotRanked("fusion")


def test_a_small_window_of_the_index_keeps_wide_pages_as_they_are() -> None:
    small = ranking(**{"index.max_rescore_window": "200"})
    assert parsed_query(small, {"query": MATCH, "size": 200}) == ParsedQuery("two words")
    assert parsed_query(small, {"query": MATCH, "from": 200, "size": 200}) == ParsedQuery("two words")
    assert parsed_query(small, {"query": MATCH, "size": 201}) == NotRanked("window")


def test_where_only_words_find_a_demand_for_all_of_them_is_no_obstacle() -> None:
    lexical = ranking("lexical")
    assert isinstance(parsed_query(lexical, {"query": AND}), ParsedQuery)
    counting = {"query": MATCH, "size": 0, "aggregations": {"a": {"terms": {"field": "n"}}}}
    assert parsed_query(lexical, counting) == NotRanked("counting")


def test_a_text_of_unknown_words_has_neighbours_only() -> None:
    unheard = {"query": {"match": {"text": "unheard"}}}
    assert parsed_query(ranking("all"), unheard) == ParsedQuery("unheard")
    assert parsed_query(ranking("lexical"), unheard) == NotRanked("unknown_words")


def test_a_text_of_unknown_words_is_ranked_where_a_rule_pins_documents() -> None:
    lexical = ranking("lexical")
    lexical.search.ruling = lambda text: MatchedRules(text, ("sale",), {"d7": "sale"})
    assert verdict_on(lexical, {"query": {"match": {"text": "unheard"}}}).ranked


@pytest.mark.parametrize(("size", "reach"), [(0, 100), (10, 100), (100, 100), (101, 101), (9_999, 9_999)])
@pytest.mark.parametrize("start", [0, 90, 100, 195, 5_000])
def test_all_pages_of_one_size_have_the_same_candidates(start: int, size: int, reach: int) -> None:
    assert ranking().candidate_count({"from": start, "size": size}) == reach


def test_documents_that_may_be_written_back_keep_their_vectors() -> None:
    body = {"query": MATCH, "sort": [{"_doc": {"order": "asc"}}], "size": 1000}
    assert is_by_query(body)
    assert ranking().without_vector(body) == body
    assert ranking().without_vector({"query": SHOES})["_source"] == {"excludes": ["v"]}


def test_the_marks_of_vectors_in_place_stay_out_of_hits_too() -> None:
    body = ranking(in_place=True).without_vector({"query": SHOES, "_source": {"excludes": ["price"]}})
    assert body["_source"] == {"excludes": ["price", "v", "hybridr_mark"]}


def test_what_is_shown_of_hits_inside_is_asked_for_once() -> None:
    def nested(**shown: Any) -> dict[str, Any]:
        return {"nested": {"path": "c", "query": {"term": {"inner_hits": "x"}}, **shown}}

    one = ParsedQuery("two words", ({"bool": {"must": [nested(inner_hits={})]}},), (nested(inner_hits={}),))
    assert dense_filter(one) == {"bool": {"filter": [{"bool": {"must": [nested()]}}], "must_not": [nested()]}}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"query": MATCH}, None),
        ({"query": MATCH, "aggs": {"a": {"terms": {"field": "n"}}}, "size": 0}, None),
        ({"query": MATCH, "sort": "_score"}, None),
        ({"query": MATCH, "sort": ["_score", {"n": "asc"}]}, None),
        ({"query": MATCH, "sort": [{"n": "asc"}, "_score"]}, "sort"),
        ({"query": MATCH, "sort": {"n": "desc"}}, "sort"),
        ({"query": MATCH, "min_score": 3}, "min_score"),
        ({"path": "/docs/_search?q=two+words"}, None),
        ({"path": "/docs/_search?q=two+words&default_operator=AND"}, "operator"),
        ({"path": "/docs/_search?sort=n:desc&from=3", "body": {"query": MATCH}}, "sort"),
        ({"path": "/docs/_search", "params": {"scroll": "1m"}, "body": {"query": MATCH}}, "scroll"),
        ({"path": "/docs/_search?search_pipeline=_none", "body": {"query": MATCH}}, "pipeline"),
        ({"path": "/docs/_count", "body": {"query": MATCH}}, "counting"),
        ({"path": "/docs/_delete_by_query", "body": {"query": MATCH}}, "by_query"),
        ({"path": "/docs/_doc/7"}, "no_search"),
        ({"query": MATCH, "size": "ten"}, "unreadable"),
        ({"query": MATCH, "sort": [5]}, "unreadable"),
    ],
)
def test_an_application_is_told_what_becomes_of_each_request(request_, reason):
    verdict = verdict_on(ranking(), request_)
    assert (verdict.ranked, verdict.reason) == (reason is None, reason)
    assert verdict.why == (REASONS[reason] if reason else "ranked as hybridr search does")


def test_a_body_as_a_client_writes_it_is_read_as_opensearch_passes_it_on() -> None:
    written = {"aggs": {}, "sort": ["_score", "n:desc", {"m": {"order": "asc", "mode": "min"}}]}
    assert normalised_body(written, {"from": "20"}) == {
        "aggregations": {},
        "from": 20,
        "sort": [*BY_SCORE, {"n": {"order": "desc"}}, {"m": {"order": "asc", "mode": "min"}}],
    }
