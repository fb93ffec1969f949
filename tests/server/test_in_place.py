"""Vectors in the user's own index, on a real node: no write of a client is lost, no stale vector stays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridr_cli
from hashing import HashingEncoder
from hybridr import ReindexSettings, Search, SearchSettings, reindex, rollback
from hybridr.cluster.connection import Cluster, connect, path_of
from hybridr.cluster.reading import read_documents
from hybridr.cluster.writing import Outcome, rejects_of
from hybridr.errors import ClusterError, DataError, HybridrError, ModelError, NotFound, SettingsError
from hybridr.node import state
from hybridr.reindexing.syncing import Syncing, sync
from hybridr.reindexing.targets import in_place
from hybridr.reindexing.targets.in_place import MARK_FIELD
from hybridr.reindexing.targets.in_place_checks import plan_in_place
from hybridr.reindexing.verification import verify_in_place
from hybridr.status import remove, standing

from .corpus import bulk, fill_index, put_documents, sources, text_number

pytestmark = pytest.mark.node
IN_PLACE = ReindexSettings(in_place=True, fields=("text",))
VECTOR = "hybridr_vector"


def empty_index(cluster: Cluster, name: str, settings: dict[str, Any], mappings: dict[str, Any]) -> None:
    index = {"knn": True, "number_of_replicas": 0, **settings}
    cluster.request("PUT", path_of(name), {"settings": index, "mappings": mappings})


def knn_index(cluster: Cluster, name: str, count: int, **settings: Any) -> None:
    """An index of the user's with `index.knn`, strict mapping, and settings that must stay."""
    properties = {"text": {"type": "text"}, "price": {"type": "float"}, "tags": {"type": "keyword"}}
    index = {"knn": True, "number_of_replicas": 0, "number_of_shards": 2, "refresh_interval": "17s"}
    fill_index(
        cluster,
        name,
        count,
        settings={**index, **settings},
        mappings={"dynamic": "strict", "properties": properties, "_meta": {"owner": "somebody"}},
    )


@pytest.fixture
def index(cluster: Cluster, index_name: str) -> str:
    """An index of 40 documents over 2 shards with vectors in place."""
    knn_index(cluster, index_name, 40)
    reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    return index_name


def update(cluster: Cluster, index: str, doc_id: str, **changes: Any) -> None:
    cluster.request("POST", path_of(index, "_update", doc_id), {"doc": changes}, {"refresh": "true"})


def raw(cluster: Cluster, index: str) -> dict[str, dict[str, Any]]:
    cluster.refresh(index)
    return {found.doc_id: found.source for found in read_documents(cluster, index)}


def assert_vectors_fit(cluster: Cluster, index: str) -> None:
    """Every document has the vector of its present text, or none without text; a mark each."""
    for doc_id, source in raw(cluster, index).items():
        assert MARK_FIELD in source, doc_id
        assert bool(source.get("text", "").strip()) == (VECTOR in source), doc_id
        if VECTOR in source:
            expected = HashingEncoder().encode_queries([source["text"]])[0]
            np.testing.assert_allclose(source[VECTOR], expected, atol=1e-5, err_msg=doc_id)


def ok(cluster: Cluster, index: str) -> bool:
    return verify_in_place(cluster, cluster.index_info(index), HashingEncoder()).ok


def did(done: Syncing) -> tuple[int, int, int, int]:
    return done.copied, done.deleted, done.renewed, done.waiting


# --- the happy path ---------------------------------------------------------------------------------------


def test_vectors_go_into_the_index_itself(cluster: Cluster, index_name: str) -> None:
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
    completed = SearchSettings(fusion="completed")
    search = Search(cluster, index_name, HashingEncoder(), settings=completed)
    assert search(text_number(7), 1)[0].doc_id == "d7"
    assert ok(cluster, index_name)
    (holding,) = standing(cluster, index_name).holdings
    assert (holding.index, holding.documents, holding.current, holding.in_place) == (index_name, 41, 41, True)


def test_running_it_again_encodes_what_changed(cluster: Cluster, index: str) -> None:
    put_documents(cluster, index, [3, 41], suffix=" by a client")
    encoder = HashingEncoder()
    done = reindex(cluster, index, encoder, ReindexSettings(in_place=True, workers=3))
    assert (done.encoded, done.skipped) == (2, 39)
    assert len(encoder.encoded) == 2 + 41, "what changed, and the sample of the verification"
    assert_vectors_fit(cluster, index)


