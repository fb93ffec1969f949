"""Indices that the version before wrote are taken up: its record, its marks and its stored fields.

They are made again from golden/before: the same documents in the same order, hence with the same `_seq_no`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr import Encoder, Search, load_encoder
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.default_pipeline import pipeline_path
from hybridr.cluster.reading import read_documents
from hybridr.files.manifest import fingerprint
from hybridr.reindexing.reindexing import reindex
from hybridr.reindexing.rollback import rollback
from hybridr.reindexing.settings import ReindexSettings
from hybridr.reindexing.syncing import Syncing, sync
from hybridr.reindexing.targets import Lag
from hybridr.reindexing.verification import verify
from hybridr.standing.standing import remove, status

pytestmark = pytest.mark.node
BEFORE = Path(__file__).resolve().parents[2] / "golden" / "before"
OURS = ("hybridr_vector", "hybridr_mark")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder(BEFORE / "encoder")


@pytest.fixture
def library(cluster: Cluster, index_name: str) -> Iterator[dict[str, Any]]:
    """An index beside its source, tuned and deployed."""
    golden = json.loads((BEFORE / "beside.json").read_text(encoding="utf-8").replace("library", index_name))
    cluster.request("PUT", pipeline_path(f"hybridr-{index_name}-hybridr-1"), golden["pipeline"])
    create(cluster, index_name, golden["source"])
    bulk(cluster, index_name, [({}, found) for found in golden["source"]["documents"]])
    destination = f"{index_name}-hybridr-1"
    record = golden["destination"]["mappings"]["_meta"]["hybridr"]
    assert record["job"] == fingerprint([record["source_uuid"], record["encoder"], golden["job"]])
    record["source_uuid"] = cluster.index_info(index_name).uuid
    record["job"] = fingerprint([record["source_uuid"], record["encoder"], golden["job"]])
    create(cluster, destination, golden["destination"])
    bulk(
        cluster,
        destination,
        [
            ({"version": found["version"], "version_type": "external_gte"}, found)
            for found in golden["destination"]["documents"]
        ],
    )
    yield golden
    remove(cluster, index_name, discard=True)


@pytest.fixture
def notes(cluster: Cluster, index_name: str) -> dict[str, Any]:
    """An index that holds its vectors itself: each document was written plain, then with vector and mark."""
    text = (BEFORE / "in_place.json").read_text(encoding="utf-8")
    golden = json.loads(text.replace('"notes"', json.dumps(index_name)))
    create(cluster, index_name, golden["index"])
    plain = [found | {"source": without_ours(found["source"])} for found in golden["index"]["documents"]]
    bulk(cluster, index_name, [({}, found) for found in plain])
    bulk(cluster, index_name, [({}, found) for found in golden["index"]["documents"]])
    meta = golden["index"]["mappings"]["_meta"]
    meta["hybridr"]["source_uuid"] = cluster.index_info(index_name).uuid
    cluster.request("PUT", path_of(index_name, "_mapping"), {"_meta": meta})
    return golden


def create(cluster: Cluster, name: str, golden: dict[str, Any]) -> None:
    body = {part: golden[part] for part in ("settings", "mappings", "aliases")}
    cluster.request("PUT", path_of(name), body)


def bulk(cluster: Cluster, name: str, documents: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Write documents with their stored fields, one after the other."""
    lines: list[Any] = []
    for options, found in documents:
        stored = {field: found[field] for field in ("hybridr_encoder", "hybridr_seq_no") if field in found}
        lines += [{"index": {"_id": found["_id"], **options}}, {**found["source"], **stored}]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    answer = cluster.request("POST", path_of(name, "_bulk"), content, {"refresh": "true"})
    assert not answer["errors"], answer


def without_ours(source: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in source.items() if name not in OURS}


def did(done: Syncing) -> tuple[int, int, int, int]:
    return done.copied, done.deleted, done.renewed, done.waiting


def change(cluster: Cluster, index: str, doc_id: str) -> None:
    path = path_of(index, "_update", doc_id)
    cluster.request("POST", path, {"doc": {"text": "balar bason anew"}}, {"refresh": "true"})


def found(cluster: Cluster, index: str, encoder: Encoder) -> list[str]:
    query = next(each for each in read_documents(cluster, index) if each.doc_id == "d7").source["text"]
    return [hit.doc_id for hit in Search(cluster, index, encoder)(query, 5)]


