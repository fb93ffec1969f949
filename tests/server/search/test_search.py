"""Search on a real node."""

from __future__ import annotations

import json
from threading import Event
from typing import Any

import pytest

from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.retrievers.lexical import lexical_query
from hybridr.errors import ClusterError, FingerprintMismatch, SettingsError
from hybridr.records import Query
from hybridr.search.fusions.pipeline import hybrid_query
from hybridr.search.hits import checked_hits
from support.corpus import fill_index, text_number


def test_hits_carry_text_and_both_raw_scores(cluster, searchable):
    index, encoder = searchable
    search = Search(cluster, index, encoder)
    text = text_number(5)
    hits = search(text, 5)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert hits[0].doc_id == "d5"
    assert "<em>n5</em>" in hits[0].text
    lexical = search.using("lexical").run([Query("q", text)], 300)["q"]
    dense = search.using("dense").run([Query("q", text)], 100)["q"]
    for hit in hits:
        assert hit.scores["lexical"] == pytest.approx(lexical[hit.doc_id], abs=1e-5)
        assert hit.scores["dense"] == pytest.approx(dense[hit.doc_id], abs=1e-5)

    # K changes no score.
    few, many = (search.run([Query("q", "anchor ladder")], k)["q"] for k in (5, 80))
    assert few == {doc: many[doc] for doc in list(many)[:5]}


def test_lexical_search_does_not_ask_its_encoder(cluster, searchable, monkeypatch):
    index, encoder = searchable
    search = Search(cluster, index, encoder).using("lexical")
    for name in ("encode_queries", "read_queries"):
        monkeypatch.setattr(encoder, name, lambda *_, **__: pytest.fail("lexical search reads nothing"))
    assert search(text_number(5), 1)[0].doc_id == "d5"

    # An unknown mode and another encoder are refused.
    with pytest.raises(SettingsError, match="unknown mode 'semantic'"):
        Search(cluster, index, encoder, "semantic")  # type: ignore[arg-type]
    with pytest.raises(FingerprintMismatch):
        Search(cluster, index)  # these vectors are of an encoder that was never a folder
    assert Search(cluster, index, mode="lexical").encoder is None


def test_a_text_is_encoded_while_the_cluster_looks_up_its_words(cluster, searchable, monkeypatch):
    index, encoder = searchable
    search, looked_up = Search(cluster, index, encoder), Event()
    search("a first question", 1)
    request, encode = Cluster.request, encoder.encode_queries

    def noting(self: Cluster, method: str, path: str, *parts: Any, **options: Any) -> Any:
        if path.endswith("_mtermvectors"):
            looked_up.set()
        return request(self, method, path, *parts, **options)

    def waiting(texts: Any, **options: Any) -> Any:
        assert looked_up.wait(60), "the words are looked up already"
        return encode(texts, **options)

    monkeypatch.setattr(Cluster, "request", noting)
    monkeypatch.setattr(encoder, "encode_queries", waiting)
    assert search(text_number(5), 1)[0].doc_id == "d5"


def test_legs_give_every_candidate_both_true_scores(cluster, searchable):
    index, encoder = searchable
    text = text_number(5)
    search = Search(cluster, index, encoder, settings=SearchSettings(depth=20))
    lexical = search.using("lexical").run([Query("q", text)], 300)["q"]
    dense = Search(cluster, index, encoder, "dense").run([Query("q", text)], 300)["q"]
    [legs] = search.candidates([text])
    union = legs.documents
    assert len(union) > 20
    assert legs.scores["dense"] == pytest.approx({doc: dense[doc] for doc in union}, abs=1e-5)
    expected = {doc: lexical[doc] for doc in union if doc in lexical}
    assert legs.scores["lexical"] == pytest.approx(expected, abs=1e-5)


