"""Semantic fields in Elasticsearch's documents of before 8.18, in a node that has no such type and whose
mapping is told otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hybridr import ReindexSettings, Search
from hybridr.cluster import record
from hybridr.cluster.connection import Cluster, path_of
from hybridr.doctor.inspection import inspect_index
from hybridr.errors import DataError
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from support.corpus import bulk, create, drop_indices, put, text_number
from support.hashing import HashingEncoder
from support.meanings import stored

pytestmark = pytest.mark.elastic
REPLACED = ReindexSettings(replace_semantic=True)
INDEX, ALIAS = "meanings", "meanings-hybridr"
INFERENCE = {"inference_id": "elser", "chunks": [{"text": "a chunk", "embeddings": {"a": 1.2}}]}


@pytest.fixture
def legacy(elastic: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """An index as Elasticsearch before 8.18 keeps it; the core of 8.15 has no `semantic_text`."""
    stand_in = {"type": "object", "enabled": False}
    properties = {"title": {"type": "text"}, "body": stand_in, "all": stand_in}
    create(elastic, INDEX, properties)
    documents: dict[str, dict[str, Any]] = {"null": {"body": None}, "none": {"title": "no body"}}
    documents["list"] = {"body": {"text": ["one", "two"], "inference": INFERENCE}}
    for number in range(12):
        body = {"text": text_number(number), "inference": INFERENCE}
        documents[f"d{number}"] = {"body": body, "all": {"inference": INFERENCE}}
    put(elastic, INDEX, documents)
    read = record.plain_mappings

    def as_semantic(mappings: dict[str, Any]) -> Any:
        fields = mappings.get("properties", {})
        said = {name: {"type": "semantic_text", "inference_id": "elser"} for name in ("body", "all")}
        told = {name: said.get(name, field) if field == stand_in else field for name, field in fields.items()}
        return read({**mappings, "properties": told})

    monkeypatch.setattr(record, "plain_mappings", as_semantic)
    yield elastic
    drop_indices(elastic, f"{INDEX}*")


def test_documents_of_elasticsearch_before_8_18(legacy):
    encoder, before = HashingEncoder(), stored(legacy, INDEX)
    assert inspect_index(legacy, INDEX).text_fields == ("title", "body")
    with pytest.raises(DataError, match="body \\(semantic_text of model elser\\)"):
        reindex(legacy, INDEX, encoder)
    done = reindex(legacy, INDEX, encoder, REPLACED)
    copies = stored(legacy, done.destination)
    assert copies["d3"]["body"] == text_number(3)
    assert copies["list"]["body"] == ["one", "two"]
    assert copies["null"]["body"] is None
    assert "all" not in copies["d3"]
    assert "body" not in copies["none"]
    made = legacy.request("GET", path_of(done.destination))[done.destination]["mappings"]["properties"]
    assert made["body"] == made["all"] == {"type": "text"}
    assert verify(legacy, INDEX, encoder).ok
    assert Search(legacy, INDEX, encoder)(text_number(3))[0].doc_id == "d3"
    body = {"text": "a zephyr", "inference": INFERENCE}
    bulk(legacy, INDEX, [{"index": {"_id": "new"}}, {"body": body}])
    assert sync(legacy, INDEX, encoder, REPLACED).unlike == ()
    assert verify(legacy, INDEX, encoder).ok
    bulk(legacy, ALIAS, [{"index": {"_id": "d1"}}, {"body": "umbrella"}])
    assert rollback(legacy, INDEX, copy_back=True)["returned"]["changed"] == 1
    after = stored(legacy, INDEX)
    assert (after.pop("d1"), after.pop("new")) == ({"body": "umbrella"}, {"body": body})
    assert after == {doc_id: source for doc_id, source in before.items() if doc_id != "d1"}
