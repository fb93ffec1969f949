"""Long documents as passages on a real node: found by the best one, shown, kept current, verified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridr_cli
from hashing import HashingEncoder
from hybridr import ReindexSettings, Search, connect, reindex
from hybridr.cluster.connection import Cluster, path_of
from hybridr.encoding.passages import split
from hybridr.errors import ModelError, SettingsError
from hybridr.node.state import NodeState
from hybridr.records import Query, Windows
from hybridr.reindexing.syncing import sync
from hybridr.reindexing.verification import verify
from hybridr.search.settings import SearchSettings
from hybridr.status import standing

from .corpus import WORDS, bulk, fill_index, put_documents, sources, text_number

PASSAGES = ReindexSettings(passages=True, max_tokens=22, passage_overlap=4)
WINDOWS = Windows(22, 4, 64)
COUNT = 60
COMPLETED = SearchSettings(fusion="completed")


def encoder() -> HashingEncoder:
    return HashingEncoder(dim=64)


def secret(number: int) -> str:
    """Words that stand in one long text only."""
    return f"zebra s{number} s{number} s{number} s{number} comet"


def long_text(number: int) -> str:
    """Some hundred words about nothing else than this number's own, in the middle something secret."""
    dice = np.random.default_rng(number)
    words = [*dice.choice(WORDS, 60 + 7 * (number % 20)), f"n{number}"]
    return " ".join([*words[:30], secret(number), *words[30:]])


def make(cluster: Cluster, index: str, count: int = COUNT, **settings: Any) -> dict[str, str]:
    """Make an index of short, long and empty documents; give their texts."""
    mappings = {"properties": {"text": {"type": "text"}, "tags": {"type": "keyword"}}}
    settings = {"number_of_replicas": 0, **settings}
    cluster.request("PUT", path_of(index), {"settings": settings, "mappings": mappings})
    texts = {f"d{n}": text_number(n) if n % 3 == 0 else long_text(n) for n in range(count)} | {"empty": ""}
    lines: list[dict[str, Any]] = []
    for doc_id, text in texts.items():
        lines += [{"index": {"_id": doc_id}}, {"text": text, "price": 1.5, "tags": ["a"]}]
    bulk(cluster, index, lines)
    return texts


def true_scores(texts: dict[str, str], query: str, model: HashingEncoder) -> dict[str, float]:
    """Give every document's best passage's score, (1 + cosine) / 2, computed here."""
    vector = model.encode_queries([query])[0]
    scores = {}
    for doc_id, text in texts.items():
        parts = [text[a:b] for a, b in split(text, model, WINDOWS).spans]
        if parts:
            scores[doc_id] = float((1 + (model.encode_queries(parts) @ vector).max()) / 2)
    return scores


def stored(cluster: Cluster, index: str, doc_id: str) -> list[dict[str, Any]]:
    found = cluster.request("GET", path_of(index, "_doc", doc_id))
    return list(found["_source"].get("hybridr_vector", []))


@pytest.fixture
def filled(cluster: Cluster, index_name: str) -> tuple[str, dict[str, str]]:
    texts = make(cluster, index_name)
    done = reindex(cluster, index_name, encoder(), PASSAGES)
    assert (done.documents, done.encoded, done.without_text) == (COUNT + 1, COUNT, 1)
    return done.destination, texts


@pytest.fixture(scope="module")
def searchable(cluster: Cluster) -> Iterator[tuple[str, dict[str, str]]]:
    """Give an index that no test changes, and its texts."""
    texts = make(cluster, "t-passages")
    reindex(cluster, "t-passages", encoder(), PASSAGES)
    yield "t-passages", texts
    for info in cluster.indices("t-passages*"):
        cluster.request("DELETE", path_of(info.name))


@pytest.mark.node
def test_each_document_holds_the_vectors_of_its_passages(
    cluster: Cluster, index_name: str, filled: tuple[str, dict[str, str]]
) -> None:
    destination, texts = filled
    for doc_id in ("d0", "d1", "d19", "empty"):
        held = stored(cluster, destination, doc_id)
        spans = split(texts[doc_id], encoder(), WINDOWS).spans
        assert [(part["start"], part["end"]) for part in held] == list(spans)
        for part in held:
            [exact] = encoder().encode_documents([texts[doc_id][part["start"] : part["end"]]])
            assert part["vector"] == pytest.approx(exact, abs=1e-6)
    assert sources(cluster, destination) == sources(cluster, index_name)
    body = {"query": {"ids": {"values": ["d1"]}}, "_source": {"excludes": ["hybridr_vector"]}}
    [hit] = cluster.search(destination, body)["hits"]["hits"]
    assert hit["_source"] == {"text": texts["d1"], "price": 1.5, "tags": ["a"]}
    info = cluster.index_info(destination)
    assert info.record.passages == Windows(tokens=22, overlap=4, most=64)
    assert set(info.mappings["properties"]["hybridr_vector"]["properties"]) == {"vector", "start", "end"}
    assert [held.passages for held in standing(cluster, index_name).holdings] == [WINDOWS]