@pytest.mark.parametrize("form", [{"vectors": "byte"}, {"vectors": "sq"}, {"vectors": "on_disk"}])
def test_smaller_vectors_in_place(cluster: Cluster, index_name: str, form: dict[str, Any]) -> None:
    knn_index(cluster, index_name, 30)
    settings = ReindexSettings(in_place=True, fields=("text",), **form)
    reindex(cluster, index_name, HashingEncoder(), settings)
    assert ok(cluster, index_name)
    assert Search(cluster, index_name, HashingEncoder(), "dense")(text_number(7), 1)[0].doc_id == "d7"
    remove(cluster, index_name)
    assert reindex(cluster, index_name, HashingEncoder(), settings).encoded == 30


def test_exact_numbers_odd_ids_and_routing_survive(cluster: Cluster, index_name: str) -> None:
    properties = {"text": {"type": "text"}, "kept": {"type": "object", "enabled": False}}
    mappings = {"properties": properties, "_routing": {"required": True}}
    empty_index(cluster, index_name, {"number_of_shards": 3}, mappings)
    kept = {"huge": 123456789012345678901234567890, "small": 5e-324, "a.b": [1, None, {"z": "\u0000é漢"}]}
    ids = ["a b/c?d#", "é" * 256, "plain", "\u202eodd"]
    lines: list[dict[str, Any]] = []
    for number, doc_id in enumerate(ids):
        lines.append({"index": {"_id": doc_id, "routing": f"r{number}"}})
        lines.append({"text": text_number(number), "kept": kept})
    bulk(cluster, index_name, lines)
    before = {found.doc_id: found for found in read_documents(cluster, index_name)}
    assert reindex(cluster, index_name, HashingEncoder(), IN_PLACE).encoded == 4
    after = {found.doc_id: found for found in read_documents(cluster, index_name)}
    assert sources(cluster, index_name) == {doc_id: found.source for doc_id, found in before.items()}
    assert {i: d.routing for i, d in after.items()} == {i: d.routing for i, d in before.items()}
    remove(cluster, index_name)
    assert raw(cluster, index_name) == {doc_id: found.source for doc_id, found in before.items()}


def test_pipelines_do_not_run_on_our_writes(cluster: Cluster, index_name: str) -> None:
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


# --- what clients write -----------------------------------------------------------------------------------


def test_partial_update_then_verify_then_sync(cluster: Cluster, index: str) -> None:
    before = raw(cluster, index)["d4"]
    update(cluster, index, "d4", text="velvet window by a partial update")
    after = raw(cluster, index)["d4"]
    assert (after[VECTOR], after[MARK_FIELD]) == (before[VECTOR], before[MARK_FIELD]), "both stay: a trap"
    found = verify_in_place(cluster, cluster.index_info(index), HashingEncoder())
    assert [(one.name, one.differing) for one in found.findings if not one.ok] == [
        ("vector of an older text", ["d4"])
    ]
    assert standing(cluster, index).holdings[0].current == 39
    encoder = HashingEncoder()
    assert did(sync(cluster, index, encoder)) == (0, 0, 1, 0)
    assert encoder.encoded == ["velvet window by a partial update"]
    assert ok(cluster, index)
    assert_vectors_fit(cluster, index)
    assert standing(cluster, index).holdings[0].current == 40


def test_a_change_beside_the_text_costs_no_encoding(cluster: Cluster, index: str) -> None:
    update(cluster, index, "d5", price=99.0)
    assert ok(cluster, index)
    encoder = HashingEncoder()
    assert did(sync(cluster, index, encoder)) == (0, 0, 0, 0)
    assert encoder.encoded == []
    assert raw(cluster, index)["d5"]["price"] == 99.0


def test_whole_documents_new_ones_and_copies_get_their_vector(cluster: Cluster, index: str) -> None:
    put_documents(cluster, index, [3, 40], suffix=" by a client")
    copied = raw(cluster, index)["d6"] | {"text": "read, changed and written back whole"}
    bulk(cluster, index, [{"index": {"_id": "d6"}}, copied])
    cluster.request("DELETE", path_of(index, "_doc", "d7"), params={"refresh": "true"})
    assert not ok(cluster, index)
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 3, 0)
    assert_vectors_fit(cluster, index)
    assert "d7" not in raw(cluster, index)
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 0, 0)


