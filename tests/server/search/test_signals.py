"""Signals on a real node: each part is what its formula says, whatever shards and texts there are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.evaluation.label_free import idf
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.terms import storage
from hybridr.indexing.terms.storage import open_term_table
from hybridr.records import Query
from hybridr.search.context import idf_sums
from hybridr.search.fusions.absolute import Absolute
from hybridr.search.signals.soft_terms import LEVELS, MIN_SPAN, NEAREST, SCALE, USED
from support.corpus import create, drop_indices, put
from support.hashing import HashingEncoder

TEXTS = {
    "d1": "heated wing flow over heated wing",
    "d2": "wing heated",
    "d3": "the heated slender wing",
    "d4": "flows over wings of aircraft",
    "d5": "wing",
    "d6": "",
    "d7": "😀 heated wing 北京大学 heated",
    "d8": "price of butter in town",
    "d9": "flow flow flow heated",
} | {
    f"e{number}": f"filler{number} basket candle {'wing' if number % 7 == 0 else ''}" for number in range(40)
}
QUERY = "the heated wing flow"


def encoder() -> HashingEncoder:
    return HashingEncoder(dim=32)


def make(cluster: Cluster, name: str, shards: int, **field: Any) -> None:
    properties = {"text": {"type": "text", "analyzer": "english", **field}}
    create(cluster, name, properties, {"number_of_shards": shards, "number_of_replicas": 0})
    put(cluster, name, {doc_id: {"text": text} for doc_id, text in TEXTS.items()})
    reindex(cluster, name, encoder())


@pytest.fixture(autouse=True, scope="module")
def few_words_suffice() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "MIN_TERMS", 1)
        yield


@pytest.fixture(scope="module", params=[1, 3])
def index(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"t-signals-{request.param}"
    make(cluster, name, request.param)
    yield name
    drop_indices(cluster, f"{name}*")


def alone(search: Search, name: str, text: str) -> dict[str, float]:
    """What the node says of one signal for every document."""
    [question] = search.context.compile([text], 100)
    clauses = list(question.signals[name].clauses)
    body = {"size": 100, "query": {"bool": {"should": clauses}}}
    return search.retrieval.fetch_scores([body])[0] if clauses else {}


def test_the_parts_add_up_to_the_score(cluster, index):
    search = Search(cluster, index, encoder())
    assert set(search.signals.members) == {"phrases", "soft_terms"}
    hits = search(QUERY, 60, explain=True)
    assert len(hits) == len(TEXTS) - 1, "a document without text has no vector and no words"
    for hit in hits:
        assert sum(hit.parts.values()) == pytest.approx(hit.score, abs=1e-4)
    by_id = {hit.doc_id: hit.parts or {} for hit in hits}
    assert by_id["d1"]["phrases"] > by_id["d3"]["phrases"] == 0 == by_id["d8"]["phrases"]
    assert by_id["d4"]["soft_terms"] > 0, "flows and wings are stems of the query's words"
    assert [hit[:5] for hit in search(QUERY, 60)] == [hit[:5] for hit in hits]
    assert search(QUERY, 60)[0].parts is None

    # What is computed here is what the node ranks by.
    for text in (QUERY, "wing", "😀 北京大学 price", "zzz unknown", "flows flow " * 30):
        ranked = search.run([Query("q", text)], 60)["q"]
        here = Absolute(search.settings, cluster.version).scores(search.candidates([text])[0])
        assert ranked == pytest.approx({doc: here[doc] for doc in ranked}, abs=1e-4)


def tokens(text: str) -> list[str]:
    """What the analyser makes of a text, but for stems; Chinese signs and emoji are tokens too."""
    return [one for one in re.findall(r"[a-z0-9]+|[^\s]", text) if one not in ("the", "of", "in")]


def test_phrases_are_bm25_of_pairs(cluster, index_name):
    """One shard: idf of both words together, the pair's frequency, the usual damping by length."""
    make(cluster, index_name, 1)
    search = Search(cluster, index_name, encoder())
    found = alone(search, "phrases", "heated wing")
    full = [tokens(text) for text in TEXTS.values() if text]
    mean = sum(map(len, full)) / len(full)
    held = [sum(any(one.startswith(stem) for one in text) for text in full) for stem in ("heat", "wing")]
    both = sum(idf(count, len(full)) for count in held)
    [root] = [4 * math.sqrt(one) for one in idf_sums(search.context, ["heated wing"])]
    assert set(found) == {"d1", "d7"}
    for doc, times in (("d1", 2), ("d7", 1)):
        damped = times / (times + 1.2 * (0.25 + 0.75 * len(tokens(TEXTS[doc])) / mean))
        assert found[doc] == pytest.approx(3.5 * 0.5 * both * damped / root, abs=1e-4)


