"""What a client's functions do to the score of its text: what they would do to that of BM25."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster
from hybridr.indexing.reindexing import reindex
from hybridr.search import client_query
from hybridr.search.clauses import NotRanked
from hybridr.search.fusions import SplitQuery
from hybridr.search.settings import RecallMode
from hybridr.serving.rewriting.rewriting import BodyRanking, RankedRequest, ReadBody
from support.corpus import drop_indices
from support.hashing import HashingEncoder
from support.matrix import MATCH, TEXT, fill_mart

INDEX, COUNT = "factory", 200
DOUBLED = {"function_score": {"query": MATCH, "functions": [{"weight": 2}]}}
ADDED = {"function_score": {"query": MATCH, "boost_mode": "sum", "functions": [{"weight": 7}]}}
SCRIPTED = {"script_score": {"query": MATCH, "script": {"source": "_score * 2 + 1"}}}
DIVIDED = {"script_score": {"query": MATCH, "script": {"source": "1 / _score"}}}
HALVED = {"boosting": {"positive": MATCH, "negative": {"match_all": {}}, "negative_boost": 0.5}}
BRAND = {"constant_score": {"filter": {"term": {"brand": "b1"}}, "boost": 9}}
BESIDE = {"bool": {"must": [MATCH], "should": [BRAND]}}
IN_GROUPS = {"collapse": {"field": "stock"}}
BY_PRICE = {"sort": [{"_score": {"order": "desc"}}, {"price": {"order": "asc"}}]}
PLAIN = {"function_score": {"query": MATCH, "functions": [{"weight": 1}]}}


@pytest.fixture(scope="module")
def search(cluster: Cluster) -> Iterator[Search]:
    fill_mart(cluster, INDEX, COUNT)
    reindex(cluster, INDEX, HashingEncoder())
    yield Search(cluster, INDEX, HashingEncoder())
    drop_indices(cluster, f"{INDEX}*")


def scores(
    search: Search, query: dict[str, Any], recall: RecallMode = "all", **beside: Any
) -> dict[str, float]:
    """Rank by a client's own query: document -> score, best first."""
    ranking, body = BodyRanking(search, recall), {"query": query, "size": COUNT, "_source": False, **beside}
    parsed = ranking.read(body)
    assert isinstance(parsed, ReadBody), parsed
    ranked = ranking.rank(parsed)
    assert isinstance(ranked, RankedRequest), ranked
    answer = search.cluster.search(search.info.name, ranked.body)
    return {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}


def matched(search: Search, query: dict[str, Any]) -> set[str]:
    """Name the documents that match a query."""
    body = {"query": query, "size": COUNT, "_source": False}
    return {hit["_id"] for hit in search.cluster.search(search.info.name, body)["hits"]["hits"]}


def test_the_score_that_functions_see_has_the_order_of_search_and_the_size_of_bm25(search):
    plain, seen = scores(search, MATCH), scores(search, PLAIN)
    assert list(seen) == list(plain)
    assert min(seen.values()) > 0
    words = search.using("lexical")(TEXT, 5)
    assert 0.4 < max(seen.values()) / words[0].score < 2.5
    assert max(seen.values()) / min(seen.values()) > 5 * max(plain.values()) / min(plain.values())


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (DOUBLED, lambda score: 2 * score),
        (ADDED, lambda score: score + 7),
        (SCRIPTED, lambda score: 2 * score + 1),
        (HALVED, lambda score: score / 2),
    ],
    ids=["multiplied", "added", "by a script", "less"],
)
def test_functions_act_on_it(search, query, expected):
    seen, found = scores(search, PLAIN), scores(search, query)
    assert found == pytest.approx({doc: expected(score) for doc, score in seen.items()}, rel=1e-4)


def test_a_script_may_divide_by_it(search):
    found = scores(search, DIVIDED)
    assert list(found) == list(reversed(scores(search, PLAIN)))


def test_a_clause_beside_the_text_adds_what_it_did(search):
    seen, found = scores(search, PLAIN), scores(search, BESIDE)
    branded = {
        hit["_id"]
        for hit in search.cluster.search(search.info.name, {"query": BRAND, "size": COUNT})["hits"]["hits"]
    }
    expected = {doc: score + 9 * (doc in branded) for doc, score in seen.items()}
    assert found == pytest.approx(expected, rel=1e-4)
    assert 0 < len(branded) < COUNT


def test_where_words_alone_find_functions_change_the_order_only(search):
    assert scores(search, DOUBLED, "lexical").keys() == matched(search, MATCH)


