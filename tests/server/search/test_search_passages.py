"""Long documents on a real node: found by the best passage, which is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr import ReindexSettings, Search, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.retrievers.dense import DenseRetriever
from hybridr.indexing.reindexing import reindex, sync
from hybridr.records import Query
from hybridr.search import fusions
from hybridr.search.calibration import MAX_FACTOR, MINILM_SPREAD, fixed_text_cosines
from hybridr.search.fusions import CandidateLists
from hybridr.search.settings import SearchSettings
from support.corpus import WORDS, bulk, drop_indices, fill_index, put, sources, text_number
from support.hashing import ProductEncoder
from support.long_documents import PASSAGES, encoder, long_text, make, secret, stored, true_scores
from support.members import FUSION, one_more


@pytest.fixture
def by_ids(tmp_path: Path) -> Iterator[SearchSettings]:
    """Give the settings of a fusion that asks for scores by ids."""
    with one_more(fusions, "throwaway", FUSION, tmp_path):
        yield SearchSettings(fusion="throwaway")


@pytest.fixture(scope="module")
def searchable(cluster: Cluster) -> Iterator[tuple[str, dict[str, str]]]:
    """Give an index that no test changes, and its texts."""
    texts = make(cluster, "t-passages")
    reindex(cluster, "t-passages", encoder(), PASSAGES)
    yield "t-passages", texts
    drop_indices(cluster, "t-passages*")


def test_search_gives_the_right_passage(cluster, searchable, by_ids):
    index_name, texts = searchable
    searches = [Search(cluster, index_name, encoder(), mode) for mode in ("dense", "hybrid")]
    searches.append(Search(cluster, index_name, encoder(), settings=by_ids))
    for search in searches:
        hit = search(secret(19), 3)[0]
        assert hit.doc_id == "d19"
        assert secret(19) in hit.text
        assert hit.passage
        assert hit.text == texts["d19"][slice(*hit.passage)]
        assert len(hit.text.split()) <= 20 < len(texts["d19"].split())

    # A short document and a lexical hit show highlights.
    for mode in ("dense", "hybrid"):
        hit = Search(cluster, index_name, encoder(), mode)(text_number(6), 1)[0]
        assert (hit.doc_id, hit.passage) == ("d6", None)
        assert "<em>n6</em>" in hit.text
    hit = Search(cluster, index_name, mode="lexical")("s19", 1)[0]
    assert (hit.doc_id, hit.passage) == ("d19", None)
    assert "<em>s19</em>" in hit.text


def test_scores_are_those_of_the_best_passage(cluster, searchable):
    index_name, texts = searchable
    for number in (1, 6, 19, 40):
        query = f"{WORDS[number % 20]} {secret(number)}"
        expected = true_scores(texts, query, encoder())
        found = Search(cluster, index_name, encoder(), "dense").run([Query("q", query)], 20)["q"]
        assert found == pytest.approx({doc_id: expected[doc_id] for doc_id in found}, abs=1e-5)
        assert min(found.values()) >= sorted(expected.values())[-20] - 1e-5
        hybrid = {
            hit.doc_id: hit.scores["dense"] for hit in Search(cluster, index_name, encoder())(query, 20)
        }
        assert hybrid == pytest.approx({doc_id: expected.get(doc_id) for doc_id in hybrid}, abs=1e-5)

    # Legs give every candidate its best passages score.
    query = f"{secret(7)} {text_number(6)}"
    [legs] = Search(cluster, index_name, encoder(), settings=SearchSettings(depth=10)).candidates([query])
    assert len(legs.documents) > 10
    expected = true_scores(texts, query, encoder())
    assert legs.scores["dense"] == pytest.approx({doc: expected[doc] for doc in legs.documents}, abs=1e-5)


@pytest.mark.parametrize("settings", [ReindexSettings(), PASSAGES], ids=["whole", "passages"])
@pytest.mark.parametrize("made", [encoder, ProductEncoder], ids=["cosine", "ip"])
def test_the_best_passage_counts_in_the_absolute_formula(cluster, index_name, made, settings):
    """In one request as by scores that are asked by ids; inner products are calibrated as cosines are."""
    texts, model, query = make(cluster, index_name, number_of_shards=2), made(), secret(7)
    reindex(cluster, index_name, model, settings)
    search = Search(cluster, index_name, model, settings=SearchSettings(depth=20))
    assert search.fusion == "absolute"
    found = search.run([Query("q", query)], 20)["q"]
    [legs] = search.candidates([query])
    by_ids = search.context.fusion.scores(legs)
    assert found == pytest.approx({doc_id: by_ids[doc_id] for doc_id in found}, abs=1e-4)
    if settings.passages:
        expected = true_scores(texts, query, model)
        assert legs.scores["dense"] == pytest.approx({doc: expected[doc] for doc in legs.documents}, rel=1e-4)
    spread, centre = fixed_text_cosines(model)
    for hit in search(query, 5, explain=True):
        assert hit.parts
        told = 0.5 * min(MINILM_SPREAD / spread, MAX_FACTOR) * 2 * by_ids_dense(legs, hit.doc_id)
        assert hit.parts["cosine"] == pytest.approx(told, rel=1e-4)
    assert search.context.scales.unrelated == pytest.approx(
        1.3 + min(MINILM_SPREAD / spread, MAX_FACTOR) * (1 + centre) - 1.0578, abs=1e-6
    )


def by_ids_dense(legs: CandidateLists, doc_id: str) -> float:
    return legs.scores["dense"].get(doc_id, DenseRetriever.unseen)


def test_true_scores_and_passages_in_several_groups(cluster, index_name, by_ids):
    texts = make(cluster, index_name)
    reindex(cluster, index_name, encoder(), PASSAGES.model_copy(update={"max_passages": 5000}))
    hits = Search(cluster, index_name, encoder(), settings=by_ids)(secret(19), 15)
    expected = true_scores(texts, secret(19), encoder())
    assert {hit.doc_id: hit.scores["dense"] for hit in hits} == pytest.approx(
        {hit.doc_id: expected[hit.doc_id] for hit in hits}, abs=1e-5
    )
    assert hits[0].doc_id == "d19"
    for hit in hits:
        assert hit.passage is None or hit.text == texts[hit.doc_id][slice(*hit.passage)]
    assert sum(hit.passage is not None for hit in hits) > 10


def test_many_alike_passages_of_one_document_crowd_nothing_out(cluster, index_name):
    make(cluster, index_name, 30)
    alike = " ".join(" ".join(["zebra"] * 19) + f" x{number}" for number in range(50))
    other = "zebra " * 12 + "anchor basket candle"
    others = {f"other{number}": {"text": f"{other} o{number}"} for number in range(9)}
    put(cluster, index_name, {"alike": {"text": alike}, **others})
    done = reindex(cluster, index_name, encoder(), PASSAGES)
    assert len(stored(cluster, done.destination, "alike")) >= 50
    found = Search(cluster, index_name, encoder(), "dense", settings=SearchSettings(depth=10)).run(
        [Query("q", "zebra")], 10
    )["q"]
    assert next(iter(found)) == "alike"
    assert set(found) == {"alike", *(f"other{number}" for number in range(9))}


def test_the_command_line_searches_passages(cluster, index_name, minilm, cli):
    filler = " ".join("The committee met again and talked about the roof of the library." for _ in range(60))
    text = f"{filler} Volcanoes erupt when magma rises through the crust. {filler}"
    fill_index(cluster, index_name, 20)
    bulk(cluster, index_name, [{"index": {"_id": "long"}}, {"text": text}])
    on = ["--url", cluster.url, "--encoder", str(minilm)]
    cli.typed(["reindex", index_name, *on, "--passages"])
    question = "why does lava come out of the earth"
    for mode in ("dense", "hybrid"):
        first = cli.typed(["search", index_name, question, *on, "--mode", mode, "--json"]).json["hits"][0]
        assert first["doc_id"] == "long"
        assert "Volcanoes erupt" in first["text"]
        assert text[slice(*first["passage"])] == first["text"] != text
    assert "passages of 256 tokens, 32 shared, at most 64" in cli(cluster, f"status {index_name}").out


@pytest.mark.secure
def test_on_the_older_version(secure_node, by_ids):
    """2.19 leaves inner hits out of hybrid answers: hybridr asks for the passages itself."""
    cluster, model = connect(secure_node.url), ProductEncoder(64)
    texts = make(cluster, "passages")
    done = reindex(cluster, "passages", model, PASSAGES)
    assert sources(cluster, done.destination) == sources(cluster, "passages")
    searches = [Search(cluster, "passages", model, mode) for mode in ("dense", "hybrid")]
    searches.append(Search(cluster, "passages", model, settings=SearchSettings(fusion="pipeline")))
    for search in [*searches, Search(cluster, "passages", model, settings=by_ids)]:
        hit = search(secret(19), 3)[0]
        assert (hit.doc_id, secret(19) in hit.text) == ("d19", True)
        assert hit.passage
        assert hit.text == texts["d19"][slice(*hit.passage)]
        assert hit.scores["dense"] == pytest.approx(true_scores(texts, secret(19), model)["d19"], abs=1e-5)
    body = {"doc": {"text": long_text(99)}}
    cluster.request("POST", path_of(done.destination, "_update", "d4"), body, {"refresh": "true"})
    assert sync(cluster, "passages", model).renewed == 1
    cluster.refresh(done.destination)
    assert Search(cluster, "passages", model, "dense")(secret(99), 1)[0].doc_id == "d4"
