"""Words weigh in a hybrid what plain BM25's do, by whatever similarity an index scores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from hybridr import Search, SearchSettings, read_beir
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.retrievers.lexical import lexical_divisor
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import Document, Query
from hybridr.search.context import idf_sums
from support.corpus import create, drop_indices, put
from support.hashing import HashingEncoder

NAME, DOCUMENTS, ASKED = "t-similarities", 240, 12
TF_IDF = (
    "return query.boost * Math.sqrt(doc.freq) / Math.sqrt(doc.length) "
    "* (1 + Math.log((field.docCount + 1.0) / (term.docFreq + 1.0)));"
)
OTHERS: dict[str, dict[str, Any]] = {
    "DFR": {"type": "DFR", "basic_model": "g", "after_effect": "b", "normalization": "h2"},
    "LMDirichlet": {"type": "LMDirichlet", "mu": 2000},
    "LMJelinekMercer": {"type": "LMJelinekMercer", "lambda": 0.1},
    "boolean": {"type": "boolean"},
    "scripted": {"type": "scripted", "script.source": TF_IDF},
}


@pytest.fixture(scope="module")
def read(collection: Callable[[str], Path]) -> tuple[list[Document], list[Query]]:
    """Texts that people wrote: made-up ones have neither rare words nor common ones."""
    documents, queries, _ = read_beir(collection("cranfield"))
    return documents[:DOCUMENTS], queries[:ASKED]


@pytest.fixture(scope="module")
def index(cluster: Cluster, read: tuple[list[Document], list[Query]]) -> Iterator[str]:
    """Three shards, and vectors."""
    text = {"type": "text", "analyzer": "english"}
    body = {"type": "text", "fields": {"bare": text | {"norms": False}}, "analyzer": "english"}
    create(cluster, NAME, {"title": text, "body": body}, {"number_of_shards": 3, "number_of_replicas": 0})
    put(cluster, NAME, {one.doc_id: {"title": one.title, "body": one.text} for one in read[0]})
    reindex(cluster, NAME, HashingEncoder(), ReindexSettings(fields=("title", "body")))
    yield NAME
    drop_indices(cluster, f"{NAME}*")


def score_by(cluster: Cluster, index: str, similarity: dict[str, Any]) -> None:
    """Have the copy of an index score words otherwise."""
    info = resolve(cluster, index)
    before = dict.fromkeys(one for one in info.settings if one.startswith("index.similarity.default."))
    now = {f"index.similarity.default.{name}": value for name, value in similarity.items()}
    cluster.request("POST", path_of(info.name, "_close"))
    cluster.request("PUT", path_of(info.name, "_settings"), {**before, **now})
    cluster.request("POST", path_of(info.name, "_open"))
    cluster.wait_until_usable(info.name)


def searched(cluster: Cluster, index: str, *fields: str) -> Search:
    return Search(cluster, index, HashingEncoder(), settings=SearchSettings(lexical_fields=fields))


def weights(search: Search, queries: list[Query]) -> list[float]:
    """What the words of each query add, at full weight, to the score of the document that fits best."""
    texts = [query.text for query in queries]
    found = search.using("lexical").run(queries, 1)
    best = [max(found[query.query_id].values()) for query in queries]
    return [
        score / lexical_divisor(idf) for score, idf in zip(best, idf_sums(search.context, texts), strict=True)
    ]


def test_words_weigh_what_they_weigh_by_plain_bm25(cluster, index, read):
    fields = ("title", "body")
    plain = searched(cluster, index, *fields)
    usual = weights(plain, read[1])
    assert plain.context.gain == 1
    for name, similarity in OTHERS.items():
        score_by(cluster, index, similarity)
        search = searched(cluster, index, *fields)
        assert search.fusion == "absolute"
        found = median(one / other for one, other in zip(weights(search, read[1]), usual, strict=True))
        assert 0.7 < found < 1.4, (name, found, search.context.gain)
    score_by(cluster, index, {"type": "BM25"})


def test_every_search_measures_the_same(cluster, index, read):
    """Of a sub-field without norms, whose texts stand in the field that it is below."""
    first, again = (searched(cluster, index, "body.bare") for _ in range(2))
    assert first.context.gain == again.context.gain > 1.1
    text = read[1][0].text
    assert first.body(text) == again.body(text)
    assert first.context.scales.of(1.0).idf_sum == pytest.approx(first.context.gain**2)