@pytest.mark.node
@pytest.mark.parametrize("complete", [False, True])
def test_search_gives_the_right_passage(
    cluster: Cluster, searchable: tuple[str, dict[str, str]], complete: bool
) -> None:
    index_name, texts = searchable
    searches = [Search(cluster, index_name, encoder(), mode) for mode in ("dense", "hybrid")]
    searches = [Search(cluster, index_name, encoder(), settings=COMPLETED)] if complete else searches
    for search in searches:
        hit = search(secret(19), 3)[0]
        assert hit.doc_id == "d19"
        assert secret(19) in hit.text
        assert hit.passage
        assert hit.text == texts["d19"][slice(*hit.passage)]
        assert len(hit.text.split()) <= 20 < len(texts["d19"].split())


@pytest.mark.node
def test_a_short_document_and_a_lexical_hit_show_highlights(
    cluster: Cluster, searchable: tuple[str, dict[str, str]]
) -> None:
    index_name, _ = searchable
    for mode in ("dense", "hybrid"):
        hit = Search(cluster, index_name, encoder(), mode)(text_number(6), 1)[0]
        assert (hit.doc_id, hit.passage) == ("d6", None)
        assert "<em>n6</em>" in hit.text
    hit = Search(cluster, index_name, mode="lexical")("s19", 1)[0]
    assert (hit.doc_id, hit.passage) == ("d19", None)
    assert "<em>s19</em>" in hit.text


@pytest.mark.node
def test_scores_are_those_of_the_best_passage(
    cluster: Cluster, searchable: tuple[str, dict[str, str]]
) -> None:
    index_name, texts = searchable
    for number in (1, 6, 19, 40):
        query = f"{WORDS[number % 20]} {secret(number)}"
        expected = true_scores(texts, query, encoder())
        found = Search(cluster, index_name, encoder(), "dense").run([Query("q", query)], 20)["q"]
        assert found == pytest.approx({doc_id: expected[doc_id] for doc_id in found}, abs=1e-5)
        assert min(found.values()) >= sorted(expected.values())[-20] - 1e-5
        hybrid = {hit.doc_id: hit.dense_score for hit in Search(cluster, index_name, encoder())(query, 20)}
        assert hybrid == pytest.approx({doc_id: expected.get(doc_id) for doc_id in hybrid}, abs=1e-5)


@pytest.mark.node
def test_completion_gives_every_candidate_its_best_passages_score(
    cluster: Cluster, searchable: tuple[str, dict[str, str]]
) -> None:
    index_name, texts = searchable
    query = f"{secret(7)} {text_number(6)}"
    search = Search(cluster, index_name, encoder(), settings=COMPLETED.model_copy(update={"depth": 10}))
    candidates = search.candidates([query])[0]
    assert len(candidates) > 10
    expected = true_scores(texts, query, encoder())
    assert {one.doc_id: one.dense for one in candidates} == pytest.approx(
        {one.doc_id: expected[one.doc_id] for one in candidates}, abs=1e-5
    )


@pytest.mark.node
def test_true_scores_and_passages_in_several_groups(cluster: Cluster, index_name: str) -> None:
    texts = make(cluster, index_name)
    reindex(cluster, index_name, encoder(), PASSAGES.model_copy(update={"max_passages": 5000}))
    hits = Search(cluster, index_name, encoder(), settings=COMPLETED)(secret(19), 15)
    expected = true_scores(texts, secret(19), encoder())
    assert {hit.doc_id: hit.dense_score for hit in hits} == pytest.approx(
        {hit.doc_id: expected[hit.doc_id] for hit in hits}, abs=1e-5
    )
    assert hits[0].doc_id == "d19"
    for hit in hits:
        assert hit.passage is None or hit.text == texts[hit.doc_id][slice(*hit.passage)]
    assert sum(hit.passage is not None for hit in hits) > 10