def test_of_a_query_with_boosts_it_has_the_size_that_its_own_scores_have(search):
    own = {"multi_match": {"query": TEXT, "fields": ["title^30", "text^10"], "tie_breaker": 0.3}}
    seen = scores(search, {"function_score": {"query": own, "functions": [{"weight": 1}]}}, "lexical")
    alone = search.cluster.search(search.info.name, {"query": own, "size": 1})["hits"]["hits"][0]["_score"]
    assert 0.4 < max(seen.values()) / alone < 2.5
    added = {"function_score": {"query": own, "boost_mode": "sum", "functions": [{"weight": 7}]}}
    expected = {doc: score + 7 for doc, score in seen.items()}
    assert scores(search, added, "lexical") == pytest.approx(expected, rel=1e-4)


def test_the_boosts_of_a_client_keep_their_meaning(search):
    """What a document gains by a boost of a field is in proportion to what the client's own scores gain."""
    asked = [
        {"multi_match": {"query": TEXT, "fields": ["title^9", "text"]}},
        {"multi_match": {"query": TEXT, "fields": ["title", "text^9"]}},
    ]
    title, text = (scores(search, one, "lexical") for one in asked)
    own = [own_scores(search, one) for one in asked]
    gained = {doc: (title[doc] - text[doc], own[0][doc] - own[1][doc]) for doc in title}
    factors = [ours / theirs for ours, theirs in gained.values() if abs(theirs) > 0.05]
    assert len(factors) > 20
    assert min(factors) > 0
    assert max(factors) == pytest.approx(min(factors), rel=1e-3)
    assert list(title) != list(text)


def own_scores(search: Search, query: dict[str, Any]) -> dict[str, float]:
    """Score by a client's own query, on the scale of the plain one."""
    parsed = BodyRanking(search, "lexical").read({"query": query})
    assert isinstance(parsed, ReadBody), parsed
    hits = search.cluster.search(search.info.name, {"query": query, "size": COUNT})["hits"]["hits"]
    return {hit["_id"]: hit["_score"] / parsed.query.scale for hit in hits}


def test_the_spread_hangs_on_the_words_and_the_encoder(search):
    [lists] = search.candidates([TEXT])
    around = (("query", {"function_score": {"functions": [{"weight": 1}]}}),)
    scored = search.rescoring(TEXT, 100, SplitQuery(MATCH, wrappers=around)).scoring_query
    made = scored["function_score"]["query"]["script_score"]["script"]["params"]
    assert made["factor"] == pytest.approx(4 * sqrt(lists.scales.idf_sum) / 0.8)
    assert made["zero"] == pytest.approx(lists.scales.unrelated / 2)


@pytest.mark.parametrize("beside", [{}, IN_GROUPS, BY_PRICE], ids=["rescored", "in groups", "by price"])
def test_scores_by_which_hits_are_found_count_as_if_they_were_asked_for_again(search, monkeypatch, beside):
    own = {"multi_match": {"query": TEXT, "fields": ["title^9", "text"]}}
    query = {"bool": {"must": [own], "filter": [{"range": {"price": {"gt": 5}}}]}}
    found = scores(search, query, "lexical", **beside)
    monkeypatch.setattr(client_query, "scores_as", lambda *_: False)
    assert scores(search, query, "lexical", **beside) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("beside", [{}, IN_GROUPS], ids=["rescored", "in groups"])
@pytest.mark.parametrize("words", [300, 1_000])
def test_a_long_text_fails_only_where_its_own_query_does(search, words, beside):
    """A cluster takes 1,024 clauses; what would be more is left alone."""
    text = " ".join([TEXT, *(f"w{number}" for number in range(words))])
    both = {"multi_match": {"query": text, "fields": ["title^9", "text"]}}
    plain = {"match": {"text": text}}
    ranked = 0
    for query in (both, plain, {"function_score": {"query": both, "functions": [{"weight": 2}]}}):
        if words > 500 and query != plain:
            continue  # 1,000 words in two fields are too much for a cluster by themselves
        ranking, body = BodyRanking(search, "lexical"), {"query": query, **beside}
        parsed = ranking.read(body)
        assert isinstance(parsed, ReadBody)
        request = ranking.rank(parsed)
        if isinstance(request, RankedRequest):
            assert search.cluster.search(search.info.name, request.body)["hits"]["hits"]
            ranked += 1
        else:
            assert (request, beside != {}) == (NotRanked("clauses"), True)
    assert ranked == {300: 3 - bool(beside), 1_000: not beside}[words]
