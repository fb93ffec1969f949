"""What else a search request holds, in each deployed way: pages, filters, aggregations, highlighting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridr import Search, load_encoder
from hybridr.cluster.connection import Cluster
from hybridr.search.fusions.pipeline import hybrid_query
from support.deployed import DEPTH, TEXT, ask, by_hand, ids, scores, vector_of

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX = "docs-hybridr"
CHEAP = {"range": {"price": {"lt": 6.0}}}


@pytest.fixture(scope="module")
def vector(docs: Cluster, minilm: Path) -> list[float]:
    return vector_of(minilm, TEXT)


def query_of(way: str, vector: list[float], filter: dict[str, Any] | None = None) -> dict[str, Any]:
    """Write the query of a way; a filter goes where this way's client would put it."""
    match: dict[str, Any] = {"match": {"contents": TEXT}}
    if filter:
        match = {"bool": {"must": [match], "filter": [filter]}}
    if way == "transparent":
        return match
    asked: dict[str, Any] = {"vector": vector} if way == "client" else {"query_text": TEXT}
    asked |= {"k": DEPTH} | ({"filter": filter} if filter else {})
    return hybrid_query([match, {"knn" if way == "client" else "neural": {"hybridr_vector": asked}}], DEPTH)


def expected_of(
    docs: Cluster, way: str, folder: Path, *, filter: dict[str, Any] | None = None, size: int = 10
) -> dict[str, Any]:
    """Send the request by hand that a way is to answer as: a pipeline's, or that of `hybridr search`."""
    if way == "transparent":
        return docs.search(
            INDEX, Search(docs, INDEX, load_encoder(folder)).request(TEXT, size, filter=filter)
        )
    return ask(docs, INDEX, by_hand(folder, "contents", filter=filter) | {"size": size})


def test_pages_are_one_list_without_gaps_and_repetitions(docs, way, vector):
    query = query_of(way, vector)
    whole = ask(docs, INDEX, {"query": query, "size": DEPTH, "_source": False})
    pages = [
        ask(docs, INDEX, {"query": query, "from": start, "size": 7, "_source": False})
        for start in range(0, DEPTH - 7, 7)
    ]
    found = [one for page in pages for one in ids(page)]
    assert len(found) == len(set(found))
    assert found == ids(whole)[: len(found)]
    assert [score for page in pages for score in scores(page)] == pytest.approx(
        scores(whole)[: len(found)], abs=1e-6
    )


def test_filters_limit_both_legs(docs, way, vector, minilm):
    answer = ask(docs, INDEX, {"query": query_of(way, vector, CHEAP), "size": DEPTH})
    prices = [hit["_source"]["price"] for hit in answer["hits"]["hits"]]
    assert len(prices) == 60, "the dense leg finds each of those that pass, and none besides"
    assert max(prices) < 6
    expected = expected_of(docs, way, minilm, filter=CHEAP, size=DEPTH)
    assert ids(answer) == ids(expected)
    assert scores(answer) == pytest.approx(scores(expected), abs=1e-5)


def test_without_a_filter_aggregations_count_the_candidates(docs, way, vector):
    body = {"query": query_of(way, vector), "size": 0, "aggs": {"all": {"value_count": {"field": "price"}}}}
    answer = ask(docs, INDEX, body)
    again = ask(docs, INDEX, body)
    assert again["aggregations"] == answer["aggregations"], "the request cache would answer with an error"
    lexical = docs.search(
        INDEX, {"size": 200, "query": {"match": {"contents": TEXT}}}, {"search_pipeline": "_none"}
    )
    dense = ask(
        docs, INDEX, {"size": 200, "query": {"knn": {"hybridr_vector": {"vector": vector, "k": DEPTH}}}}
    )
    assert answer["aggregations"]["all"]["value"] == len({*ids(lexical), *ids(dense)})


def test_the_best_ten_are_those_of_the_request_by_hand(docs, way, vector, minilm):
    answer = ask(docs, INDEX, {"query": query_of(way, vector)})
    expected = expected_of(docs, way, minilm)
    assert ids(answer) == ids(expected)
    dense = Search(docs, INDEX, load_encoder(minilm), "dense")(TEXT, 10)
    assert ids(answer) != [hit.doc_id for hit in dense]
