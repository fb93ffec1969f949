"""Texts in several fields on a real node: the words of a query weigh what they weigh in the joined text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hybridr import Search, SearchSettings, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.routing import routing_values
from hybridr.errors import SettingsError
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.files.formats import write_beir
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.indexing.terms.terms import Analysis
from hybridr.records import Query
from hybridr.search.context import idf_sums
from hybridr.search.systems import SYSTEMS, Compared, evaluate_index
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.corpus import WORDS, create, drop_indices, put
from support.hashing import HashingEncoder

ENCODER, COUNT = HashingEncoder(), 180
NAMES = ("title", "lead", "body", "rest")
CUTS = {1: ("whole",), 2: ("title", "tail"), 4: NAMES}
VOCABULARY = [*WORDS, *(f"{word}{number}" for number in range(12) for word in WORDS)]
TEXTS = [" ".join(VOCABULARY[number + step] for step in (0, 15, 40)) for number in range(12)]


def document(number: int) -> dict[str, str]:
    """A text of 12 to 60 words, those of low numbers often, whole and in pieces of unequal length."""
    chance = np.random.default_rng(number)
    drawn = chance.exponential(50, 12 + number % 49).astype(int).clip(0, len(VOCABULARY) - 1)
    words = [VOCABULARY[one] for one in drawn]
    title, rest = " ".join(words[:4]), " ".join(words[4:])
    lead, body, end = (" ".join(one) for one in (words[4:9], words[9:30], words[30:]))
    return {"whole": f"{title} {rest}", "title": title, "tail": rest, "lead": lead, "body": body, "rest": end}


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    """On three shards that hold a half, a third and a sixth."""
    name = "t-fields"
    text = {"type": "text", "fields": {"english": {"type": "text", "analyzer": "english"}}}
    properties: dict[str, Any] = {one: text for one in ("whole", "tail", *NAMES)}
    specs = {"type": "nested", "properties": {"note": {"type": "text"}}}
    properties |= {"brand": {"type": "keyword"}, "price": {"type": "float"}, "specs": specs}
    create(cluster, name, properties, {"number_of_shards": 3, "number_of_replicas": 0})
    values = [routing_values(cluster.index_info(name))[shard] for shard in (0, 0, 0, 1, 1, 2)]
    documents = {f"d{number}": document(number) for number in range(COUNT)}
    put(cluster, name, documents, {f"d{number}": values[number % 6] for number in range(COUNT)})
    reindex(cluster, name, ENCODER, ReindexSettings(fields=("whole",)))
    yield name
    drop_indices(cluster, f"{name}*")


def opened(cluster: Cluster, index: str, fields: Any, mode: str = "hybrid", **settings: Any) -> Search:
    chosen = SearchSettings(tuned=False, lexical_fields=tuple(fields), **settings)
    return Search(cluster, index, ENCODER, mode, settings=chosen)


def scores(search: Search) -> np.ndarray:
    """All scores of all texts, 0 where a document is not found."""
    found = search.run([Query(str(n), text) for n, text in enumerate(TEXTS)], COUNT)
    return np.array([[found[str(n)].get(f"d{i}", 0.0) for i in range(COUNT)] for n in range(len(TEXTS))])


@pytest.mark.parametrize("cut", [2, 4])
def test_words_weigh_the_same_in_however_many_fields_they_are(cluster, index, cut):
    whole, pieces = (scores(opened(cluster, index, CUTS[one], "lexical")) for one in (1, cut))
    assert ((whole > 0) == (pieces > 0)).all()
    assert pieces[whole > 0].mean() == pytest.approx(whole[whole > 0].mean(), rel=0.03)
    assert np.corrcoef(whole[whole > 0], pieces[whole > 0])[0, 1] > 0.98
    roots = [np.sqrt(idf_sums(opened(cluster, index, CUTS[one]).context, TEXTS)) for one in (1, cut)]
    assert roots[1] == pytest.approx(roots[0], rel=0.001)


def test_the_words_part_of_a_hit_does_not_hang_on_the_fields(cluster, index):
    """A document whose words stand in one field of four had a quarter of the words' weight."""
    parts = []
    for cut in (1, 4):
        search = opened(cluster, index, CUTS[cut], signals=("none",))
        hits = search("anchor garden basket candle", 20, explain=True)
        parts.append({hit.doc_id: (hit.parts or {})["words"] for hit in hits})
        for hit in hits:
            assert sum((hit.parts or {}).values()) == pytest.approx(hit.score, abs=1e-5)
    both = [doc for doc in parts[0] if doc in parts[1]]
    assert len(both) > 10
    mean = [np.mean([one[doc] for doc in both]) for one in parts]
    assert mean[1] == pytest.approx(mean[0], rel=0.05)

    # One field ranks as it did.
    search = opened(cluster, index, ("whole",))
    [root] = 4 * np.sqrt(idf_sums(search.context, [TEXTS[0]]))
    request = json.dumps(search.request(TEXTS[0]))
    left = 0.5 * (1 - 0.2 * len(search.signals.members))
    asked = search.request(TEXTS[0])["rescore"]["query"]["rescore_query"]["bool"]["should"][0]["bool"]
    assert asked["must"] == [{"match": {"whole": {"query": TEXTS[0]}}}]
    assert asked["boost"] == pytest.approx(left / root, abs=1e-6)
    assert "combined_fields" not in request
    assert "multi_match" not in request


