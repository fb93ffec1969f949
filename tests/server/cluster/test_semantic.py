"""Indices with semantic fields of OpenSearch, with a model behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hybridr import ReindexSettings, Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.doctor.inspection import inspect_index
from hybridr.errors import ClusterError, DataError, SettingsError
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.stages.transfer import export_text, import_vectors
from hybridr.indexing.stages.vectors import encode_texts
from hybridr.indexing.verification import verify
from support.corpus import bulk, create, drop_indices, put, text_number
from support.hashing import HashingEncoder
from support.meanings import LUCENE, Meanings, another_model, stored, with_model

pytestmark = [pytest.mark.node, pytest.mark.ml]
REPLACED = ReindexSettings(replace_semantic=True)
INDEX, ALIAS = "meanings", "meanings-hybridr"


@pytest.fixture(scope="module")
def model(ml_cluster: Cluster) -> Iterator[Meanings]:
    with with_model(ml_cluster) as meanings:
        yield meanings


@pytest.fixture
def meanings(model: Meanings) -> Iterator[Meanings]:
    semantic = {"type": "semantic", "model_id": model.model_id, "dense_embedding_config": LUCENE}
    properties = {
        "body": semantic | {"chunking": True, "analyzer": "english", "fields": {"raw": {"type": "keyword"}}},
        "title": {"type": "text", "copy_to": "all"},
        "all": semantic,
        "code": semantic | {"raw_field_type": "keyword", "semantic_info_field_name": "made"},
        "part": {"properties": {"note": semantic}},
    }
    settings = {"index.knn": True, "number_of_replicas": 0}
    create(model.cluster, INDEX, properties, settings)
    documents: dict[str, dict[str, Any]] = {}
    for number in range(12):
        source = {"title": f"title {number}", "body": text_number(number), "code": f"c{number}"}
        note = {"part": {"note": f"note {number}"}} if number % 2 else {"part.note": f"dotted {number}"}
        documents[f"d{number}"] = source | note
    documents["null"] = {"title": "no text", "body": None}
    documents["long"] = {"title": "long", "body": "basket and candle " * 300}
    put(model.cluster, INDEX, documents)
    yield model
    drop_indices(model.cluster, f"{INDEX}*")


def test_nothing_is_written_before_somebody_says_so(meanings):
    with pytest.raises(DataError, match=r"body \(semantic of model .+at its cost") as refusal:
        reindex(meanings.cluster, INDEX, HashingEncoder())
    assert "--replace-semantic" in (refusal.value.hint or "")
    with pytest.raises(DataError, match="semantic fields"):
        plan(meanings.cluster, INDEX, HashingEncoder(), ReindexSettings(in_place=True))
    with pytest.raises(SettingsError, match="leave --in-place out"):
        plan(meanings.cluster, INDEX, HashingEncoder(), ReindexSettings(in_place=True, replace_semantic=True))
    assert [info.name for info in meanings.cluster.indices(f"{INDEX}*")] == [INDEX]


def test_inspect_names_the_fields_and_their_model(meanings, cli):
    inspection = inspect_index(meanings.cluster, INDEX)
    made = f"semantic of model {meanings.model_id}"
    assert {field.name: field.semantic for field in inspection.fields} == {
        "all": made,
        "body": made,
        "code": made,
        "part.note": made,
        "title": "",
    }
    assert inspection.text_fields == inspection.lexical_fields == ("title", "body")
    assert "--replace-semantic" in "".join(inspection.advice)
    assert "not by its model" not in "".join(inspection.advice)
    shown = " ".join(cli(meanings.cluster, f"inspect {INDEX}").out.split())
    assert " body semantic (english) 93%" in shown
    assert f"the cluster runs a model for all ({made}), body ({made})" in shown


def test_inspect_tells_embeddings_of_two_models(meanings):
    cluster, encoder = meanings.cluster, HashingEncoder()
    assert reindex(cluster, INDEX, encoder, REPLACED).switched
    with another_model(meanings) as model_id:
        field = cluster.request("GET", path_of(INDEX))[INDEX]["mappings"]["properties"]["body"]
        put = {"properties": {"body": field | {"model_id": model_id}, "more": field}}
        cluster.request("PUT", path_of(INDEX, "_mapping"), put)
        bulk(cluster, INDEX, [{"index": {"_id": "d1"}}, {"body": "a zephyr", "more": "umbrella"}])
        inspection = inspect_index(cluster, INDEX)
        expected = f"12 of the 13 embeddings of 'body' that were read are not by its model {model_id}"
        assert [line for line in inspection.advice if line.startswith(expected)]
        # What changed there is a model, and a field more: the copy goes on.
        assert sync(cluster, INDEX, encoder, REPLACED).unlike == ()
        assert verify(cluster, INDEX, encoder).ok
        assert stored(cluster, ALIAS)["d1"] == {"body": "a zephyr", "more": "umbrella"}


def test_text_goes_along_and_comes_back_and_no_model_runs(meanings):
    cluster, encoder = meanings.cluster, HashingEncoder()
    before, asked = stored(cluster, INDEX), len(meanings.server.received)
    assert {"body_semantic_info", "made"} <= before["d1"].keys()
    notes = plan(cluster, INDEX, encoder, REPLACED).proposal.notes
    assert any(note.startswith("copied as text, without embeddings: all (semantic of") for note in notes)
    done = reindex(cluster, INDEX, encoder, REPLACED)
    assert done.switched
    assert len(meanings.server.received) == asked
    made = cluster.request("GET", path_of(done.destination))[done.destination]["mappings"]["properties"]
    assert made["body"] == {"type": "text", "analyzer": "english", "fields": {"raw": {"type": "keyword"}}}
    assert made["code"] == {"type": "keyword"}
    assert made["part"] == {"properties": {"note": {"type": "text"}}}
    assert not {"body_semantic_info", "all_semantic_info", "made"} & made.keys()
    copies = stored(cluster, done.destination)
    assert copies["long"]["body"] == before["long"]["body"]
    assert copies["null"]["body"] is None
    assert copies["d1"].keys() == {"title", "body", "code", "part"}
    assert copies["d2"]["part"] == {"note": "dotted 2"}
    assert verify(cluster, INDEX, encoder).ok
    assert Search(cluster, INDEX, encoder)(text_number(3))[0].doc_id == "d3"
    neural = {"neural": {"body": {"query_text": "basket", "model_id": meanings.model_id}}}
    assert cluster.search(INDEX, {"query": neural})["hits"]["hits"]
    with pytest.raises(ClusterError, match="neural"):
        cluster.search(ALIAS, {"query": neural})

    bulk(cluster, INDEX, [{"index": {"_id": "new"}}, {"title": "new", "body": "a zephyr"}])
    assert sync(cluster, INDEX, encoder, REPLACED).unlike == ()
    assert verify(cluster, INDEX, encoder).ok
    asked = len(meanings.server.received)
    written = [{"index": {"_id": "d1"}}, before["d1"] | {"body": "umbrella"}]  # whole, as it was read before
    bulk(cluster, ALIAS, [*written, {"index": {"_id": "d3"}}, before["d3"]])
    assert len(meanings.server.received) == asked
    assert sync(cluster, INDEX, encoder, REPLACED).renewed == 2
    assert rollback(cluster, INDEX, copy_back=True)["returned"]["changed"] == 1
    assert len(meanings.server.received) == asked + 1
    after = stored(cluster, INDEX)
    theirs, new = after.pop("d1"), after.pop("new")
    assert theirs["body"] == theirs["body_semantic_info"]["chunks"][0]["text"] == "umbrella"
    assert new["body"] == "a zephyr"
    assert after == {doc_id: source for doc_id, source in before.items() if doc_id != "d1"}


def test_a_copy_needs_no_model_and_the_way_back_of_writes_does(meanings, tmp_path):
    cluster, encoder = meanings.cluster, HashingEncoder()
    before = stored(cluster, INDEX)
    export_text(cluster, INDEX, tmp_path)
    encode_texts(tmp_path, encoder)
    with pytest.raises(DataError, match="semantic fields"):
        import_vectors(cluster, INDEX, tmp_path, encoder)
    with meanings.server.away():
        assert import_vectors(cluster, INDEX, tmp_path, encoder, REPLACED).taken == 14
        assert verify(cluster, INDEX, encoder).ok
        bulk(cluster, ALIAS, [{"index": {"_id": "d1"}}, {"body": "umbrella"}])
        with pytest.raises(ClusterError):
            rollback(cluster, INDEX, copy_back=True)
        assert rollback(cluster, INDEX, discard=True)["to"] == INDEX
    assert stored(cluster, INDEX) == before
