"""`reindex --semantic`: text, and semantic fields of another model, become fields that the cluster embeds by
hybridr's encoder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings
from hybridr.cluster import remote_models
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.remote_models import search_ids
from hybridr.cluster.semantic import embedded_texts, plain_source, unfolded
from hybridr.errors import (
    ClusterError,
    DataError,
    FingerprintMismatch,
    HybridrError,
    SettingsError,
    Unreachable,
)
from hybridr.indexing import semantic_models
from hybridr.indexing.planning import added_fields
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.semantic_models import models_name
from hybridr.indexing.targets import beside
from hybridr.indexing.verification import verify
from hybridr.status.leftovers import rollback
from hybridr.status.standing import remove, status
from support.corpus import bulk, create, drop_indices, put, text_number
from support.deployed import taken_for
from support.hashing import HashingEncoder
from support.meanings import LUCENE, Meanings, another_model, serving, stored, with_model

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX, ALIAS, FIRST = "wishes", "wishes-hybridr", "wishes-hybridr-1"
LONG = "basket and candle " * 400
TEXT = {"type": "text", "analyzer": "english", "fields": {"raw": {"type": "keyword", "ignore_above": 99}}}


@pytest.fixture(scope="module")
def model(ml_cluster: Cluster) -> Iterator[Meanings]:
    with with_model(ml_cluster) as meanings:
        yield meanings


@pytest.fixture
def wishes(model: Meanings) -> Iterator[Meanings]:
    yield model
    for info in model.cluster.indices(f"{INDEX}*"):
        remote_models.send_deletions(
            model.cluster, remote_models.pipeline_model_deletions(model.cluster, models_name(info.name))
        )
    drop_indices(model.cluster, f"{INDEX}*,.hybridr-*-{INDEX}*")


def prose(semantic: dict[str, Any]) -> dict[str, Any]:
    """Texts in chunks, of one line to many; nulls, missing fields, arrays elsewhere."""
    return {"body": TEXT | semantic, "title": {"type": "text"}, "tags": {"type": "keyword"}}


def objects(semantic: dict[str, Any]) -> dict[str, Any]:
    """Texts in objects and by dotted names; others are copied."""
    note = {"type": "text", "norms": False} | semantic
    return {
        "part": {"properties": {"note": note, "size": {"type": "long"}}},
        "title": {"type": "text", "copy_to": "all"},
        "all": {"type": "text"},
        "sets": {"properties": {"name": {"type": "keyword"}}},
    }


def mixed(semantic: dict[str, Any]) -> dict[str, Any]:
    """A field of words that the copies of others fill too, a keyword, a capital letter."""
    own = {"raw_field_type": "keyword", "semantic_info_field_name": "made"} if semantic else {}
    return {
        "theText": {"type": "text"} | semantic,
        "code": {"type": "keyword", "ignore_above": 256} | semantic | own,
        "title": {"type": "text", "copy_to": "theText"},
        "other": {"type": "text"} | semantic,
    }


def documents(mapping: Any) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for number in range(12):
        text = text_number(number)
        if mapping is prose:
            made[f"d{number}"] = {"title": f"title {number}", "body": text, "tags": ["a", "b"]}
        elif mapping is mixed:
            made[f"d{number}"] = {"theText": text, "code": f"code {number}", "title": "t", "other": text}
        elif number % 3:
            made[f"d{number}"] = {"part": {"note": text, "size": number}, "sets": [{"name": "x"}] * number}
        else:
            made[f"d{number}"] = {"part.note": text, "part": {"size": 3}, "sets.name": ["x"], "title": "two"}
    field = {prose: "body", objects: "part", mixed: "theText"}[mapping]
    made |= {"null": {field: None, "title": "of nothing"}, "none": {"title": "nothing", "new.name": [1, 2]}}
    made["long"] = {"part": [{"note": LONG}]} if mapping is objects else {field: LONG}
    return made


def reindexed(wishes: Meanings, **settings: Any) -> ReindexSettings:
    """Make the index of prose with vectors and a semantic field; give its settings."""
    fill(wishes, prose, False)
    chosen = ReindexSettings(semantic=("body",), server=wishes.server.url, **settings)
    assert reindex(wishes.cluster, INDEX, HashingEncoder(), chosen).switched
    return chosen


FIELDS: dict[Any, tuple[str, ...]] = {prose: ("body",), objects: ("part.note",), mixed: ("theText", "code")}


def fill(wishes: Meanings, mapping: Any, former: bool) -> dict[str, dict[str, Any]]:
    """Make the index, its fields of text or of semantic fields by the other model; give it as stored."""
    semantic: dict[str, Any] = {}
    if former:
        semantic = {"type": "semantic", "model_id": wishes.model_id, "dense_embedding_config": LUCENE}
        semantic |= {"chunking": True} if mapping is prose else {}
    shards = 2 if mapping is objects else 1
    settings = {"index.knn": former, "number_of_replicas": 0, "number_of_shards": shards}
    create(wishes.cluster, INDEX, mapping(semantic), settings)
    sources = documents(mapping)
    for source in sources.values():
        if former and "part.note" in source:
            del source["part"]  # of both forms a cluster that embeds keeps one
    put(wishes.cluster, INDEX, sources)
    return stored(wishes.cluster, INDEX)


def made(cluster: Cluster, index: str = FIRST) -> list[str]:
    """Give all that ml-commons keeps for an index, but for connectors that it takes for another model's."""
    models = cluster.request("POST", f"{remote_models.ML}/models/_search", {"size": 100})["hits"]["hits"]
    used = {hit["_source"]["connector_id"] for hit in models if "connector_id" in hit["_source"]}
    name = models_name(index)
    connectors = [
        connector
        for connector in search_ids(cluster, "connectors", name)
        if connector in used or not any(taken_for(connector, other) for other in used)
    ]
    return [*search_ids(cluster, "models", name), *connectors, *search_ids(cluster, "model_groups", name)]