def test_fields_that_are_read_differently_are_searched_too(cluster, index):
    fields = ("title^3", "title.english", "body^0.5", "brand")
    hits = opened(cluster, index, fields)("anchors of the garden", 10, explain=True)
    assert hits
    assert all(sum((hit.parts or {}).values()) == pytest.approx(hit.score, abs=1e-4) for hit in hits)
    words = opened(cluster, index, fields, "lexical")
    assert words("anchors", 3), "the stem is in a sub-field"
    assert not opened(cluster, index, ("title", "body"), "lexical")("anchors", 3)

    # Boosts order hits.
    def best(*fields: str) -> list[str]:
        return list(opened(cluster, index, fields, "lexical").run([Query("q", "anchor basket")], 30)["q"])

    assert best("title^9", "body") != best("title", "body") != best("title^.1", "body")
    assert best("title^9", "body^3") == best("title^3", "body")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("titel",), "has no field 'titel'"),
        (("price",), "'price' is float"),
        (("specs.note",), "'specs.note' is in nested objects"),
        (("title^0",), "no boost above 0"),
        (("title^many",), "no boost above 0"),
        (('["title"', '"body"]'), "has no field"),
    ],
)
def test_what_is_no_field_is_refused_by_name(cluster, index, given, said):
    with pytest.raises(SettingsError, match="lexical_fields") as caught:
        opened(cluster, index, given, "lexical")
    assert said in str(caught.value)


def test_every_verb_searches_the_same_fields(cluster, index, tmp_path, monkeypatch, cli):
    own = SearchSettings(lexical_fields=("title^3", "rest"))
    wanted = [hit.doc_id for hit in Search(cluster, index, ENCODER, "lexical", settings=own)(TEXTS[0], 9)]
    app = create_app(ENCODER, ServeSettings(index=index), cluster=cluster, search=own)
    served = TestClient(app).post("/search", json={"query": TEXTS[0], "k": 9, "mode": "lexical"}).json()
    assert [hit["doc_id"] for hit in served["hits"]] == wanted
    write_beir(tmp_path, [], [Query("q", TEXTS[0])], {"q": {wanted[0]: 1}})
    found = evaluate_index(
        cluster, index, JudgedQueries(tmp_path), Compared(["bm25"], resamples=10), settings=own
    )
    assert list(found.runs["bm25"]["q"])[:9] == wanted
    for one in SYSTEMS.values():
        assert one.search_settings(own, 100).lexical_fields == own.lexical_fields
    monkeypatch.setenv("HYBRIDR_SEARCH_LEXICAL_FIELDS", "title^3,rest")
    on = ["--url", cluster.url, "--json"]
    assert [
        hit["doc_id"]
        for hit in cli.typed(["search", index, TEXTS[0], "--mode", "lexical", "-k", "9", *on]).json["hits"]
    ] == wanted
    monkeypatch.setenv("HYBRIDR_SEARCH_LEXICAL_FIELDS", "titel")
    for verb in (
        ["search", index, TEXTS[0], "--mode", "lexical"],
        ["evaluate", index, "--systems", "bm25", "--beir", str(tmp_path)],
    ):
        assert "titel" in cli.typed([*verb, *on], 2).err


@pytest.mark.secure
def test_an_old_server_searches_several_fields_too(secure_node):
    """OpenSearch 2.19 has no `combined_fields`."""
    old, name = connect(secure_node.url), "t-fields-old"
    put(old, name, {"1": document(1), "2": document(2)})
    search = Search(old, name, mode="lexical", settings=SearchSettings(lexical_fields=CUTS[4]))
    assert search("anchor basket candle", 2)
    assert Analysis(old, search.info, CUTS[4]).of(["anchor"])[0].idf_sum > 0
    old.request("DELETE", path_of(name))