def test_status_of_an_index_beside(cluster: Cluster, index_name: str, library: Any, encoder: Encoder) -> None:
    state = status(cluster, index_name)
    (holding,) = state.holdings
    assert (state.source, state.documents) == (index_name, 25)
    assert (holding.index, holding.state) == (f"{index_name}-hybridr-1", "complete")
    assert (holding.documents, holding.current, holding.encoder) == (25, 25, encoder.fingerprint)
    assert holding.lag == Lag(0, 0, 0)
    assert holding.writes == {"changed": 0, "deleted": 0, "conflicts": 0, "deletes_known": True}
    assert [event["event"] for event in holding.history] == ["filled", "switched", "tuned"]
    assert holding.deployment is not None
    assert holding.deployment.way == "client"


def test_an_index_beside_is_searched_synced_and_verified(
    cluster: Cluster, index_name: str, library: Any, encoder: Encoder
) -> None:
    search = Search(cluster, index_name, encoder)
    assert search.settings.normalization == "l2"
    assert found(cluster, index_name, encoder) == [doc_id for doc_id, _ in library["hits"]]
    assert verify(cluster, index_name, encoder).ok
    assert did(sync(cluster, index_name, encoder)) == (0, 0, 0, 0)
    change(cluster, index_name, "d3")
    assert not verify(cluster, index_name, encoder).ok
    assert did(sync(cluster, index_name, encoder)) == (1, 0, 0, 0)
    assert verify(cluster, index_name, encoder).ok


def test_reindexing_beside_again_encodes_nothing(cluster: Cluster, index_name: str, library: Any) -> None:
    done = reindex(cluster, index_name, BEFORE / "encoder", ReindexSettings(fields=("text",)))
    assert (done.destination, done.encoded, done.skipped) == (f"{index_name}-hybridr-1", 0, 25)
    assert done.switched
    record = cluster.index_info(done.destination).record
    assert record.tuning is not None
    assert record.tuning.search == {"fusion": "pipeline", "normalization": "l2", "dense_weight": 0.5}
    assert record.deployment is not None


def test_rolled_back_and_removed(cluster: Cluster, index_name: str, library: Any, encoder: Encoder) -> None:
    change(cluster, f"{index_name}-hybridr", "d3")
    done = rollback(cluster, index_name, copy_back=True)
    assert (done["from"], done["to"]) == (f"{index_name}-hybridr-1", index_name)
    assert done["returned"]["changed"] == 1
    assert list(cluster.index_info(index_name).aliases) == [f"{index_name}-hybridr"]
    assert remove(cluster, index_name)["indices"] == [f"{index_name}-hybridr-1"]
    assert cluster.index_info(index_name).aliases == {}
    reindex(cluster, index_name, encoder)  # for the fixture to remove


def test_an_index_in_place(cluster: Cluster, index_name: str, notes: Any, encoder: Encoder) -> None:
    (holding,) = status(cluster, index_name).holdings
    assert (holding.index, holding.in_place, holding.state) == (index_name, True, "complete")
    assert (holding.documents, holding.current, holding.encoder) == (25, 25, encoder.fingerprint)
    assert found(cluster, index_name, encoder)[0] == notes["hits"][0][0]
    assert verify(cluster, index_name, encoder).ok
    assert did(sync(cluster, index_name, encoder)) == (0, 0, 0, 0)
    change(cluster, index_name, "d3")
    assert did(sync(cluster, index_name, encoder)) == (0, 0, 1, 0)
    done = reindex(cluster, index_name, BEFORE / "encoder", ReindexSettings(in_place=True, fields=("text",)))
    assert (done.encoded, done.skipped) == (0, 25)


def test_an_index_in_place_is_removed(cluster: Cluster, index_name: str, notes: Any) -> None:
    done = remove(cluster, index_name)
    assert (done["documents"], done["fields"]) == (25, list(OURS))
    assert cluster.index_info(index_name).mappings["_meta"] == {"owner": "somebody"}
    left = {each.doc_id: each.source for each in read_documents(cluster, index_name)}
    assert left == {each["_id"]: without_ours(each["source"]) for each in notes["index"]["documents"]}