def names_in(cluster: Cluster) -> list[str]:
    return sorted(info.name for info in cluster.indices(f"{INDEX}*"))


def neural(cluster: Cluster, field: str, text: str) -> list[tuple[str, float]]:
    """Ask as a client does; give ids and scores."""
    query = {"neural": {field: {"query_text": text, "k": 20}}}
    body = {"size": 5, "_source": False, "query": query}
    hits = cluster.request("POST", path_of(ALIAS, "_search"), body)["hits"]["hits"]
    return [(hit["_id"], hit["_score"]) for hit in hits]


def by_encoder(encoder: HashingEncoder, texts: dict[str, list[str]], query: str) -> dict[str, float]:
    """Give the scores of the documents by the encoder itself: of the best part of each."""
    (asked,) = encoder.encode_queries([query])
    best = {doc_id: float(np.max(encoder.encode_documents(own) @ asked)) for doc_id, own in texts.items()}
    return {doc_id: (1 + cosine) / 2 for doc_id, cosine in best.items()}


@pytest.mark.parametrize(("mapping", "former"), [(prose, True), (objects, False), (mixed, True)])
def test_fields_ask_our_encoder_and_all_comes_back(wishes, mapping, former):
    cluster, encoder, server = wishes.cluster, HashingEncoder(), wishes.server
    before = fill(wishes, mapping, former)
    settings = ReindexSettings(
        semantic=FIELDS[mapping],
        server=server.url,
        passages=mapping is prose,
        replace_semantic=mapping is mixed,
    )
    asked = len(server.received)
    todo = plan(cluster, INDEX, encoder, settings)
    assert todo.requests[0]["path"].endswith("/connectors/_create")
    assert "***" in str(todo.requests[0]["body"]["credential"])
    assert len(server.received) == asked + 2  # who it is; no text
    assert (names_in(cluster), made(cluster)) == ([INDEX], [])

    done = reindex(cluster, INDEX, encoder, settings)
    assert (done.switched, done.rejected, done.documents) == (True, 0, len(before))
    checked = verify(cluster, INDEX, encoder)
    assert checked.ok, checked.problems()
    assert {"embedding", "semantic field without an embedding by its model"} <= {
        finding.name for finding in checked.findings
    }
    copies, source, info = stored(cluster, FIRST), cluster.index_info(INDEX), cluster.index_info(FIRST)
    assert {doc_id: plain_source(copy, info.semantic) for doc_id, copy in copies.items()} == {
        doc_id: unfolded(plain_source(document, source.semantic)) for doc_id, document in before.items()
    }
    assert set(info.semantic) == set(FIELDS[mapping])
    for name in FIELDS[mapping]:
        parts: dict[str, list[str]] = {}
        for doc_id, copy in copies.items():
            for own, held in embedded_texts(copy, name, info.semantic[name]):
                parts[doc_id] = [part["text"] for part in held.get("chunks", [{"text": own}])]
        assert len(parts) in (12, 13)
        assert mapping is not prose or len(parts["long"]) > 1
        query = "candle" if name != "code" else "code 3"
        expected, hits = by_encoder(encoder, parts, query), neural(cluster, name, query)
        assert sorted(expected.values(), reverse=True)[:5] == pytest.approx([s for _, s in hits], abs=1e-4)
        assert {doc_id: expected[doc_id] for doc_id, _ in hits} == pytest.approx(dict(hits), abs=1e-4)
    [held] = status(cluster, INDEX).holdings
    assert f"ask {server.url} (whole)" in held.representations[-1]
    assert len(made(cluster)) >= 4
    hidden = [] if former else [f"{name}_semantic_info" for name in FIELDS[mapping]]
    assert added_fields(info.record) == ["hybridr_vector", *hidden]
    assert todo.answer_note.endswith(json.dumps({"excludes": ["hybridr_vector", *hidden]}))

    again = reindex(cluster, INDEX, encoder, settings)
    assert (again.destination, again.encoded, again.without_text) == (FIRST, 0, 0)
    field = FIELDS[mapping][0]
    text: dict[str, Any] = {"part": {"note": "a zephyr"}} if mapping is objects else {field: "a zephyr"}
    bulk(cluster, ALIAS, [{"index": {"_id": "new"}}, text])
    assert neural(cluster, field, "a zephyr")[0][0] == "new"
    assert sync(cluster, INDEX, encoder, settings).renewed == 1
    checked = verify(cluster, INDEX, encoder)
    assert checked.ok, checked.problems()
    assert rollback(cluster, INDEX, copy_back=True)["returned"]["changed"] == 1
    after = stored(cluster, INDEX)
    assert plain_source(after.pop("new"), source.semantic) == text
    assert after == before

    assert remove(cluster, INDEX, discard=True)["indices"] == [FIRST]
    assert (names_in(cluster), made(cluster)) == ([INDEX], [])
    assert stored(cluster, INDEX).keys() == {*before, "new"}