def test_a_text_that_a_client_removed_takes_its_vector_along(cluster: Cluster, index: str) -> None:
    update(cluster, index, "d4", text="")
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 1, 0)
    found = raw(cluster, index)["d4"]
    assert VECTOR not in found
    assert found["price"] == 0.4
    assert ok(cluster, index)


def test_a_vector_that_a_client_removed_comes_back(cluster: Cluster, index: str) -> None:
    script = {"script": {"source": f"ctx._source.remove('{VECTOR}')"}}
    cluster.request("POST", path_of(index, "_update", "d4"), script, {"refresh": "true"})
    found = verify_in_place(cluster, cluster.index_info(index), HashingEncoder())
    assert [one.differing for one in found.findings if one.name == "mark without its vector"] == [["d4"]]
    assert standing(cluster, index).holdings[0].current == 39
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 1, 0)
    assert ok(cluster, index)


def test_a_newer_write_is_never_overwritten(cluster: Cluster, index: str) -> None:
    class Overtaken(HashingEncoder):
        def encode_documents(self, texts: Any, *, max_tokens: int | None = None) -> np.ndarray:
            update(cluster, index, "d4", text="the newest text", price=7.0)
            bulk(cluster, index, [{"delete": {"_id": "d5"}}])
            return super().encode_documents(texts, max_tokens=max_tokens)

    update(cluster, index, "d4", text="a newer text")
    update(cluster, index, "d5", text="soon deleted")
    assert sync(cluster, index, Overtaken()).waiting == 1
    found = raw(cluster, index)
    assert "d5" not in found
    assert (found["d4"]["text"], found["d4"]["price"]) == ("the newest text", 7.0)
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 1, 0)
    assert_vectors_fit(cluster, index)


