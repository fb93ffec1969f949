from __future__ import annotations

import json

import numpy as np
import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.indexing.terms.fitting import WORDS_OF_A_TEXT, fit_term_table, lay_out, read_occurrences
from hybridr.indexing.terms.storage import TermTable
from support.corpus import create, put
from support.hashing import HashingEncoder

ANALYSIS = {
    "filter": {
        "alike": {"type": "synonym", "synonyms": ["wing, airfoil", "ny => new york"]},
        "pairs": {"type": "shingle", "max_shingle_size": 3},
        "starts": {"type": "edge_ngram", "min_gram": 1, "max_gram": 20},
    },
    "analyzer": {
        "synonyms": {"tokenizer": "standard", "filter": ["lowercase", "alike"]},
        "shingles": {"tokenizer": "standard", "filter": ["lowercase", "pairs"]},
        "starts": {"tokenizer": "standard", "filter": ["lowercase", "starts"]},
        "grams": {"tokenizer": {"type": "ngram", "min_gram": 1, "max_gram": 2}},
    },
}
TEXTS = [
    "🚀🚀 wing 🛩️ of ny 機翼設計 about flows",
    "👩‍👩‍👧 airfoil flow in New York 機翼",
    "",
    "wing",
    "𝒳 flow 機翼 wings 🚀",
    "   ",
    " ".join(f"wing number{place % 500}" for place in range(10_000)),
    "<b>flow</b> &amp; e\u0301te\u0301 été naïve",
    "x" * 12_000,
]


def filled(cluster: Cluster, name: str, analyzer: str, shards: int) -> str:
    analysis = json.loads(json.dumps(ANALYSIS))
    kind = analysis["analyzer"]["grams"].pop("tokenizer")
    analysis |= {"tokenizer": {"grams": kind}}
    analysis["analyzer"]["grams"]["tokenizer"] = "grams"
    index = {"number_of_shards": shards, "number_of_replicas": 0, "analysis": analysis}
    properties = {"title": {"type": "text"}, "text": {"type": "text", "analyzer": analyzer}}
    create(cluster, name, properties, {"index": index}, dynamic="strict", _routing={"required": True})
    documents = {str(n): {"title": f"paper {n % 2}", "text": text} for n, text in enumerate(TEXTS)}
    put(cluster, name, documents, {doc_id: doc_id for doc_id in documents})
    return name


def fitted(cluster: Cluster, name: str) -> TermTable:
    return fit_term_table(cluster, cluster.index_info(name), HashingEncoder())


@pytest.mark.parametrize(
    ("analyzer", "shards"),
    [
        ("standard", 1),
        ("english", 3),
        ("cjk", 3),
        ("synonyms", 3),
        ("shingles", 1),
        ("starts", 3),
        ("grams", 1),
    ],
)
def test_the_terms_are_those_of_the_index(cluster, index_name, analyzer, shards):
    table = fitted(cluster, filled(cluster, index_name, analyzer, shards))
    bodies = [
        {"query": {"bool": {"should": [{"term": {"title": term}}, {"term": {"text": term}}]}}, "size": 0}
        for term in table.terms
    ]
    counts = [found["hits"]["total"]["value"] for found in cluster.msearch(index_name, bodies)]
    assert [term for term, count in zip(table.terms, counts, strict=True) if not count] == []
    assert {"paper", "0", "1"} <= set(table.terms)
    assert len(table.packed()) < 1_000_000
    assert table.origin["documents"] == 9


def test_words_are_cut_out_where_the_encoder_saw_them(cluster, index_name):
    """A state of this encoder depends on its token only: behind emoji every other one would show."""
    table = fitted(cluster, filled(cluster, index_name, "cjk", 1))
    encoder = HashingEncoder()
    [plain] = encoder.read_documents(["wing flow 機翼"])
    for word, state in zip(("wing", "flow"), plain.states, strict=False):
        assert table.rows[table.places[word]] @ state == pytest.approx(1, abs=1e-3)
    assert "機翼" in table.places


def test_terms_at_one_place_share_its_state(cluster, index_name):
    table = fitted(cluster, filled(cluster, index_name, "synonyms", 1))
    rows = table.rows[[table.places["wing"], table.places["airfoil"]]]
    np.testing.assert_array_equal(rows[0], rows[1])


def test_the_same_index_gives_the_same_table(cluster, index_name):
    filled(cluster, index_name, "english", 3)
    assert fitted(cluster, index_name).fingerprint == fitted(cluster, index_name).fingerprint


def test_a_long_text_has_bounded_words(cluster, index_name):
    filled(cluster, index_name, "starts", 1)
    long, short = (lay_out({"text": text}, ["text"], ["text"]) for text in ("abcdefghij " * 2_000, ""))
    [words, none] = read_occurrences(cluster, index_name, [long, short])
    assert len(words) == WORDS_OF_A_TEXT
    assert words[:2] == [("a", 0, 10), ("ab", 0, 10)]
    assert none == read_occurrences(cluster, index_name, [short])[0] == []


def test_multi_fields_objects_and_targets_of_copies_are_read(cluster, index_name):
    stems = {"type": "text", "fields": {"stems": {"type": "text", "analyzer": "english"}}}
    body = {"properties": {"text": {**stems, "copy_to": "all"}}}
    mappings = {"properties": {"title": {"type": "text", "copy_to": "all"}, "body": body, "all": stems}}
    cluster.request("PUT", path_of(index_name), {"mappings": mappings})
    source = {"title": "🚀 Wings", "body": {"text": "flowing"}}
    fields, searched = ["title", "body.text"], ["title", "body.text.stems", "all"]
    [found] = read_occurrences(cluster, index_name, [lay_out(source, fields, searched)])
    assert found == [("🚀", 0, 1), ("wings", 2, 7), ("flow", 8, 15), ("flowing", 8, 15)]