def test_what_holds_no_single_text_is_refused_alone(wishes):
    """The cluster embeds a request together, and refuses all of it where it cannot embed one document."""
    cluster, encoder = wishes.cluster, HashingEncoder()
    settings = ReindexSettings(semantic=("body",), server=wishes.server.url)
    before = fill(wishes, prose, False)
    odd = {"list": ["one", "two"], "number": 12, "empty": "", "blank": "  ", "none": []}
    put(cluster, INDEX, {f"odd-{name}": {"body": value} for name, value in odd.items()})
    done = reindex(cluster, INDEX, encoder, settings)
    assert (done.switched, done.rejected) == (False, len(odd))
    assert "to be a string but found" in done.rejects_file.read_text()
    assert stored(cluster, FIRST).keys() == before.keys()
    accepted = reindex(cluster, INDEX, encoder, settings.model_copy(update={"accept_rejects": True}))
    assert (accepted.switched, accepted.destination) == (True, FIRST)
    assert verify(cluster, INDEX, encoder).ok
    bulk(cluster, INDEX, [{"index": {"_id": "odd-list"}}, {"body": "a zephyr"}])
    assert sync(cluster, INDEX, encoder, settings).rejected == len(odd) - 1
    assert neural(cluster, "body", "a zephyr")[0][0] == "odd-list"


def test_nothing_is_lost_while_the_server_is_away(wishes, monkeypatch):
    cluster, encoder, settings = wishes.cluster, HashingEncoder(), reindexed(wishes)
    put(cluster, INDEX, {"new": {"body": "a zephyr"}, "d1": {"body": "umbrella"}})
    with wishes.server.away():
        with pytest.raises(Unreachable, match=f"server at {wishes.server.url}.+ body") as refusal:
            sync(cluster, INDEX, encoder, settings)
        assert "hybridr serve" in (refusal.value.hint or "")
        with pytest.raises(Unreachable):
            reindex(cluster, INDEX, encoder, settings)
        assert not verify(cluster, INDEX, encoder).ok
        with monkeypatch.context() as patch:  # it goes after it was asked
            patch.setattr(beside, "require_answer", lambda *of: None)
            assert sync(cluster, INDEX, encoder, settings).rejected == 2
    again = sync(cluster, INDEX, encoder, settings)
    assert (again.copied, again.rejected) == (2, 0)
    assert verify(cluster, INDEX, encoder).ok
    assert neural(cluster, "body", "a zephyr")[0][0] == "new"


def test_another_encoder_makes_another_index_with_models_of_its_own(wishes):
    cluster, settings = wishes.cluster, reindexed(wishes)
    other = HashingEncoder(salt="other", dim=24)
    with pytest.raises(FingerprintMismatch, match="has encoder") as refusal:
        reindex(cluster, INDEX, other, settings)
    assert "hybridr serve --encoder FOLDER" in (refusal.value.hint or "")
    first = made(cluster)
    with serving(cluster, other) as server:
        chosen = settings.model_copy(update={"server": server.url})
        second = reindex(cluster, INDEX, other, chosen)
        assert second.destination == f"{INDEX}-hybridr-2"
        assert verify(cluster, INDEX, other).ok
        assert made(cluster) == first
        assert made(cluster, second.destination)
        without = reindex(cluster, INDEX, other)  # as with all that decides what an index is
        assert without.destination == f"{INDEX}-hybridr-3"
        assert cluster.index_info(without.destination).semantic == {}
        assert rollback(cluster, INDEX, drop=True)["to"] == second.destination
        assert rollback(cluster, INDEX, drop=True)["to"] == FIRST
        assert (made(cluster, second.destination), made(cluster)) == ([], first)
    planned = remove(cluster, INDEX, dry_run=True)["requests"]
    assert sum(request["path"].endswith("/_undeploy") for request in planned) == 2
    assert made(cluster) == first
    assert remove(cluster, INDEX)["requests"] == planned
    assert made(cluster) == []


