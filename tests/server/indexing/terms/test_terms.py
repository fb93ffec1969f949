"""How a real index reads texts: the same on any number of shards, by the analyser of queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.routing import shards_for
from hybridr.evaluation.label_free import idf
from hybridr.indexing.terms.terms import Analysed, Analysis
from support.corpus import bulk, create, put

DOCUMENTS = {
    "d1": "the quick brown fox",
    "d2": "quick foxes 😀 jump over the dog",
    "d3": "brown dogs of 北京大学",
    "d4": "quick quick quick",
    "d5": "",
    "d6": "nothing of it",
    "d7": "brown",
}


@pytest.fixture(scope="module", params=[1, 3, 5])
def index(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"t-terms-{request.param}"
    text = {"type": "text", "analyzer": "english", "fields": {"plain": {"type": "text"}}}
    searched = {"type": "text", "analyzer": "english", "search_analyzer": "whitespace"}
    shards = {"number_of_shards": request.param, "number_of_replicas": 0}
    create(cluster, name, {"text": text, "other": searched}, shards)
    put(cluster, name, {doc_id: {"text": content, "other": content} for doc_id, content in DOCUMENTS.items()})
    yield name
    cluster.request("DELETE", f"/{name}")


def analysis(cluster: Cluster, index: str, *fields: str) -> Analysis:
    return Analysis(cluster, cluster.index_info(index), fields)


def test_idf_is_that_of_the_whole_index(cluster, index):
    made = analysis(cluster, index, "text")
    [read] = made.of(["Quick dogs"])
    assert [(word.term, word.position, word.start, word.end) for word in read.words] == [
        ("quick", 0, 0, 5),
        ("dog", 1, 6, 10),
    ]
    assert [word.idf for word in read.words] == pytest.approx([idf(3, 6), idf(2, 6)])
    assert read.idf_sum == pytest.approx(idf(3, 6) + idf(2, 6))
    again = [analysis(cluster, index, "text").of(["Quick dogs"]) for _ in range(5)]
    assert again == [[read]] * 5


def test_texts_are_remembered(cluster, index, monkeypatch):
    made = analysis(cluster, index, "text")
    first = made.of(["quick fox", "fox", "fox fox", ""])
    assert first[1].idf_sum == first[2].idf_sum > 0 == first[3].idf_sum
    assert [word.position for word in first[2].words] == [0, 1]
    monkeypatch.setattr(Cluster, "request", None)
    assert made.of(["fox", "quick fox"]) == [first[1], first[0]]


def test_places_are_characters_also_behind_emoji_and_chinese_signs(cluster, index):
    text = "😀😀 foxes 北京 dog"
    [read] = analysis(cluster, index, "text.plain").of([text])
    assert [text[word.start : word.end] for word in read.words][-4:] == ["foxes", "北", "京", "dog"]


def test_stop_words_leave_their_places_and_unknown_words_weigh_most(cluster, index):
    [read, nothing] = analysis(cluster, index, "text").of(["the fox of xyzzy", "the of"])
    assert [(word.term, word.position) for word in read.words] == [("fox", 1), ("xyzzi", 3)]
    assert read.words[1].idf == pytest.approx(idf(0, 6))
    assert read.known
    assert nothing == ((), 0.0, False)
    assert not analysis(cluster, index, "text").of(["xyzzy"])[0].known


def test_queries_are_read_by_their_own_analyser(cluster, index):
    [read] = analysis(cluster, index, "other").of(["The Foxes"])
    assert [word.term for word in read.words] == ["The", "Foxes"]


def test_several_fields_count_as_one(cluster, index):
    """Each reads `quick`; the stem is in one of them, the plural in the other, which no document holds."""
    both, text, plain = (
        analysis(cluster, index, *fields).of(["quick dogs"])[0]
        for fields in (("text", "text.plain"), ("text",), ("text.plain",))
    )
    assert both.idf_sum == pytest.approx(max(text.idf_sum, plain.idf_sum))
    assert sorted(both.words) == sorted((*text.words, *plain.words))


def test_a_term_weighs_by_the_documents_that_hold_it_in_any_field(cluster, index_name):
    """A third of them in the one field, a third in the other, and one that has it in both."""
    titles, bodies = ["fox"] * 4 + ["cat"] * 8, ["dog"] * 3 + ["fox"] * 4 + ["dog"] * 5
    pairs = enumerate(zip(titles, bodies, strict=True))
    put(cluster, index_name, {str(number): {"title": title, "body": body} for number, (title, body) in pairs})
    made = analysis(cluster, index_name, "title", "body")
    [read] = made.of(["fox"])
    assert [word.field for word in read.words] == ["body", "title"]
    for word in read.words:
        assert [word.idf, word.own_idf] == pytest.approx([idf(7, 12), idf(4, 12)])
    assert read.idf_sum == pytest.approx(idf(7, 12))
    assert analysis(cluster, index_name, "title").of(["fox"])[0].idf_sum == pytest.approx(idf(4, 12))
    assert made.of(["fox cat"])[0].idf_sum > read.idf_sum


@pytest.mark.parametrize("settings", [{}, {"number_of_routing_shards": 30}])
def test_a_node_agrees_on_where_routing_leads(cluster, index_name, settings):
    cluster.request("PUT", f"/{index_name}", {"settings": {"number_of_shards": 5, **settings}})
    info = cluster.index_info(index_name)
    for value in ("0", "1", "hello", "ä€", "x" * 37, "😀a"):
        found = cluster.request("GET", f"/{index_name}/_search_shards", params={"routing": value})
        assert [group[0]["shard"] for group in found["shards"]] == [shards_for(value, info)[0]]


def test_the_analyser_of_all_queries_reads_texts(cluster, index_name):
    """Words of the query that the index does not know so would weigh as if they were rare."""
    analysis_of = {"analyzer": {"default_search": {"type": "english"}}}
    body = {"settings": {"number_of_replicas": 0, "analysis": analysis_of}}
    body["mappings"] = {"properties": {"text": {"type": "text", "analyzer": "whitespace"}}}
    cluster.request("PUT", f"/{index_name}", body)
    bulk(cluster, index_name, [{"index": {}}, {"text": "run dog"}])
    [read] = analysis(cluster, index_name, "text").of(["Running the dogs"])
    assert [word.term for word in read.words] == ["run", "dog"]
    assert cluster.search(index_name, {"query": {"match": {"text": "Running"}}})["hits"]["hits"]


@pytest.mark.parametrize("fields", [("text",), ("text", "text.plain")])
def test_a_new_text_of_known_words_is_read_as_the_cluster_reads_it(cluster, index, fields, monkeypatch):
    made = analysis(cluster, index, *fields)
    made.of(["the Quick dogs, of nothing!", "brown foxes jump; zephyr"])
    texts = ["foxes of the dogs", "(nothing) brown-brown Quick", "zephyr", "the", "Quick zephyr, jump"]
    asked = [analysis(cluster, index, *fields).of([text])[0] for text in texts]
    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "request", None)
        assert all(map(made.remembers, texts))
        assert made.of(texts) == asked
    assert not made.remembers("quick"), "in small letters nobody asked for it"
    other = analysis(cluster, index, "text", "other")
    other.of(["Quick dogs"])
    assert not other.remembers("dogs"), "`whitespace` is left to the cluster"


@pytest.mark.parametrize("fields", [("text",), ("text", "text.plain")])
def test_of_a_new_text_only_its_unknown_words_are_asked(cluster, index, fields, monkeypatch):
    """Each word once, and the terms that documents hold in several fields by one search."""
    made = analysis(cluster, index, *fields)
    made.of(["the quick dogs"])
    texts = ["quick brown dogs, brown foxes", "quick (nothing) jump", "brown 😀 of dogs"]
    asked = [analysis(cluster, index, *fields).of([text])[0] for text in texts]
    assert [read.idf_sum for read in asked] == pytest.approx(
        [whole_reading(cluster, index, fields, text).idf_sum for text in texts]
    )
    bodies = sent_bodies(monkeypatch)
    assert made.of(texts) == asked
    docs, rest = bodies["_mtermvectors"]
    assert {doc["doc"]["text"] for doc in docs["docs"]} == {"brown foxes nothing jump"}
    assert {doc["doc"]["text"] for doc in rest["docs"]} == {texts[2]}, "more than words"
    assert len(bodies.get("_search", ())) == (2 if len(fields) > 1 else 0)
    assert "_msearch" not in bodies


def whole_reading(cluster: Cluster, index: str, fields: tuple[str, ...], text: str) -> Analysed:
    """The analysis of a text that is asked as a whole."""
    made = analysis(cluster, index, *fields)
    made._words.usable = False
    return made.of([text])[0]


def sent_bodies(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The bodies of the requests from now on, by the last part of their path."""
    bodies: dict[str, list[Any]] = {}
    request = Cluster.request

    def remembering(
        self: Cluster, method: str, path: str, body: Any = None, *rest: Any, **options: Any
    ) -> Any:
        bodies.setdefault(path.rpartition("/")[2], []).append(body)
        return request(self, method, path, body, *rest, **options)

    monkeypatch.setattr(Cluster, "request", remembering)
    return bodies
