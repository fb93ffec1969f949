"""Long documents as passages on a real node: filled, kept current, verified, refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr import ReindexSettings, Search, load_encoder
from hybridr.cluster.connection import Cluster, path_of
from hybridr.encoders.passages import split
from hybridr.errors import ModelError, SettingsError
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.verification import verify
from hybridr.records import Windows
from hybridr.status.standing import status
from support.corpus import create, fill_index, put, put_documents, sources, text_number, update
from support.long_documents import COUNT, PASSAGES, WINDOWS, encoder, long_text, make, secret, stored


@pytest.fixture
def filled(cluster: Cluster, index_name: str) -> tuple[str, dict[str, str]]:
    texts = make(cluster, index_name)
    done = reindex(cluster, index_name, encoder(), PASSAGES)
    assert (done.documents, done.encoded, done.without_text) == (COUNT + 1, COUNT, 1)
    return done.destination, texts


def assert_passages(cluster: Cluster, index: str, texts: dict[str, str]) -> None:
    """Each document has the vectors of its text's passages, and where these are."""
    for doc_id, text in texts.items():
        held = stored(cluster, index, doc_id)
        assert [(part["start"], part["end"]) for part in held] == list(split(text, encoder(), WINDOWS).spans)
        for part in held:
            [exact] = encoder().encode_documents([text[part["start"] : part["end"]]])
            assert part["vector"] == pytest.approx(exact, abs=1e-6)


def test_each_document_holds_the_vectors_of_its_passages_once(cluster, index_name, filled):
    destination, texts = filled
    assert_passages(cluster, destination, {one: texts[one] for one in ("d0", "d1", "d19", "empty")})
    assert sources(cluster, destination) == sources(cluster, index_name)
    body = {"query": {"ids": {"values": ["d1"]}}, "_source": {"excludes": ["hybridr_vector"]}}
    [hit] = cluster.search(destination, body)["hits"]["hits"]
    assert hit["_source"] == {"text": texts["d1"], "price": 1.5, "tags": ["a"]}
    info = cluster.index_info(destination)
    assert info.record.passages == Windows(tokens=22, overlap=4, most=64)
    assert set(info.mappings["properties"]["hybridr_vector"]["properties"]) == {"vector", "start", "end"}
    assert [held.passages for held in status(cluster, index_name).holdings] == [WINDOWS]

    # Running again encodes nothing and another split is another index.
    again = reindex(cluster, index_name, encoder(), PASSAGES)
    assert (again.destination, again.encoded, again.skipped) == (destination, 0, COUNT + 1)
    other = PASSAGES.model_copy(update={"passage_overlap": 5})
    names = {
        reindex(cluster, index_name, encoder(), settings).destination
        for settings in (other, ReindexSettings(max_tokens=22), PASSAGES)
    }
    assert len(names) == 3
    assert destination in names


def test_what_the_source_and_clients_change_is_split_again(cluster, index_name, filled):
    destination, texts = filled
    put_documents(cluster, index_name, [1], suffix=" now it is short")
    changed = " ".join(reversed(texts["d4"].split()))
    update(cluster, destination, "d4", text=changed)
    put(cluster, destination, {"new": {"text": long_text(77)}})
    update(cluster, destination, "d7", text="")
    assert stored(cluster, destination, "d4") != [], "a partial update keeps the vectors"
    done = sync(cluster, index_name, encoder())
    assert (done.copied, done.renewed) == (1, 3)
    wanted = {"d1": text_number(1) + " now it is short", "d4": changed, "new": long_text(77), "d7": ""}
    assert_passages(cluster, destination, wanted)
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


def test_verify_finds_one_changed_passage(cluster, index_name, filled):
    destination, _ = filled
    assert verify(cluster, destination, encoder()).ok
    held = stored(cluster, destination, "d19")
    marks = {
        "hybridr_seq_no": cluster.request("GET", path_of(index_name, "_doc", "d19"))["_seq_no"],
        "hybridr_encoder": encoder().fingerprint,
    }
    for change, changed in CHANGES.items():
        update(cluster, destination, "d19", hybridr_vector=changed(held), **marks)
        findings = {one.name: one.differing for one in verify(cluster, destination, encoder()).findings}
        assert (findings["vector"], findings["document"]) == (["d19"], []), change


@pytest.mark.parametrize("form", ["byte", "on_disk"])
def test_smaller_vectors_and_shards(cluster, index_name, form):
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