@pytest.mark.node
def test_many_alike_passages_of_one_document_crowd_nothing_out(cluster: Cluster, index_name: str) -> None:
    make(cluster, index_name, 30)
    alike = " ".join(" ".join(["zebra"] * 19) + f" x{number}" for number in range(50))
    other = "zebra " * 12 + "anchor basket candle"
    lines: list[dict[str, Any]] = [{"index": {"_id": "alike"}}, {"text": alike}]
    for number in range(9):
        lines += [{"index": {"_id": f"other{number}"}}, {"text": f"{other} o{number}"}]
    bulk(cluster, index_name, lines)
    done = reindex(cluster, index_name, encoder(), PASSAGES)
    assert len(stored(cluster, done.destination, "alike")) >= 50
    found = Search(cluster, index_name, encoder(), "dense", settings=SearchSettings(depth=10)).run(
        [Query("q", "zebra")], 10
    )["q"]
    assert next(iter(found)) == "alike"
    assert set(found) == {"alike", *(f"other{number}" for number in range(9))}


@pytest.mark.node
def test_running_again_encodes_nothing_and_another_split_is_another_index(
    cluster: Cluster, index_name: str, filled: tuple[str, dict[str, str]]
) -> None:
    destination, _ = filled
    model = encoder()
    again = reindex(cluster, index_name, model, PASSAGES)
    assert (again.destination, again.encoded, again.skipped) == (destination, 0, COUNT + 1)
    other = PASSAGES.model_copy(update={"passage_overlap": 5})
    names = {
        reindex(cluster, index_name, encoder(), settings).destination
        for settings in (other, ReindexSettings(max_tokens=22), PASSAGES)
    }
    assert len(names) == 3
    assert destination in names


@pytest.mark.node
def test_what_the_source_and_clients_change_is_split_again(
    cluster: Cluster, index_name: str, filled: tuple[str, dict[str, str]]
) -> None:
    destination, texts = filled
    put_documents(cluster, index_name, [1], suffix=" now it is short")
    changed = " ".join(reversed(texts["d4"].split()))
    cluster.request(
        "POST", path_of(destination, "_update", "d4"), {"doc": {"text": changed}}, {"refresh": "true"}
    )
    cluster.request("PUT", path_of(destination, "_doc", "new"), {"text": long_text(77)}, {"refresh": "true"})
    cluster.request("POST", path_of(destination, "_update", "d7"), {"doc": {"text": ""}}, {"refresh": "true"})
    assert stored(cluster, destination, "d4") != [], "a partial update keeps the vectors"
    model = encoder()
    done = sync(cluster, index_name, model)
    assert (done.copied, done.renewed) == (1, 3)
    wanted = {"d1": text_number(1) + " now it is short", "d4": changed, "new": long_text(77), "d7": ""}
    for doc_id, text in wanted.items():
        held = stored(cluster, destination, doc_id)
        spans = split(text, model, WINDOWS).spans
        assert [(part["start"], part["end"]) for part in held] == list(spans)
        for part in held:
            [exact] = model.encode_documents([text[part["start"] : part["end"]]])
            assert part["vector"] == pytest.approx(exact, abs=1e-6)
    cluster.refresh(destination)
    hit = Search(cluster, index_name, encoder(), "dense")(secret(77), 1)[0]
    assert (hit.doc_id, secret(77) in hit.text) == ("new", True)


def turned(held: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*held[:-1], held[-1] | {"vector": held[0]["vector"]}]


CHANGES = {
    "a vector": turned,
    "an offset": lambda held: [held[0] | {"end": held[0]["end"] - 1}, *held[1:]],
    "one too few": lambda held: held[:-1],
    "one twice": lambda held: [*held, held[-1]],
    "all gone": lambda held: [],
}


@pytest.mark.node
@pytest.mark.parametrize("change", CHANGES)
def test_verify_finds_one_changed_passage(
    cluster: Cluster, index_name: str, filled: tuple[str, dict[str, str]], change: str
) -> None:
    destination, _ = filled
    assert verify(cluster, destination, encoder()).ok
    body = {
        "hybridr_vector": CHANGES[change](stored(cluster, destination, "d19")),
        "hybridr_seq_no": cluster.request("GET", path_of(index_name, "_doc", "d19"))["_seq_no"],
        "hybridr_encoder": encoder().fingerprint,
    }
    cluster.request("POST", path_of(destination, "_update", "d19"), {"doc": body}, {"refresh": "true"})
    findings = {found.name: found.differing for found in verify(cluster, destination, encoder()).findings}
    assert findings["vector"] == ["d19"]
    assert findings["document"] == []