def test_soft_terms_are_the_nearest_word_that_a_document_holds(cluster, index):
    search = Search(cluster, index, encoder())
    table = open_term_table(cluster, search.info)
    [read] = search.analysis.of([QUERY])
    terms = list(dict.fromkeys(word.term for word in read.words))
    assert terms == ["heat", "wing", "flow"]
    total = sum({word.term: word.idf for word in read.words}.values())
    scale = 1 / max(MIN_SPAN, table.own_cosine - table.usual_cosine(NEAREST))
    expected = dict.fromkeys(("d1", "d4", "d5", "d9"), 0.0)
    holds = {"d1": {"heat", "wing", "flow", "over"}, "d4": {"flow", "over", "wing", "aircraft"}}
    holds |= {"d5": {"wing"}, "d9": {"flow", "heat"}}
    for term in terms:
        near = table.near(term, NEAREST)
        weight = next(word.idf for word in read.words if word.term == term) / total
        cosines = dict(near[:USED]) | {term: table.own_cosine}
        step = (table.own_cosine - near[-1][1]) / LEVELS
        above = {one: min(cosine, table.own_cosine) - near[-1][1] for one, cosine in cosines.items()}
        nearness = {one: step * max(1, round(part / step)) for one, part in above.items() if part > 0}
        for doc, held in holds.items():
            best = max((nearness.get(one, 0.0) for one in held), default=0.0)
            expected[doc] += SCALE * scale * weight * best
    found = alone(search, "soft_terms", QUERY)
    assert {doc: found[doc] for doc in expected} == pytest.approx(expected, abs=1e-4)

    # Signals are chosen and left out with a word.
    plain = Search(cluster, index, encoder(), settings=SearchSettings(signals=("none",)))
    assert not plain.signals.members
    one = Search(cluster, index, encoder(), settings=SearchSettings(signals=("phrases",)))
    assert list(one.signals.members) == ["phrases"]
    assert list(one(QUERY, 1, explain=True)[0].parts or {}) == ["words", "cosine", "phrases"]
    for mode in ("lexical", "dense"):
        assert not Search(cluster, index, encoder(), mode).signals.members
    assert not Search(cluster, index, encoder(), settings=SearchSettings(fusion="pipeline")).signals.members


@pytest.mark.parametrize(
    "text",
    [
        *("wing", "the of and", "wing " * 200, "😀😀😀", "北京大学", "xyzzy qwertz"),
        *('a[i] = f(x) // {"b": 1}', '\\ " $x ${y}'),
    ],
)
def test_odd_queries_are_answered(cluster, index, text):
    search = Search(cluster, index, encoder())
    hits = search(text, 5, explain=True)
    assert all(math.isfinite(hit.score) for hit in hits)
    long = " ".join(f"word{number} wing{number}" for number in range(100))
    assert Search(cluster, index, encoder())(long, 5)


def test_several_fields_and_odd_analysers(cluster, index_name):
    shingles = {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", "same", "twos"]}
    filters = {
        "twos": {"type": "shingle", "max_shingle_size": 2},
        "same": {"type": "synonym", "synonyms": ["wing, airfoil"], "lenient": True},
    }
    plain = {"type": "text", "fields": {"english": {"type": "text", "analyzer": "english"}}}
    analysis = {"analyzer": {"odd": shingles}, "filter": filters}
    settings = {"number_of_shards": 2, "number_of_replicas": 0, "analysis": analysis}
    create(cluster, index_name, {"title": plain, "text": {"type": "text", "analyzer": "odd"}}, settings)
    put(
        cluster,
        index_name,
        {doc_id: {"title": text.split(" ")[0], "text": text} for doc_id, text in TEXTS.items()},
    )
    reindex(cluster, index_name, encoder())
    fields = ("title", "title.english", "text")
    for given in ((), fields):
        search = Search(cluster, index_name, encoder(), settings=SearchSettings(lexical_fields=given))
        hits = search(QUERY, 10, explain=True)
        assert {"d1", "d7"} <= {hit.doc_id for hit in hits}
        for hit in hits:
            assert sum((hit.parts or {}).values()) == pytest.approx(hit.score, abs=1e-4)
        assert search("wing " + " ".join(f"w{number}" for number in range(200)), 3)