def test_sync_reads_only_what_lies_behind_the_settled_position(
    cluster: Cluster, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(cluster, index, HashingEncoder())  # reads once what the reindex wrote last
    read: list[str] = []
    original = in_place.pages_of

    def watching(*given: Any) -> Any:
        for page in original(*given):
            read.extend(document.doc_id for document in page)
            yield page

    monkeypatch.setattr(in_place, "pages_of", watching)
    sync(cluster, index, HashingEncoder())
    assert read == []
    update(cluster, index, "d4", text="changed")
    assert sync(cluster, index, HashingEncoder()).renewed == 1
    assert read == ["d4"]
    sync(cluster, index, HashingEncoder())
    assert read == ["d4", "d4"], "our own write, once more, without encoding"


# --- writers all the time ---------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Writes whole documents, partial updates and deletes to its own ids, and remembers what must be there.

    Only its own 409, which a client that knows other writers tries again, is tried again.
    """

    def __init__(self, url: str, index: str, ids: list[str], seed: int, start: dict[str, Any]) -> None:
        super().__init__()
        self.cluster, self.index, self.ids, self.dice = connect(url), index, ids, random.Random(seed)
        self.stop, self.failures, self.writes = threading.Event(), [], 0
        self.state: dict[str, Any] = {doc_id: start[doc_id] for doc_id in ids if doc_id in start}

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self.write(self.dice.choice(self.ids), self.dice.random())
                self.writes += 1
            except Exception as error:  # whatever it is, the test must see it
                self.failures.append(repr(error))
            self.stop.wait(0.01)

    def write(self, doc_id: str, chance: float) -> None:
        text = f"{text_number(self.dice.randrange(500))} {self.dice.random():.6f}"
        there = self.state.get(doc_id)
        if there is None or chance < 0.25:
            self.state[doc_id] = {"text": text, "price": self.dice.randrange(1000) / 8, "tags": ["w"]}
            self.cluster.request("PUT", path_of(self.index, "_doc", doc_id), self.state[doc_id])
        elif chance < 0.35:
            del self.state[doc_id]
            self.cluster.request("DELETE", path_of(self.index, "_doc", doc_id))
        else:
            change = {"text": text} if chance < 0.6 else {"price": self.dice.randrange(1000) / 8}
            self.state[doc_id] = {**there, **change}
            path, again = path_of(self.index, "_update", doc_id), {"retry_on_conflict": "20"}
            self.cluster.request("POST", path, {"doc": change}, again)


class Slow(HashingEncoder):
    """Gives the writers time to get between reading and writing."""

    def encode_documents(self, texts: Any, *, max_tokens: int | None = None) -> np.ndarray:
        time.sleep(0.05)
        return super().encode_documents(texts, max_tokens=max_tokens)


def under_writers(cluster: Cluster, index: str) -> tuple[dict[str, Any], int]:
    """Reindex in place and sync while three writers write; give what must be there, and our conflicts."""
    knn_index(cluster, index, 300)
    start = sources(cluster, index)
    seed = random.randrange(10**6)
    sys.stdout.write(f"seed {seed}\n")
    writers = [
        Writer(cluster.url, index, [f"d{n}" for n in range(330) if n % 3 == number], seed + number, start)
        for number in range(3)
    ]
    waiting = 0
    settings = IN_PLACE.model_copy(update={"read_documents": 25, "workers": 2})
    for writer in writers:
        writer.start()
    try:
        reindex(cluster, index, Slow(), settings)
        for _ in range(4):
            waiting += sync(cluster, index, Slow(), settings).waiting
    finally:
        for writer in writers:
            writer.stop.set()
        for writer in writers:
            writer.join()
    assert [writer.failures for writer in writers] == [[], [], []]
    assert sum(writer.writes for writer in writers) > 100
    return {doc_id: body for writer in writers for doc_id, body in writer.state.items()}, waiting


def test_no_write_is_lost_and_every_vector_fits(cluster: Cluster, index_name: str) -> None:
    expected, _ = under_writers(cluster, index_name)
    for _ in range(2):
        sync(cluster, index_name, HashingEncoder())
    assert sources(cluster, index_name) == expected
    assert_vectors_fit(cluster, index_name)
    assert ok(cluster, index_name)


def test_without_the_condition_writes_would_be_lost(
    cluster: Cluster, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition is what keeps a vector of an older text from looking current."""
    original = in_place.update_action

    def unconditional(doc_id: str, change: dict[str, Any], **options: Any) -> Any:
        return original(doc_id, change, routing=options["routing"])

    class Overtaken(HashingEncoder):
        def encode_documents(self, texts: Any, *, max_tokens: int | None = None) -> np.ndarray:
            update(cluster, index, "d4", text="the newest text")
            return super().encode_documents(texts, max_tokens=max_tokens)

    monkeypatch.setattr(in_place, "update_action", unconditional)
    update(cluster, index, "d4", text="a newer text")
    assert sync(cluster, index, Overtaken()).waiting == 0
    with pytest.raises(AssertionError):
        assert_vectors_fit(cluster, index)


# --- restart ----------------------------------------------------------------------------------------------


def test_interrupted_run_encodes_only_the_rest(cluster: Cluster, index_name: str) -> None:
    class Failing(HashingEncoder):
        def encode_documents(self, texts: Any, *, max_tokens: int | None = None) -> np.ndarray:
            if len(self.encoded) >= 100:
                raise ModelError("out of memory")
            return super().encode_documents(texts, max_tokens=max_tokens)

    knn_index(cluster, index_name, 200)
    settings = IN_PLACE.model_copy(update={"read_documents": 20})
    with pytest.raises(ModelError):
        reindex(cluster, index_name, Failing(), settings)
    with pytest.raises(DataError, match="not complete") as refused:
        Search(cluster, index_name, HashingEncoder(), "dense")
    assert refused.value.hint is not None
    assert "--in-place" in refused.value.hint
    with pytest.raises(DataError, match="no complete"):
        sync(cluster, index_name, HashingEncoder())
    done = reindex(cluster, index_name, HashingEncoder(), settings)
    assert (done.encoded + done.skipped, done.skipped >= 60) == (200, True)
    assert_vectors_fit(cluster, index_name)


def test_kill_9_then_the_same_command(
    cluster: Cluster, index_name: str, minilm_encoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command line with the packaged MiniLM: killed, resumed, changed, synced, removed."""
    knn_index(cluster, index_name, 400)
    before = sources(cluster, index_name)
    connection = ["--url", cluster.url]
    command = [
        "reindex",
        index_name,
        "--in-place",
        "--encoder",
        str(minilm_encoder_folder),
        "--max-docs-per-second",
        "100",
        *connection,
    ]
    environment = os.environ | {"HYBRIDR_REINDEX_READ_DOCUMENTS": "20"}
    process = subprocess.Popen([sys.executable, "-m", "hybridr_cli", *command], env=environment)
    held = {"query": {"exists": {"field": MARK_FIELD}}}
    deadline = time.monotonic() + 60
    while marked(cluster, index_name, held) < 100 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    there = marked(cluster, index_name, held)
    assert 100 <= there < 400
    assert hybridr_cli.main([*command[:-4], *connection, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["skipped"], done["encoded"]) == (there, 400 - there)
    assert sources(cluster, index_name) == before
    assert hybridr_cli.main(["search", index_name, text_number(7), *connection, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hits"][0]["doc_id"] == "d7"
    for verb in ("verify", "status"):
        assert hybridr_cli.main([verb, index_name, *connection]) == 0
    shown = capsys.readouterr().out
    assert "400 of 400 documents current (100.0%)" in shown
    update(cluster, index_name, "d4", text="a velvet window by a partial update")
    assert hybridr_cli.main(["verify", index_name, *connection]) == 1
    assert "vector of an older text: 1 of 400 documents: d4" in capsys.readouterr().out
    assert hybridr_cli.main(["sync", index_name, *connection]) == 0
    assert hybridr_cli.main(["verify", index_name, *connection]) == 0
    assert hybridr_cli.main(["rollback", index_name, *connection]) == 1
    capsys.readouterr()
    assert hybridr_cli.main(["remove", index_name, *connection, "--dry-run"]) == 0
    assert f"{VECTOR} and {MARK_FIELD}: taken out of 400 documents" in capsys.readouterr().out
    assert marked(cluster, index_name, held) == 400
    assert hybridr_cli.main(["remove", index_name, *connection, "--yes"]) == 0
    assert "stay in the mapping" in capsys.readouterr().out
    assert raw(cluster, index_name).keys() == before.keys()
    assert all(
        VECTOR not in source and MARK_FIELD not in source for source in raw(cluster, index_name).values()
    )


def marked(cluster: Cluster, index: str, query: dict[str, Any]) -> int:
    if VECTOR not in cluster.index_info(index).mappings["properties"]:
        return 0
    cluster.refresh(index)
    return int(cluster.search(index, {"size": 0, **query})["hits"]["total"]["value"])


# --- refused documents ------------------------------------------------------------------------------------


def refusing_index(cluster: Cluster, index_name: str) -> None:
    """An index whose document `bad` was taken before the mapping grew too strict for it."""
    properties = {"text": {"type": "text"}, "open": {"type": "object", "dynamic": True}}
    empty_index(cluster, index_name, {}, {"dynamic": False, "properties": properties})
    bulk(cluster, index_name, [{"index": {"_id": "bad"}}, {"text": "a bad one", "late": "not a number"}])
    for number in range(5):
        bulk(cluster, index_name, [{"index": {"_id": f"d{number}"}}, {"text": text_number(number)}])
    cluster.request("PUT", path_of(index_name, "_mapping"), {"properties": {"late": {"type": "long"}}})


def test_refused_documents_leave_it_incomplete(
    cluster: Cluster, index_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing_index(cluster, index_name)
    done = reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    assert (done.rejected, done.encoded) == (1, 6)
    assert "late" in rejects_of(index_name).file.read_text()
    assert cluster.index_info(index_name).record.state == "filling"
    with pytest.raises(DataError, match="not complete"):
        Search(cluster, index_name, HashingEncoder(), "dense")
    accepted = IN_PLACE.model_copy(update={"accept_rejects": True})
    assert reindex(cluster, index_name, HashingEncoder(), accepted).rejected == 1
    assert Search(cluster, index_name, HashingEncoder(), "dense")(text_number(2), 1)[0].doc_id == "d2"
    assert raw(cluster, index_name)["bad"] == {"text": "a bad one", "late": "not a number"}


def test_refused_documents_exit_3(
    cluster: Cluster, index_name: str, minilm_encoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusing_index(cluster, index_name)
    command = ["reindex", index_name, "--in-place", "--url", cluster.url]
    assert hybridr_cli.main(command) == 3
    assert "1 refused by the index" in capsys.readouterr().out


# --- refused at once --------------------------------------------------------------------------------------


def test_dry_run_sends_nothing(
    cluster: Cluster, index_name: str, minilm_encoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    knn_index(cluster, index_name, 10)
    before = cluster.index_info(index_name), cluster.request("GET", path_of(index_name, "_stats", "indexing"))
    command = ["reindex", index_name, "--in-place", "--dry-run", "--url", cluster.url]
    assert hybridr_cli.main(command) == 0
    shown = capsys.readouterr().out
    assert f"PUT /{index_name}/_mapping" in shown
    assert "old copy stays on disk" in shown
    assert "disk: about" in shown
    assert "nothing was sent" in shown
    assert hybridr_cli.main([*command, "--json"]) == 0
    todo = json.loads(capsys.readouterr().out)
    assert todo["requests"][0]["body"]["properties"].keys() == {VECTOR, MARK_FIELD}
    assert (todo["documents"], todo["dry_run"], todo["exists"]) == (10, True, False)
    after = cluster.index_info(index_name), cluster.request("GET", path_of(index_name, "_stats", "indexing"))
    assert after[0] == before[0]
    total = "_all", "total", "indexing", "index_total"
    assert dig(after[1], total) == dig(before[1], total)


def dig(found: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        found = found[name]
    return found


@pytest.mark.parametrize(
    ("settings", "mappings", "reason", "hint"),
    [
        ({"knn": False}, {}, "without index.knn", "without --in-place"),
        ({}, {"_source": {"enabled": False}}, "does not keep its documents", ""),
        ({}, {"_source": {"excludes": ["price"]}}, "does not keep its documents whole", ""),
        ({}, {"properties": {VECTOR: {"type": "keyword"}}}, f"field '{VECTOR}' already", "--vector-field"),
        ({}, {"properties": {MARK_FIELD: {"type": "text"}}}, f"field '{MARK_FIELD}' already", ""),
        ({"blocks.write": True}, {}, "index.blocks.write", "lift it"),
    ],
)
def test_refusals_before_anything_is_sent(
    cluster: Cluster,
    index_name: str,
    settings: dict[str, Any],
    mappings: dict[str, Any],
    reason: str,
    hint: str,
) -> None:
    properties = {"text": {"type": "text"}, **mappings.pop("properties", {})}
    knn = {name: value for name, value in settings.items() if name == "knn"}
    empty_index(cluster, index_name, knn, mappings | {"properties": properties})
    bulk(cluster, index_name, [{"index": {"_id": "d1"}}, {"text": "anchor basket"}])
    blocks = {name: value for name, value in settings.items() if name.startswith("blocks")}
    cluster.request("PUT", path_of(index_name, "_settings"), {"index": blocks or {"refresh_interval": "1s"}})
    before = cluster.index_info(index_name)
    with pytest.raises(HybridrError, match=reason) as refused:
        reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    assert hint in (refused.value.hint or "")
    assert cluster.index_info(index_name) == before
    if blocks:
        cluster.request("PUT", path_of(index_name, "_settings"), {"index": dict.fromkeys(blocks, False)})


def test_an_index_that_is_missing_closed_empty_or_a_data_stream_is_refused(
    cluster: Cluster, index_name: str
) -> None:
    def refused(name: str, reason: str) -> None:
        with pytest.raises(HybridrError, match=reason):
            plan_in_place(cluster, name, HashingEncoder(), ReindexSettings(in_place=True))

    refused(index_name, "no index")
    empty_index(cluster, index_name, {}, {"properties": {"text": {"type": "text"}}})
    refused(index_name, "is empty")
    cluster.request("POST", path_of(index_name, "_close"))
    refused(index_name, "is closed")
    stream, template = f"{index_name}-stream", f"{index_name}-template"
    body = {"index_patterns": [stream], "data_stream": {}, "template": {"settings": {"index.knn": True}}}
    cluster.request("PUT", path_of("_index_template", template), body)
    try:
        cluster.request("PUT", path_of("_data_stream", stream))
        refused(stream, "data stream")
    finally:
        cluster.request("DELETE", path_of("_data_stream", stream))
        cluster.request("DELETE", path_of("_index_template", template))


def test_a_copy_with_the_record_of_another_index_is_looked_at_whole(
    cluster: Cluster, index_name: str, index: str
) -> None:
    copy = f"{index_name}-copy"
    settings = path_of(index, "_settings")
    cluster.request("PUT", settings, {"index": {"blocks.write": True}})
    body = {"settings": {"index.blocks.write": None, "number_of_replicas": 0}}
    cluster.request("POST", path_of(index, "_clone", copy), body)
    cluster.request("PUT", settings, {"index": {"blocks.write": False}})
    cluster.wait_until_usable(copy)
    with pytest.raises(ClusterError, match="is a copy of"):
        reindex(cluster, copy, HashingEncoder(), IN_PLACE)
    with pytest.raises(DataError, match="is a copy of"):
        ok(cluster, copy)
    update(cluster, copy, "d4", text="changed in the copy")
    assert did(sync(cluster, copy, HashingEncoder())) == (0, 0, 1, 0)
    assert ok(cluster, copy)
    assert reindex(cluster, copy, HashingEncoder(), IN_PLACE).encoded == 0
    assert ok(cluster, index)


def test_a_client_that_puts_its_own_meta_costs_no_encoding(cluster: Cluster, index: str) -> None:
    cluster.request("PUT", path_of(index, "_mapping"), {"_meta": {"owner": "a deployment"}})
    with pytest.raises(DataError, match="no vectors"):
        Search(cluster, index, HashingEncoder(), "dense")
    with pytest.raises(DataError, match="not free"):
        reindex(cluster, index, HashingEncoder(salt="other"), IN_PLACE)
    done = reindex(cluster, index, HashingEncoder(), IN_PLACE)
    assert (done.encoded, done.skipped) == (0, 40)
    assert cluster.index_info(index).mappings["_meta"]["owner"] == "a deployment"
    assert ok(cluster, index)


def test_an_alias_stands_for_its_index(cluster: Cluster, index_name: str) -> None:
    knn_index(cluster, index_name, 10)
    alias = f"{index_name}-live"
    cluster.request("PUT", path_of(index_name, "_alias", alias))
    assert reindex(cluster, alias, HashingEncoder(), IN_PLACE).destination == index_name
    update(cluster, alias, "d4", text="changed")
    assert sync(cluster, alias, HashingEncoder()).renewed == 1
    assert Search(cluster, alias, HashingEncoder(), "dense")(text_number(7), 1)[0].doc_id == "d7"
    assert standing(cluster, alias).holdings[0].current == 10
    assert remove(cluster, alias)["documents"] == 10
    assert cluster.index_info(index_name).aliases == {alias: {}}


def test_options_of_a_second_index_are_refused(cluster: Cluster, index_name: str) -> None:
    knn_index(cluster, index_name, 3)
    for option in ({"alias": "other"}, {"slice": "1/2"}, {"vector_field": "a.b"}):
        with pytest.raises(SettingsError):
            reindex(cluster, index_name, HashingEncoder(), ReindexSettings(in_place=True, **option))


def test_one_index_has_its_vectors_in_one_place(cluster: Cluster, index_name: str, index: str) -> None:
    with pytest.raises(ClusterError, match="holds its vectors itself"):
        reindex(cluster, index, HashingEncoder())
    with pytest.raises(ClusterError, match="another encoder") as refused:
        reindex(cluster, index, HashingEncoder(salt="other"), IN_PLACE)
    assert refused.value.hint is not None
    assert "hybridr remove" in refused.value.hint
    with pytest.raises(ClusterError, match="no older index"):
        rollback(cluster, index)
    remove(cluster, index)
    made = reindex(cluster, index, HashingEncoder(), ReindexSettings(vector_field="other")).destination
    for name in (index, made):
        with pytest.raises(ClusterError, match="already|was made by hybridr"):
            reindex(cluster, name, HashingEncoder(), IN_PLACE)
    assert standing(cluster, index).holdings[0].index == made


def test_versions_that_writers_number_are_refused(cluster: Cluster, index_name: str) -> None:
    knn_index(cluster, index_name, 10)
    external = {"version": "1700000000", "version_type": "external", "refresh": "true"}
    cluster.request("PUT", path_of(index_name, "_doc", "own"), {"text": "anchor"}, external)
    before = cluster.index_info(index_name)
    with pytest.raises(DataError, match="version_type=external"):
        reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    assert cluster.index_info(index_name) == before


def test_an_external_version_that_comes_later_stops_sync(cluster: Cluster, index: str) -> None:
    external = {"version": "1700000000", "version_type": "external", "refresh": "true"}
    cluster.request("PUT", path_of(index, "_doc", "d4"), {"text": "anchor"}, external)
    with pytest.raises(DataError, match="version_type=external"):
        sync(cluster, index, HashingEncoder())
    external["version"] = "1700000001"
    cluster.request("PUT", path_of(index, "_doc", "d4"), {"text": "its next version is taken"}, external)


def test_what_an_update_does_to_a_version_of_its_own(cluster: Cluster, index_name: str) -> None:
    """Why they are refused: the writer's next version is no longer newer."""
    knn_index(cluster, index_name, 10)
    for version in ("1", "2"):  # one for each write: nothing tells them from the server's own
        external = {"version": version, "version_type": "external", "refresh": "true"}
        cluster.request("PUT", path_of(index_name, "_doc", "own"), {"text": f"anchor {version}"}, external)
    reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    external["version"] = "3"
    with pytest.raises(ClusterError, match="version conflict"):
        cluster.request("PUT", path_of(index_name, "_doc", "own"), {"text": "anchor 3"}, external)


# --- remove -----------------------------------------------------------------------------------------------


def test_remove_leaves_documents_and_settings_as_they_were(cluster: Cluster, index_name: str) -> None:
    knn_index(cluster, index_name, 30)
    before, info = raw(cluster, index_name), cluster.index_info(index_name)
    reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    done = remove(cluster, index_name)
    assert (done["documents"], done["fields"], done["indices"]) == (30, [VECTOR, MARK_FIELD], [])
    assert raw(cluster, index_name) == before
    after = cluster.index_info(index_name)
    assert after.settings == info.settings
    assert after.mappings["_meta"] == {"owner": "somebody"}
    assert after.mappings["properties"].keys() - info.mappings["properties"].keys() == {VECTOR, MARK_FIELD}
    assert standing(cluster, index_name).holdings == []
    with pytest.raises(NotFound):
        remove(cluster, index_name)
    with pytest.raises(DataError, match="no vectors"):
        Search(cluster, index_name, HashingEncoder(), "dense")
    assert reindex(cluster, index_name, HashingEncoder(), IN_PLACE).encoded == 30


def test_remove_goes_on_and_keeps_what_clients_write(
    cluster: Cluster, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridr import status

    original, calls = status.write, []

    def failing(*given: Any, **options: Any) -> Outcome:
        if calls:
            raise ClusterError("the line went dead")
        calls.append(1)
        update(cluster, index, "d4", price=77.0)
        return original(*given, **options)

    monkeypatch.setattr(status, "write", failing)
    monkeypatch.setattr(status, "PAGE", 10)
    with pytest.raises(ClusterError, match="line"):
        remove(cluster, index)
    with pytest.raises(DataError, match="not complete"):
        Search(cluster, index, HashingEncoder(), "dense")
    monkeypatch.setattr(status, "write", original)
    assert remove(cluster, index)["documents"] > 0
    found = raw(cluster, index)
    assert found["d4"]["price"] == 77.0
    assert all(VECTOR not in source and MARK_FIELD not in source for source in found.values())


# --- other clusters and rights ----------------------------------------------------------------------------


def test_the_older_version_with_tls(secure_node: state.NodeState, index_name: str) -> None:
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


def test_without_the_right_to_ask_for_checkpoints(
    cluster: Cluster, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridr.reindexing import filling

    monkeypatch.setattr(filling, "settled_position", lambda *_, **__: None)
    knn_index(cluster, index_name, 40, refresh_interval="1s")
    assert reindex(cluster, index_name, HashingEncoder(), IN_PLACE).encoded == 40
    assert cluster.index_info(index_name).record.synced is None
    update(cluster, index_name, "d4", text="changed")
    assert did(sync(cluster, index_name, HashingEncoder())) == (0, 0, 1, 0)
    assert_vectors_fit(cluster, index_name)