@pytest.mark.node
@pytest.mark.parametrize("form", ["byte", "sq", "on_disk"])
def test_smaller_vectors_and_shards(cluster: Cluster, index_name: str, form: str) -> None:
    make(cluster, index_name, number_of_shards=2)
    done = reindex(cluster, index_name, encoder(), PASSAGES.model_copy(update={"vectors": form}))
    assert verify(cluster, done.destination, encoder()).ok
    for mode in ("dense", "hybrid"):
        hit = Search(cluster, index_name, encoder(), mode)(secret(19), 1)[0]
        assert (hit.doc_id, secret(19) in hit.text) == ("d19", True)
    if form == "byte":
        values = [value for part in stored(cluster, done.destination, "d19") for value in part["vector"]]
        assert all(value == int(value) for value in values)
        assert max(map(abs, values)) == 127


@pytest.mark.node
def test_nested_fields_of_the_user_stay(cluster: Cluster, index_name: str) -> None:
    comments = {"type": "nested", "properties": {"by": {"type": "keyword"}, "words": {"type": "text"}}}
    properties = {"text": {"type": "text"}, "notes": comments}
    cluster.request("PUT", path_of(index_name), {"mappings": {"properties": properties}})
    lines: list[dict[str, Any]] = []
    for number in range(40):
        notes = [{"by": f"p{n}", "words": f"note {n}"} for n in range(number % 4)]
        lines += [{"index": {"_id": f"d{number}"}}, {"text": long_text(number), "notes": notes}]
    bulk(cluster, index_name, lines)
    done = reindex(cluster, index_name, encoder(), PASSAGES.model_copy(update={"fields": ("text",)}))
    assert sources(cluster, done.destination) == sources(cluster, index_name)
    query = {"nested": {"path": "notes", "query": {"term": {"notes.by": "p2"}}}}
    assert cluster.search(done.destination, {"query": query})["hits"]["total"]["value"] == 10
    assert sync(cluster, index_name, encoder()).copied == 0


@pytest.mark.node
def test_more_text_than_the_most_passages_reach_is_counted(
    cluster: Cluster, index_name: str, capsys: pytest.CaptureFixture[str], minilm_encoder_folder: Path
) -> None:
    texts = make(cluster, index_name)
    done = reindex(cluster, index_name, encoder(), PASSAGES.model_copy(update={"max_passages": 6}))
    long = {doc_id for doc_id, text in texts.items() if len(split(text, encoder(), WINDOWS).spans) > 6}
    assert done.shortened == len(long) > 10
    assert verify(cluster, done.destination, encoder()).ok
    assert max(len(stored(cluster, done.destination, doc_id)) for doc_id in long) == 6
    command = ["reindex", index_name, "--encoder", str(minilm_encoder_folder), "--url", cluster.url]
    few = ["--passages", "--max-tokens", "64", "--passage-overlap", "8", "--max-passages", "1"]
    assert hybridr_cli.main([*command, *few]) == 0
    assert "documents go on behind their last passage" in capsys.readouterr().out


@pytest.mark.node
def test_an_index_made_before_there_were_passages_is_still_known(cluster: Cluster, index_name: str) -> None:
    fill_index(cluster, index_name, 5)
    done = reindex(cluster, index_name, encoder())
    info = cluster.index_info(done.destination)
    old = {name: value for name, value in info.record.to_json().items() if name != "passages"}
    meta = {"_meta": {"hybridr": old}}
    cluster.request("PUT", path_of(done.destination, "_mapping"), meta)
    assert sync(cluster, index_name, encoder()).copied == 0
    assert verify(cluster, index_name, encoder()).ok
    again = reindex(cluster, index_name, encoder())
    assert (again.destination, again.encoded) == (done.destination, 0)


