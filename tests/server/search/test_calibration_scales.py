"""The scale of a query that asks fields with other words, with few words, or that few documents have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import mean
from typing import Any

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.search import client_query
from hybridr.serving.rewriting.rewriting import BodyRanking, ReadBody
from support.corpus import WORDS, create, drop_indices, put
from support.hashing import HashingEncoder

INDEX, COUNT = "t-scales", 300
TALK = ("stitching", "zipper", "refund", "parcel", "courier", "washing", "shrunk", "lining", "button", "seam")
MAKERS = ("Nordvik", "Tallow", "Hearthside", "Kumo")
SAID = {"match": {"comments.said": "zipper refund"}}
KINDS: dict[str, dict[str, Any]] = {
    "nested": {"nested": {"path": "comments", "query": SAID}},
    "nested, boosted": {
        "nested": {"path": "comments", "query": {"match": {"comments.said": {"query": "zipper", "boost": 9}}}}
    },
    "nested among clauses": {
        "bool": {
            "should": [{"match": {"title": "zipper refund"}}, {"nested": {"path": "comments", "query": SAID}}]
        }
    },
    "sub-field of a keyword": {"match": {"maker.text": "Kumo"}},
    "a field of one word, boosted": {"multi_match": {"query": "red", "fields": ["colour^20", "title"]}},
    "in an object": {"match": {"extra.note": "courier parcel"}},
    "missing in most documents": {"match": {"rare": "washing shrunk"}},
    "several such fields": {"multi_match": {"query": "washing Kumo", "fields": ["rare^3", "maker.text"]}},
    "a phrase there": {"match_phrase": {"rare": "washing shrunk"}},
    "a pattern of fields": {"multi_match": {"query": "washing shrunk", "fields": ["ra*"]}},
    "some of the searched fields": {"match": {"title": {"query": "anchor", "fuzziness": 1}}},
    "constant beside it": {
        "dis_max": {
            "queries": [
                {"match": {"rare": "washing"}},
                {"constant_score": {"filter": {"term": {"rare": "lining"}}}},
            ]
        }
    },
}


@pytest.fixture(scope="module")
def search(cluster: Cluster) -> Iterator[Search]:
    properties = {
        "title": {"type": "text"},
        "text": {"type": "text"},
        "colour": {"type": "text"},
        "rare": {"type": "text"},
        "maker": {"type": "keyword", "fields": {"text": {"type": "text"}}},
        "extra": {"properties": {"note": {"type": "text"}}},
        "comments": {"type": "nested", "properties": {"said": {"type": "text"}}},
    }
    create(cluster, INDEX, properties, {"number_of_shards": 1, "number_of_replicas": 0})
    dice, documents = random.Random(5), {}
    odds = [1 / (place + 2) for place in range(len(WORDS))]
    for number in range(COUNT):
        words = dice.choices(WORDS, odds, k=20)
        source: dict[str, Any] = {
            "title": " ".join(words[:4]),
            "text": " ".join(words),
            "colour": dice.choice(("red", "green", "blue")),
            "maker": dice.choice(MAKERS),
            "extra": {"note": " ".join(dice.choices(TALK, k=6))},
            # of the words of the searched fields it has one, in every comment
            "comments": [{"said": " ".join([*dice.choices(TALK, k=5), WORDS[0]])}],
        }
        if number % 60 == 0:
            source["rare"] = " ".join(["washing shrunk", *dice.choices(TALK, k=4), words[0]])
        documents[f"d{number}"] = source
    put(cluster, INDEX, documents)
    chosen = ReindexSettings(fields=("title", "text", "colour"))
    reindex(cluster, INDEX, HashingEncoder(), settings=chosen)
    yield Search(cluster, INDEX, HashingEncoder())
    drop_indices(cluster, f"{INDEX}*")


def best(search: Search, query: dict[str, Any]) -> float:
    found = search.cluster.search(search.info.name, {"query": query, "size": 1})
    return float(found["hits"]["hits"][0]["_score"])


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_query_finds_scores_as_the_plain_query_does(search, kind):
    """Its best hit has no more than a few times what the plain query gives a text of as many words."""
    ranking = BodyRanking(search, "lexical")
    parsed = ranking.queries.parse(query := KINDS[kind], "lexical")
    assert parsed.words is not None
    count = len(parsed.text.split())
    texts = [" ".join(WORDS[start : start + count]) for start in range(0, len(WORDS) - count, 3)]
    usual = mean(best(search, plain) for plain in search.context.plain.queries(texts))
    assert 0.1 < best(search, query) / parsed.scale / usual < 5
    read = ranking.read({"query": query, "size": 5})
    assert isinstance(read, ReadBody)
    ranked = ranking.rank(read)
    assert search.cluster.search(search.info.name, ranked.body)["hits"]["hits"][0]["_score"] < 10


def test_fields_that_no_document_tells_of_are_measured_by_the_words_of_the_index(search, monkeypatch):
    title = {"multi_match": {"query": "anchor", "fields": ["title^3", "text", "colour"]}}
    expected = BodyRanking(search, "lexical").queries.parse(title, "lexical")
    monkeypatch.setattr(client_query, "template_field_probes", lambda *_: ())
    assert BodyRanking(search, "lexical").queries.parse(title, "lexical") == expected