def test_a_damaged_embedding_is_told(wishes):
    cluster, encoder, settings = wishes.cluster, HashingEncoder(), reindexed(wishes)
    with (
        serving(cluster, HashingEncoder(salt="other")) as server,
        another_model(wishes._replace(server=server), "cosinesimil") as model_id,
    ):
        field = cluster.request("GET", path_of(FIRST))[FIRST]["mappings"]["properties"]["body"]
        put = {"properties": {"body": field | {"model_id": model_id}}}
        cluster.request("PUT", path_of(FIRST, "_mapping"), put)
        bulk(cluster, INDEX, [{"index": {"_id": "d1"}}, {"body": "a zephyr"}])
        assert sync(cluster, INDEX, encoder, settings).copied == 1
        problems = "; ".join(verify(cluster, INDEX, encoder).problems())
        assert "embedding: 1 of" in problems
        assert "semantic field without an embedding by its model: 1 of" in problems
        [held] = status(cluster, INDEX).holdings
        assert "whole" in held.representations[-1]


REFUSED: list[tuple[dict[str, Any], type[HybridrError], str]] = [
    ({"semantic": ("absent",)}, DataError, "this field is missing"),
    ({"semantic": ("part",)}, DataError, "this field is object"),
    ({"semantic": ("part.size",)}, DataError, "this field is long"),
    ({"semantic": ("title",)}, DataError, "copied to 'all'"),
    ({"semantic": ("taken",)}, DataError, "go into 'taken_semantic_info'"),
    ({"semantic": ("many.name",)}, DataError, "keyword below nested objects"),
    ({"semantic": ("all",), "vector_field": "a.vector"}, SettingsError, "no name with dots"),
    ({"semantic": ("all",), "in_place": True}, SettingsError, "leave --in-place out"),
    ({"semantic": ("all",), "server": "http://127.0.0.1:9"}, ClusterError, "does not let a model ask"),
    ({"semantic": ("all",), "server": "nowhere"}, SettingsError, "is not a server's address"),
    ({"semantic": ("all",), "token": "wrong"}, SettingsError, "asks for another token"),
]


def test_nothing_is_written_where_it_cannot_be(wishes):
    cluster = wishes.cluster
    more = {"taken": {"type": "text"}, "taken_semantic_info": {"type": "keyword"}}
    more |= {"many": {"type": "nested", "properties": {"name": {"type": "keyword"}}}}
    create(cluster, INDEX, objects({}) | more)
    bulk(cluster, INDEX, [{"index": {"_id": "a"}}, {"title": "one", "all": "basket candle"}])
    with serving(cluster, HashingEncoder(), token="right") as server:
        given = {"server": server.url, "token": "right", "fields": ("title",)}
        for changes, error, message in REFUSED:
            with pytest.raises(error, match=message):
                reindex(cluster, INDEX, HashingEncoder(), ReindexSettings(**{**given, **changes}))
            assert (names_in(cluster), made(cluster)) == ([INDEX], [])


def test_models_go_where_the_index_cannot_be_made(wishes, monkeypatch):
    cluster, encoder = wishes.cluster, HashingEncoder()
    fill(wishes, prose, False)
    settings = ReindexSettings(semantic=("body",), server=wishes.server.url)
    monkeypatch.setitem(semantic_models.SPACES, "cosine", "no such space")
    with pytest.raises(ClusterError):
        reindex(cluster, INDEX, encoder, settings)
    assert (names_in(cluster), made(cluster)) == ([INDEX], [])
    monkeypatch.undo()
    monkeypatch.setattr(semantic_models, "encodes_equally", lambda *of: False)
    with pytest.raises(FingerprintMismatch, match="gives other vectors than the encoder"):
        reindex(cluster, INDEX, encoder, settings)
    assert (names_in(cluster), made(cluster)) == ([INDEX], [])
    monkeypatch.undo()

    def killed(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(beside, "new_index_body", killed)
    with pytest.raises(SystemExit):
        reindex(cluster, INDEX, encoder, settings)
    left = made(cluster)
    monkeypatch.undo()
    assert reindex(cluster, INDEX, encoder, settings).switched
    assert (names_in(cluster)[:1], len(made(cluster))) == ([INDEX], len(left))
    models = cluster.index_info(FIRST).record.semantic
    assert set(search_ids(cluster, "models", models_name(FIRST))) == {models.model_id, models.search_model_id}