@pytest.mark.node
def test_the_dry_run_counts_vectors(
    cluster: Cluster, index_name: str, minilm_encoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = make(cluster, index_name)
    command = [
        "reindex",
        index_name,
        "--encoder",
        str(minilm_encoder_folder),
        "--url",
        cluster.url,
        "--dry-run",
    ]
    passages = ["--passages", "--max-tokens", "64", "--passage-overlap", "8"]
    plans = []
    for options in ([], passages):
        assert hybridr_cli.main([*command, *options, "--json"]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    whole, parts = plans
    from hybridr import load_encoder

    model = load_encoder(minilm_encoder_folder)
    exact = sum(len(split(text, model, Windows(64, 8, 64)).spans) for text in texts.values())
    assert (whole["vector_count"], parts["vector_count"]) == (COUNT + 1, exact)
    assert exact > 2 * COUNT
    assert parts["vector_bytes"] == pytest.approx(whole["vector_bytes"] * exact / (COUNT + 1), rel=0.01)
    assert parts["passages"] == {"tokens": 64, "overlap": 8, "most": 64}
    assert parts["seconds"] > 0
    assert hybridr_cli.main([*command, *passages]) == 0
    assert f"passages: about {exact:,}" in capsys.readouterr().out
    assert not cluster.indices(f"{index_name}-hybridr-*")


@pytest.mark.node
def test_the_command_line_searches_passages(
    cluster: Cluster, index_name: str, minilm_encoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filler = " ".join("The committee met again and talked about the roof of the library." for _ in range(60))
    text = f"{filler} Volcanoes erupt when magma rises through the crust. {filler}"
    fill_index(cluster, index_name, 20)
    bulk(cluster, index_name, [{"index": {"_id": "long"}}, {"text": text}])
    on = ["--url", cluster.url, "--encoder", str(minilm_encoder_folder)]
    assert hybridr_cli.main(["reindex", index_name, *on, "--passages", "--passage-overlap", "16"]) == 0
    capsys.readouterr()
    question = "why does lava come out of the earth"
    for mode in ("dense", "hybrid"):
        assert hybridr_cli.main(["search", index_name, question, *on, "--mode", mode, "--json"]) == 0
        first = json.loads(capsys.readouterr().out)["hits"][0]
        assert first["doc_id"] == "long"
        assert "Volcanoes erupt" in first["text"]
        assert text[slice(*first["passage"])] == first["text"] != text
    assert hybridr_cli.main(["status", index_name, "--url", cluster.url]) == 0
    assert "passages of 256 tokens, 16 shared, at most 64" in capsys.readouterr().out


@pytest.mark.node
@pytest.mark.parametrize(
    ("changes", "error"),
    [({"passage_overlap": 11}, SettingsError), ({"vectors": "byte", "engine": "faiss"}, SettingsError)],
)
def test_refused_before_anything_is_sent(
    cluster: Cluster, index_name: str, changes: dict[str, Any], error: type[Exception]
) -> None:
    fill_index(cluster, index_name, 3)
    with pytest.raises(error):
        reindex(cluster, index_name, encoder(), PASSAGES.model_copy(update=changes))
    assert not cluster.indices(f"{index_name}-hybridr-*")


@pytest.mark.node
def test_an_encoder_that_cannot_split_is_refused(cluster: Cluster, index_name: str) -> None:
    class Opaque:
        dim, similarity, max_tokens, fingerprint = 16, "cosine", 256, "0" * 64

    fill_index(cluster, index_name, 3)
    with pytest.raises(ModelError, match="Opaque does not tell where its tokens are"):
        reindex(cluster, index_name, Opaque(), PASSAGES)  # type: ignore[arg-type]
    assert not cluster.indices(f"{index_name}-hybridr-*")


@pytest.mark.node
def test_a_document_with_too_many_nested_objects_is_refused_by_name(
    cluster: Cluster, index_name: str
) -> None:
    make(cluster, index_name, 4, **{"mapping.nested_objects.limit": 3})
    done = reindex(cluster, index_name, encoder(), PASSAGES)
    assert done.rejected == 2
    assert not done.switched
    assert done.rejects_file
    reasons = {json.loads(line)["reason"] for line in done.rejects_file.read_text().splitlines()}
    assert all("nested" in reason for reason in reasons)


@pytest.mark.secure
def test_on_the_older_version(secure_node: NodeState) -> None:
    """2.19 leaves inner hits out of hybrid answers: hybridr asks for the passages itself."""
    cluster = connect(secure_node.url)
    texts = make(cluster, "passages")
    done = reindex(cluster, "passages", encoder(), PASSAGES)
    assert sources(cluster, done.destination) == sources(cluster, "passages")
    searches = [Search(cluster, "passages", encoder(), mode) for mode in ("dense", "hybrid")]
    for search in [*searches, Search(cluster, "passages", encoder(), settings=COMPLETED)]:
        hit = search(secret(19), 3)[0]
        assert (hit.doc_id, secret(19) in hit.text) == ("d19", True)
        assert hit.passage
        assert hit.text == texts["d19"][slice(*hit.passage)]
        assert hit.dense_score == pytest.approx(true_scores(texts, secret(19), encoder())["d19"], abs=1e-5)
    body = {"doc": {"text": long_text(99)}}
    cluster.request("POST", path_of(done.destination, "_update", "d4"), body, {"refresh": "true"})
    assert sync(cluster, "passages", encoder()).renewed == 1
    cluster.refresh(done.destination)
    assert Search(cluster, "passages", encoder(), "dense")(secret(99), 1)[0].doc_id == "d4"
