"""Vectors in the user's own index, on a real node: nothing else of it changes, and every run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from hybridr import ReindexSettings, Search, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import read_documents
from hybridr.cluster.record import MARK_FIELD
from hybridr.cluster.writing import rejects_of
from hybridr.errors import DataError
from hybridr.indexing import filling
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.targets import beside
from hybridr.status.standing import remove, status
from support.corpus import bulk, put, put_documents, sources, text_number, update
from support.hashing import HashingEncoder
from support.in_place_index import (
    IN_PLACE,
    VECTOR,
    assert_vectors_fit,
    did,
    empty_index,
    knn_index,
    ok,
    raw,
    refusing_index,
)
from support.waiting import wait_until
from support.workers import settled_count

COUNT = 160


# --- the happy path


def test_vectors_go_into_the_index_itself(cluster, index_name):
    knn_index(cluster, index_name, 40)
    bulk(cluster, index_name, [{"index": {"_id": "bare"}}, {"price": 3.0}])
    before, info = sources(cluster, index_name), cluster.index_info(index_name)
    done = reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    assert (done.source, done.destination, done.alias, done.switched) == (index_name, index_name, None, False)
    assert (done.documents, done.encoded, done.skipped, done.without_text, done.rejected) == (41, 40, 0, 1, 0)
    assert [found.name for found in cluster.indices(f"{index_name}*")] == [index_name]
    assert sources(cluster, index_name) == before
    assert_vectors_fit(cluster, index_name)
    after = cluster.index_info(index_name)
    assert after.settings == info.settings
    assert after.aliases == {}
    assert after.mappings["dynamic"] == "strict"
    assert after.mappings["_meta"]["owner"] == "somebody"
    assert after.mappings["_meta"]["hybridr"]["state"] == "complete"
    searcher = Search(cluster, index_name, HashingEncoder(), "dense")
    assert searcher(text_number(7), 1)[0].doc_id == "d7"
    assert Search(cluster, index_name, HashingEncoder())(text_number(7), 1)[0].doc_id == "d7"
    assert ok(cluster, index_name)
    (holding,) = status(cluster, index_name).holdings
    assert (holding.index, holding.documents, holding.current, holding.in_place) == (index_name, 41, 41, True)


def test_running_it_again_encodes_what_changed(cluster, index):
    put_documents(cluster, index, [3, 41], suffix=" by a client")
    encoder = HashingEncoder()
    tried = sync(cluster, index, encoder, dry_run=True)
    assert (tried.copied, tried.deleted, tried.renewed) == (0, 0, 2)
    done = reindex(cluster, index, encoder, ReindexSettings(in_place=True, workers=3))
    assert (done.encoded, done.skipped) == (2, 39)
    assert len(encoder.encoded) == 2 + 2 * 41, "what changed, the verification's sample, and the term table's"
    assert_vectors_fit(cluster, index)


def test_smaller_vectors_in_place(cluster, index_name):
    knn_index(cluster, index_name, 30)
    settings = ReindexSettings(in_place=True, fields=("text",), vectors="byte")
    reindex(cluster, index_name, HashingEncoder(), settings)
    assert ok(cluster, index_name)
    assert Search(cluster, index_name, HashingEncoder(), "dense")(text_number(7), 1)[0].doc_id == "d7"
    remove(cluster, index_name)
    assert reindex(cluster, index_name, HashingEncoder(), settings).encoded == 30


def test_exact_numbers_odd_ids_and_routing_survive(cluster, index_name):
    properties = {"text": {"type": "text"}, "kept": {"type": "object", "enabled": False}}
    mappings = {"properties": properties, "_routing": {"required": True}}
    empty_index(cluster, index_name, {"number_of_shards": 3}, mappings)
    kept = {"huge": 123456789012345678901234567890, "small": 5e-324, "a.b": [1, None, {"z": "\u0000é漢"}]}
    ids = ["a b/c?d#", "é" * 256, "plain", "\u202eodd"]
    documents = {doc_id: {"text": text_number(number), "kept": kept} for number, doc_id in enumerate(ids)}
    put(cluster, index_name, documents, {doc_id: f"r{number}" for number, doc_id in enumerate(ids)})
    before = {found.doc_id: found for found in read_documents(cluster, index_name)}
    assert reindex(cluster, index_name, HashingEncoder(), IN_PLACE).encoded == 4
    after = {found.doc_id: found for found in read_documents(cluster, index_name)}
    assert sources(cluster, index_name) == {doc_id: found.source for doc_id, found in before.items()}
    assert {i: d.routing for i, d in after.items()} == {i: d.routing for i, d in before.items()}
    remove(cluster, index_name)
    assert raw(cluster, index_name) == {doc_id: found.source for doc_id, found in before.items()}


def test_pipelines_do_not_run_on_our_writes(cluster, index_name):
    pipelines = [f"{index_name}-{kind}" for kind in ("default", "final")]
    for pipeline in pipelines:
        stamp = {"processors": [{"set": {"field": "tags", "value": "stamped"}}]}
        cluster.request("PUT", path_of("_ingest", "pipeline", pipeline), stamp)
    try:
        knn_index(cluster, index_name, 10)
        both = dict(zip(("default_pipeline", "final_pipeline"), pipelines, strict=True))
        cluster.request("PUT", path_of(index_name, "_settings"), {"index": both})
        before = sources(cluster, index_name)
        reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
        assert sources(cluster, index_name) == before
        partial = [{"update": {"_id": "d3"}}, {"doc": {"text": ""}}]
        bulk(cluster, index_name, partial)
        sync(cluster, index_name, HashingEncoder())
        assert sources(cluster, index_name) == before | {"d3": before["d3"] | {"text": ""}}
        assert cluster.index_info(index_name).settings["index.final_pipeline"] == pipelines[1]
        put_documents(cluster, index_name, [99])
        assert sources(cluster, index_name)["d99"]["tags"] == "stamped", "the pipelines did run on clients'"
        remove(cluster, index_name)
        assert sources(cluster, index_name)["d5"] == before["d5"]
    finally:
        cluster.request("PUT", path_of(index_name, "_settings"), {"index": dict.fromkeys(both)})
        for pipeline in pipelines:
            cluster.request("DELETE", path_of("_ingest", "pipeline", pipeline))


# --- restart


def test_kill_9_then_the_same_command(cluster, index_name, tiny, cli):
    """The whole command line: killed, resumed, changed, synced, removed."""
    knn_index(cluster, index_name, COUNT)
    before, command = sources(cluster, index_name), f"reindex {index_name} --in-place --encoder {tiny}"
    slowly = {"HYBRIDR_REINDEX_MAX_DOCS_PER_SECOND": "40", "HYBRIDR_REINDEX_READ_DOCUMENTS": "20"}
    words = [sys.executable, "-m", "hybridr_cli", *command.split(), "--url", cluster.url]
    process = subprocess.Popen(words, env=os.environ | slowly)
    wait_until(lambda: marked(cluster, index_name) >= 40)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    there = settled_count(lambda: marked(cluster, index_name))
    assert 40 <= there < COUNT
    done = cli(cluster, f"{command} --json").json
    assert (done["skipped"], done["encoded"]) == (there, COUNT - there)
    assert sources(cluster, index_name) == before
    hits = cli(cluster, f"search {index_name} --json", text_number(7)).json["hits"]
    assert hits[0]["doc_id"] == "d7"
    cli(cluster, f"verify {index_name}")
    assert f"{COUNT} of {COUNT} documents current (100.0%)" in cli(cluster, f"status {index_name}").out
    update(cluster, index_name, "d4", text="a velvet window by a partial update")
    said = cli(cluster, f"verify {index_name}", code=1).out
    assert f"vector of an older text: 1 of {COUNT} documents: d4" in said
    cli(cluster, f"sync {index_name}")
    cli(cluster, f"verify {index_name}")
    cli(cluster, f"rollback {index_name}", code=1)
    said = cli(cluster, f"remove {index_name} --dry-run").out
    assert f"{VECTOR} and {MARK_FIELD}: to be removed from {COUNT} documents" in said
    assert marked(cluster, index_name) == COUNT
    said = cli(cluster, f"remove {index_name} --yes").out
    assert (said.count("to be removed from"), said.count(f": removed from {COUNT}")) == (1, 1)
    assert said.count("stay in the mapping") == 1
    after = raw(cluster, index_name)
    assert after.keys() == before.keys()
    assert all(VECTOR not in source and MARK_FIELD not in source for source in after.values())


def marked(cluster: Cluster, index: str) -> int:
    if VECTOR not in cluster.index_info(index).mappings["properties"]:
        return 0
    cluster.refresh(index)
    return cluster.count(index, {"exists": {"field": MARK_FIELD}})


def test_refused_documents_leave_it_incomplete(cluster, index_name):
    refusing_index(cluster, index_name)
    done = reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    assert (done.rejected, done.encoded) == (1, 6)
    assert "late" in rejects_of(cluster.index_info(index_name)).file.read_text()
    assert cluster.index_info(index_name).record.state == "filling"
    with pytest.raises(DataError, match="not complete") as refused:
        Search(cluster, index_name, HashingEncoder(), "dense")
    assert "--in-place" in str(refused.value.hint)
    with pytest.raises(DataError, match="no complete"):
        sync(cluster, index_name, HashingEncoder())
    accepted = IN_PLACE.model_copy(update={"accept_rejects": True})
    assert reindex(cluster, index_name, HashingEncoder(), accepted).rejected == 1
    assert Search(cluster, index_name, HashingEncoder(), "dense")(text_number(2), 1)[0].doc_id == "d2"
    assert raw(cluster, index_name)["bad"] == {"text": "a bad one", "late": "not a number"}


def test_refused_documents_exit_3(cluster, index_name, tiny, cli):
    refusing_index(cluster, index_name)
    assert "1 refused by the index" in cli(cluster, f"reindex {index_name} --in-place", code=3).out


# --- other clusters and rights


@pytest.mark.secure
def test_the_older_version_with_tls(secure_node, index_name):
    secure = connect(secure_node.url)
    knn_index(secure, index_name, 60)
    before = sources(secure, index_name)
    assert reindex(secure, index_name, HashingEncoder(), IN_PLACE).encoded == 60
    assert sources(secure, index_name) == before
    assert_vectors_fit(secure, index_name)
    update(secure, index_name, "d4", text="changed")
    update(secure, index_name, "d5", text="")
    assert not ok(secure, index_name)
    assert did(sync(secure, index_name, HashingEncoder())) == (0, 0, 2, 0)
    assert ok(secure, index_name)
    assert_vectors_fit(secure, index_name)
    assert Search(secure, index_name, HashingEncoder())(text_number(7), 1)[0].doc_id == "d7"
    remove(secure, index_name)
    assert raw(secure, index_name)["d6"] == before["d6"]
    secure.request("DELETE", path_of(index_name))


def test_without_the_right_to_ask_for_checkpoints(cluster, index_name, monkeypatch):
    for user in (filling, beside):
        monkeypatch.setattr(user, "settled_position", lambda *_, **__: None)
    knn_index(cluster, index_name, 40, refresh_interval="1s")
    assert reindex(cluster, index_name, HashingEncoder(), IN_PLACE).encoded == 40
    assert cluster.index_info(index_name).record.synced is None
    update(cluster, index_name, "d4", text="changed")
    assert did(sync(cluster, index_name, HashingEncoder())) == (0, 0, 1, 0)
    assert_vectors_fit(cluster, index_name)