def test_words_alone_find_where_asked_with_the_same_scores(cluster, searchable):
    index, encoder = searchable
    text, query = "anchor ladder", [Query("q", "anchor ladder")]
    matched = Search(cluster, index, encoder, "lexical").run(query, 300)["q"]
    everything = Search(cluster, index, encoder, settings=SearchSettings(depth=300)).run(query, 300)["q"]
    search = Search(cluster, index, encoder, settings=SearchSettings(depth=300, recall="lexical"))
    found = search.run(query, 300)["q"]
    assert matched.keys() == found.keys() < everything.keys()
    assert found == pytest.approx({doc: everything[doc] for doc in found}, abs=1e-6)
    [legs] = search.candidates([text])
    assert set(legs.documents) == matched.keys()
    assert search.context.fusion.order(legs, 300) == pytest.approx(found, abs=1e-5)
    with pytest.raises(SettingsError, match="'pipeline' finds by every retriever"):
        Search(cluster, index, encoder, settings=SearchSettings(recall="lexical", fusion="pipeline"))

    # Neighbours of a part number are other parts.
    search = Search(cluster, index, encoder)
    assert [hit.doc_id for hit in search("n5", 10)] == ["d5"]
    assert len(search("n5000", 10)) == 10, "no document has it"
    assert len(search("anchor", 100)) > len(search.using("lexical")("anchor", 100)), "a word like others"


def test_hybrid_without_pipeline_is_an_error(cluster, searchable):
    index, _ = searchable
    legs = [lexical_query("anchor", ["text"]), lexical_query("ladder", ["text"])]
    answer = cluster.search(f"{index}-hybridr", {"query": hybrid_query(legs, 10)})
    with pytest.raises(ClusterError, match="raw hybrid scores"):
        checked_hits(answer)


def test_command_line_searches_in_three_modes(cluster, index_name, minilm, cli):
    fill_index(cluster, index_name, 30)
    on = ["--url", cluster.url]
    assert (
        f"alias {index_name}-hybridr -> {index_name}-hybridr-1"
        in cli.typed(["reindex", index_name, *on, "--encoder", str(minilm)]).out
    )
    for mode in ("hybrid", "lexical", "dense"):
        command = ["search", index_name, "velvet window", "--mode", mode, "--k", "3", "--json", *on]
        hits = cli.typed(command).json["hits"]
        assert len(hits) == 3
        shown = {"doc_id", "score", "confidence", "rank", "lexical_score", "dense_score"}
        shown |= {"text", "passage", "parts"}
        assert shown == hits[0].keys()
        assert hits[0]["parts"] is None
    [best, *_] = cli.typed(["search", index_name, "velvet window", *on, "--explain", "--json"]).json["hits"]
    assert best["parts"].keys() == {"words", "cosine", "phrases"}, "too few words for soft terms"
    assert sum(best["parts"].values()) == pytest.approx(best["score"], abs=1e-4)
    found = Search(cluster, index_name)
    assert found.encoder is not None, "the one that wrote the vectors, as the command line finds it"
    assert [hit.doc_id for hit in found("velvet window", 3)][0] in {hit["doc_id"] for hit in hits}
    assert found.using("lexical").using("dense").encoder is not None
    assert "*velvet*" in cli.typed(["search", index_name, "velvet window", *on]).out
    wanted = json.dumps({"term": {"tags": "t1"}})
    command = [
        "search",
        index_name,
        "anchor ladder",
        "--k",
        "3",
        "--from",
        "2",
        "--filter",
        wanted,
        *on,
        "--json",
    ]
    hits = cli.typed(command).json["hits"]
    assert [(hit["rank"], int(hit["doc_id"][1:]) % 3) for hit in hits] == [(3, 1), (4, 1), (5, 1)]
    answer = cluster.search(f"{index_name}-hybridr", cli.typed([*command, "--request"]).json)
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == [hit["doc_id"] for hit in hits]
    assert "the filter is not a JSON object" in cli.typed([*command[:-1], "--filter", "[1]"], 2).err
    cli.typed(["rollback", index_name, *on])
    assert "has no vectors for hybrid search" in cli.typed(["search", index_name, "velvet", *on], 1).err
    cli.typed(["search", index_name, "velvet", "--mode", "lexical", *on])
