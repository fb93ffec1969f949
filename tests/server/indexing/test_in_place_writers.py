"""Vectors in place while clients write: no write is lost, no stale vector stays."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

from hybridr import connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import write_record
from hybridr.cluster.record import MARK_FIELD
from hybridr.cluster.record_parts import Tuned
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.targets import in_place
from hybridr.indexing.verification import verify
from hybridr.status.standing import status
from support.corpus import bulk, put_documents, sources, text_number, update
from support.hashing import HashingEncoder
from support.in_place_index import IN_PLACE, VECTOR, assert_vectors_fit, did, knn_index, ok, raw


def test_what_is_recorded_after_the_plan_stays(cluster, index):
    todo = plan(cluster, index, HashingEncoder(), IN_PLACE)
    write_record(cluster, index, tuning=Tuned(search={"depth": 7}))
    in_place.InPlace().begin(cluster, todo)
    record = cluster.index_info(index).record
    assert record.tuning.search == {"depth": 7}
    assert (record.in_place, record.state) == (True, "complete")


# --- what clients write


def test_what_clients_write_is_verified_and_synced(cluster, index):
    before = raw(cluster, index)["d4"]
    update(cluster, index, "d4", text="velvet window by a partial update")
    after = raw(cluster, index)["d4"]
    assert (after[VECTOR], after[MARK_FIELD]) == (before[VECTOR], before[MARK_FIELD]), "both stay: a trap"
    found = verify(cluster, index, HashingEncoder())
    assert [(one.name, one.differing) for one in found.findings if not one.ok] == [
        ("vector of an older text", ["d4"])
    ]
    assert status(cluster, index).holdings[0].current == 39
    encoder = HashingEncoder()
    assert did(sync(cluster, index, encoder)) == (0, 0, 1, 0)
    assert encoder.encoded == ["velvet window by a partial update"]
    assert ok(cluster, index)
    assert_vectors_fit(cluster, index)
    assert status(cluster, index).holdings[0].current == 40

    # A change beside the text costs no encoding.
    update(cluster, index, "d5", price=99.0)
    assert ok(cluster, index)
    encoder = HashingEncoder()
    assert did(sync(cluster, index, encoder)) == (0, 0, 0, 0)
    assert encoder.encoded == []
    assert raw(cluster, index)["d5"]["price"] == 99.0

    # A vector that a client removed comes back.
    script = {"script": {"source": f"ctx._source.remove('{VECTOR}')"}}
    cluster.request("POST", path_of(index, "_update", "d4"), script, {"refresh": "true"})
    found = verify(cluster, index, HashingEncoder())
    assert [one.differing for one in found.findings if one.name == "mark without its vector"] == [["d4"]]
    assert status(cluster, index).holdings[0].current == 39
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 1, 0)
    assert ok(cluster, index)

    # A text that a client removed takes its vector along.
    update(cluster, index, "d4", text="")
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 1, 0)
    found = raw(cluster, index)["d4"]
    assert VECTOR not in found
    assert found["price"] == 0.4
    assert ok(cluster, index)

    # Whole documents new ones and copies get their vector.
    put_documents(cluster, index, [3, 40], suffix=" by a client")
    copied = raw(cluster, index)["d6"] | {"text": "read, changed and written back whole"}
    bulk(cluster, index, [{"index": {"_id": "d6"}}, copied])
    cluster.request("DELETE", path_of(index, "_doc", "d7"), params={"refresh": "true"})
    assert not ok(cluster, index)
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 3, 0)
    assert_vectors_fit(cluster, index)
    assert "d7" not in raw(cluster, index)
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 0, 0)


def test_a_newer_write_is_never_overwritten(cluster, index):
    def overtake(texts: Any) -> None:
        if "a newer text" in texts:  # not while the other shard may still be unread
            update(cluster, index, "d4", text="the newest text", price=7.0)
            bulk(cluster, index, [{"delete": {"_id": "d5"}}])

    update(cluster, index, "d4", text="a newer text")
    update(cluster, index, "d5", text="soon deleted")
    assert sync(cluster, index, HashingEncoder(before=overtake)).waiting == 1
    found = raw(cluster, index)
    assert "d5" not in found
    assert (found["d4"]["text"], found["d4"]["price"]) == ("the newest text", 7.0)
    assert did(sync(cluster, index, HashingEncoder())) == (0, 0, 1, 0)
    assert_vectors_fit(cluster, index)


def test_sync_reads_only_what_lies_behind_the_settled_position(cluster, index, monkeypatch):
    sync(cluster, index, HashingEncoder())  # reads once what the reindex wrote last
    read: list[str] = []
    original = in_place.pages_with_marks

    def watching(*given: Any) -> Any:
        for page in original(*given):
            read.extend(document.doc_id for document in page)
            yield page

    monkeypatch.setattr(in_place, "pages_with_marks", watching)
    sync(cluster, index, HashingEncoder())
    assert read == []
    update(cluster, index, "d4", text="changed")
    assert sync(cluster, index, HashingEncoder()).renewed == 1
    assert read == ["d4"]
    sync(cluster, index, HashingEncoder())
    assert read == ["d4", "d4"], "our own write, once more, without encoding"


# --- writers all the time


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


def under_writers(cluster: Cluster, index: str) -> dict[str, Any]:
    """Reindex in place and sync while three writers write; give what must be there."""
    knn_index(cluster, index, 150)
    start = sources(cluster, index)
    seed = random.randrange(10**6)
    sys.stdout.write(f"seed {seed}\n")
    writers = [
        Writer(cluster.url, index, [f"d{n}" for n in range(180) if n % 3 == number], seed + number, start)
        for number in range(3)
    ]
    settings = IN_PLACE.model_copy(update={"read_documents": 25, "workers": 2})
    slow = HashingEncoder(before=lambda _: time.sleep(0.05))  # writers get between reading and writing
    for writer in writers:
        writer.start()
    try:
        reindex(cluster, index, slow, settings)
        for _ in range(3):
            sync(cluster, index, slow, settings)
    finally:
        for writer in writers:
            writer.stop.set()
        for writer in writers:
            writer.join()
    assert [writer.failures for writer in writers] == [[], [], []]
    assert sum(writer.writes for writer in writers) > 100
    return {doc_id: body for writer in writers for doc_id, body in writer.state.items()}


def test_no_write_is_lost_and_every_vector_fits(cluster, index_name):
    expected = under_writers(cluster, index_name)
    for _ in range(2):
        sync(cluster, index_name, HashingEncoder())
    assert sources(cluster, index_name) == expected
    assert_vectors_fit(cluster, index_name)
    assert ok(cluster, index_name)