def test_nested_fields_of_the_user_stay(cluster, index_name):
    comments = {"type": "nested", "properties": {"by": {"type": "keyword"}, "words": {"type": "text"}}}
    create(cluster, index_name, {"text": {"type": "text"}, "notes": comments})
    notes = [{"by": f"p{n}", "words": f"note {n}"} for n in range(3)]
    documents = {f"d{n}": {"text": long_text(n), "notes": notes[: n % 4]} for n in range(40)}
    put(cluster, index_name, documents)
    done = reindex(cluster, index_name, encoder(), PASSAGES.model_copy(update={"fields": ("text",)}))
    assert sources(cluster, done.destination) == sources(cluster, index_name)
    query = {"nested": {"path": "notes", "query": {"term": {"notes.by": "p2"}}}}
    assert cluster.search(done.destination, {"query": query})["hits"]["total"]["value"] == 10
    assert sync(cluster, index_name, encoder()).copied == 0


def test_more_text_than_the_most_passages_reach_is_counted(cluster, index_name, cli, monkeypatch, tiny):
    texts = make(cluster, index_name)
    done = reindex(cluster, index_name, encoder(), PASSAGES.model_copy(update={"max_passages": 6}))
    long = {doc_id for doc_id, text in texts.items() if len(split(text, encoder(), WINDOWS).spans) > 6}
    assert done.shortened == len(long) > 10
    assert verify(cluster, done.destination, encoder()).ok
    assert max(len(stored(cluster, done.destination, doc_id)) for doc_id in long) == 6
    monkeypatch.setenv("HYBRIDR_REINDEX_MAX_PASSAGES", "1")
    monkeypatch.setenv("HYBRIDR_REINDEX_PASSAGE_OVERLAP", "8")
    said = cli(cluster, f"reindex {index_name} --encoder {tiny} --passages --max-tokens 32")
    assert "documents go on behind their last passage" in said.out


def test_the_dry_run_counts_vectors(cluster, index_name, tiny, cli, monkeypatch):
    texts = make(cluster, index_name)
    monkeypatch.setenv("HYBRIDR_REINDEX_PASSAGE_OVERLAP", "8")
    command = f"reindex {index_name} --encoder {tiny} --dry-run"
    passages = "--passages --max-tokens 32"
    whole, parts = (cli(cluster, f"{command} {options} --json").json for options in ("", passages))
    exact = sum(len(split(text, load_encoder(tiny), Windows(32, 8, 64)).spans) for text in texts.values())
    assert (whole["vector_count"], parts["vector_count"]) == (COUNT + 1, exact)
    assert exact > 2 * COUNT
    assert parts["vector_bytes"] == pytest.approx(whole["vector_bytes"] * exact / (COUNT + 1), rel=0.01)
    assert parts["passages"] == {"tokens": 32, "overlap": 8, "most": 64}
    assert parts["seconds"] > 0
    assert f"passages: about {exact:,}" in cli(cluster, f"{command} {passages}").out
    assert not cluster.indices(f"{index_name}-hybridr-*")


def test_refused_before_anything_is_sent(cluster, index_name):
    fill_index(cluster, index_name, 3)
    for changes in ({"passage_overlap": 11}, {"vectors": "byte", "engine": "faiss"}):
        with pytest.raises(SettingsError):
            reindex(cluster, index_name, encoder(), PASSAGES.model_copy(update=changes))
    assert not cluster.indices(f"{index_name}-hybridr-*")

    # An encoder that cannot split is refused.
    class Opaque:
        dim, similarity, max_tokens, fingerprint = 16, "cosine", 256, "0" * 64

    with pytest.raises(ModelError, match="Opaque does not tell where its tokens are"):
        reindex(cluster, index_name, Opaque(), PASSAGES)  # type: ignore[arg-type]
    assert not cluster.indices(f"{index_name}-hybridr-*")


def test_a_document_with_too_many_nested_objects_is_refused_by_name(cluster, index_name):
    make(cluster, index_name, 4)
    destination = reindex(cluster, index_name, encoder(), PASSAGES).destination
    limit = {"index.mapping.nested_objects.limit": 1}
    cluster.request("PUT", path_of(destination, "_settings"), limit)
    put(cluster, index_name, {"d1": {"text": long_text(5)}})
    done = reindex(cluster, index_name, encoder(), PASSAGES)
    assert done.rejected == 1
    reasons = {json.loads(line)["reason"] for line in done.rejects_file.read_text().splitlines()}
    assert all("nested" in reason for reason in reasons)
