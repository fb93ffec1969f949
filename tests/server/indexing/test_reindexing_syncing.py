"""Sync on a real node: what both sides write arrives, nothing newer is overwritten, nothing comes back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast
from urllib.request import urlopen

import pytest

import hybridr_cli
from hybridr import ReindexSettings, Search, SearchSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import counterparts
from hybridr.errors import DataError, FingerprintMismatch, NotFound
from hybridr.indexing import filling, lag
from hybridr.indexing.reindexing import SyncResult, reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.targets import beside
from hybridr.serving.rewriting.explaining import verdicts_on
from hybridr_cli.commands.sync import show_round
from hybridr_cli.output import Output
from hybridr_cli.session import Session
from support.corpus import (
    assert_vectors_of_texts,
    bulk,
    delete,
    fill_index,
    put_documents,
    reindexed,
    sources,
    text_number,
    update,
)
from support.hashing import HashingEncoder


def did(done: SyncResult) -> tuple[int, int, int]:
    return done.copied, done.deleted, done.renewed


def assert_vectors_are_those_of_the_texts(cluster: Cluster, alias: str) -> None:
    assert_vectors_of_texts(cluster, alias)
    marked = {"term": {"hybridr_encoder": HashingEncoder().fingerprint}}
    assert cluster.count(alias, marked) == cluster.count(alias)


def test_inserts_updates_and_deletes_of_the_source_arrive(cluster, index_name, alias, monkeypatch):
    """The dry run tells what the round then does; the next round reads only what happened since."""
    encoder = HashingEncoder()
    put_documents(cluster, index_name, range(5, 9), suffix=" changed")
    put_documents(cluster, index_name, range(40, 43))
    delete(cluster, index_name, "d2")
    update(cluster, alias, "d12", text="velvet window by a partial update")
    cluster.refresh(alias)
    before = sources(cluster, alias), cluster.index_info(alias)
    tried = sync(cluster, index_name, encoder, dry_run=True)
    assert (sources(cluster, alias), cluster.index_info(alias)) == before
    assert not encoder.encoded
    assert did(tried) == did(sync(cluster, index_name, encoder)) == (7, 1, 1)
    assert len(encoder.encoded) == 8
    there = sources(cluster, alias)
    assert there == sources(cluster, index_name) | {"d12": there["d12"]}
    assert_vectors_are_those_of_the_texts(cluster, alias)
    assert did(sync(cluster, index_name, encoder, dry_run=True)) == (0, 0, 0)
    assert did(sync(cluster, alias, encoder)) == (0, 0, 0)
    assert len(encoder.encoded) == 8
    looked_up: list[str] = []

    def watching(cluster: Cluster, destination: str, documents: Any, **options: Any) -> Any:
        looked_up.extend(document.doc_id for document in documents)
        return original(cluster, destination, documents, **options)

    original = beside.stored_states
    monkeypatch.setattr(beside, "stored_states", watching)
    put_documents(cluster, index_name, [7], suffix=" changed again")
    assert did(sync(cluster, index_name, HashingEncoder())) == (1, 0, 0)
    assert looked_up == ["d7"]


@pytest.mark.attack(74)
def test_two_at_once_leave_the_index_whole(cluster, index_name, alias):
    put_documents(cluster, index_name, range(5, 9), suffix=" changed")
    put_documents(cluster, index_name, range(40, 60))
    delete(cluster, index_name, "d2")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: sync(cluster, index_name, HashingEncoder()), range(2)))
    assert len(both) == 2
    assert sources(cluster, alias) == sources(cluster, index_name)
    assert_vectors_are_those_of_the_texts(cluster, alias)
    assert did(sync(cluster, alias, HashingEncoder())) == (0, 0, 0)


def test_after_a_deletion_only_the_ids_near_it_are_looked_up(cluster, index_name, monkeypatch):
    """Clients deleted and wrote in the destination too: neither hides what the source deleted."""
    alias = reindexed(
        cluster, index_name, 300, settings={"number_of_replicas": 0, "number_of_shards": 3}
    ).alias
    asked: list[str] = []

    def watching(cluster: Cluster, info: Any, documents: Any, **options: Any) -> Any:
        asked.extend(document.doc_id for document in documents)
        return counterparts(cluster, info, documents, **options)

    monkeypatch.setattr(lag, "counterparts", watching)
    update(cluster, alias, "d8", text="by a client")
    delete(cluster, alias, "d3")
    delete(cluster, index_name, "d2")
    assert cluster.count(alias) == cluster.count(index_name) == 299, "equal counts hide nothing"
    assert did(sync(cluster, index_name, HashingEncoder())) == (0, 1, 1)
    assert 1 <= len(asked) <= 3 * 16 + 1
    delete(cluster, index_name, "d8")
    delete(cluster, index_name, "d3")
    delete(cluster, index_name, "d200")
    assert did(sync(cluster, index_name, HashingEncoder())) == (0, 2, 0)
    assert sources(cluster, alias).keys() == sources(cluster, index_name).keys()


def test_what_clients_write_gets_its_vector_and_is_never_overwritten(cluster, index_name, alias):
    def overtake(_: object) -> None:
        update(cluster, alias, "d4", text="the newest text")

    update(cluster, alias, "d4", text="a newer text")
    done = sync(cluster, index_name, HashingEncoder(before=overtake))
    assert (done.renewed, done.waiting) == (0, 1)
    assert sources(cluster, alias)["d4"]["text"] == "the newest text"
    assert did(sync(cluster, index_name, HashingEncoder())) == (0, 0, 1)
    assert_vectors_are_those_of_the_texts(cluster, alias)

    # Documents of plain writers get their vector.
    bulk(cluster, alias, [{"index": {"_id": "own"}}, {"text": "zephyr zephyr zephyr"}])
    put_documents(cluster, alias, [3], suffix=" by a client")
    update(cluster, alias, "d4", text="velvet window by a partial update")
    update(cluster, alias, "d5", price=99.0)
    encoder = HashingEncoder()
    assert did(sync(cluster, index_name, encoder)) == (0, 0, 4)
    assert len(encoder.encoded) == 4
    assert_vectors_are_those_of_the_texts(cluster, alias)
    assert Search(cluster, index_name, HashingEncoder(), "dense")("zephyr")[0].doc_id == "own"
    written = sources(cluster, alias)
    assert written["d3"]["text"] == text_number(3) + " by a client"
    assert written["d5"] == sources(cluster, index_name)["d5"] | {"price": 99.0}
    assert did(sync(cluster, index_name, encoder)) == (0, 0, 0)

    # A text that a client removed takes its vector along.
    update(cluster, alias, "d4", text="")
    assert did(sync(cluster, index_name, HashingEncoder())) == (0, 0, 1)
    found = cluster.request("GET", path_of(alias, "_doc", "d4"))["_source"]
    assert "hybridr_vector" not in found


def test_a_later_change_of_the_source_replaces_what_clients_wrote(cluster, index_name, alias):
    for round_ in range(3):
        update(cluster, alias, "d4", text=f"by a client {round_}")
        update(cluster, alias, "d5", text=f"by a client {round_}")
    sync(cluster, index_name, HashingEncoder())
    put_documents(cluster, index_name, [4], suffix=" by the source")
    delete(cluster, index_name, "d5")
    assert did(sync(cluster, index_name, HashingEncoder())) == (1, 1, 0)
    assert sources(cluster, alias) == sources(cluster, index_name)
    assert_vectors_are_those_of_the_texts(cluster, alias)


def test_without_the_right_to_ask_for_checkpoints_every_round_looks_at_all(cluster, index_name, monkeypatch):
    for user in (filling, beside):
        monkeypatch.setattr(user, "settled_position", lambda *_, **__: None)
    done = reindexed(cluster, index_name, 30)
    assert done.switched
    assert cluster.index_info(done.destination).record.synced is None
    put_documents(cluster, index_name, [7, 31, 32], suffix=" changed")
    delete(cluster, index_name, "d2")
    bulk(cluster, done.alias, [{"index": {"_id": "own"}}, {"text": "anchor basket own"}])
    assert did(sync(cluster, index_name, HashingEncoder())) == (3, 1, 1)
    assert set(sources(cluster, done.alias)) == set(sources(cluster, index_name)) | {"own"}
    delete(cluster, index_name, "d32")  # the last operation that could be seen
    assert did(sync(cluster, index_name, HashingEncoder())) == (0, 1, 0)
    assert set(sources(cluster, done.alias)) == set(sources(cluster, index_name)) | {"own"}


def test_an_index_that_is_searched_besides_is_named(cluster, index_name, capsys, cli):
    first = reindexed(cluster, index_name, 3)
    assert sync(cluster, index_name, HashingEncoder()).others == ()
    again = ReindexSettings(m=8, alias=f"{index_name}-again")
    second = reindex(cluster, index_name, HashingEncoder(), again)
    put_documents(cluster, index_name, [7])
    done = sync(cluster, index_name, HashingEncoder())
    assert (done.destination, done.copied, done.others) == (second.destination, 1, (first.destination,))
    line = f"a sync of {index_name} leaves {first.destination} out: hybridr sync {first.destination}"
    assert line in cli(cluster, f"status {index_name}").out.splitlines()
    done = sync(cluster, first.destination, HashingEncoder())
    assert (done.destination, done.copied, done.others) == (first.destination, 1, (second.destination,))
    show_round(cast(Session, SimpleNamespace(output=Output())), done)
    assert f"{second.destination} is searched too and was not updated" in capsys.readouterr().out


def test_refusals(cluster, index_name, cli):
    fill_index(cluster, index_name, 3)
    for ask in (
        lambda: sync(cluster, index_name, HashingEncoder()),
        lambda: verdicts_on(
            cluster, index_name, [{"query": {"match": {"text": "anchor"}}}], SearchSettings()
        ),
    ):
        with pytest.raises(DataError, match="has no complete vectors") as caught:
            ask()
        assert caught.value.hint == f"hybridr reindex {index_name}"
    destination = reindex(cluster, index_name, HashingEncoder()).destination
    with pytest.raises(FingerprintMismatch):
        sync(cluster, index_name, HashingEncoder(salt="other"))
    rollback(cluster, index_name)
    with pytest.raises(DataError, match=f"no alias points to them: {destination}") as caught:
        sync(cluster, index_name, HashingEncoder())
    assert caught.value.hint == f"hybridr reindex {index_name}   brings them up to date and moves the alias"
    assert reindex(cluster, index_name, HashingEncoder()).destination == destination
    cluster.request("DELETE", path_of(index_name))
    with pytest.raises(NotFound, match="the source of .* is gone"):
        sync(cluster, destination, HashingEncoder())
    fill_index(cluster, index_name, 3)
    with pytest.raises(DataError, match="is not the index that"):
        sync(cluster, destination, HashingEncoder())

    # The dry run of the command.
    said = cli(cluster, f"sync {index_name} --dry-run --every 1s", code=2)
    assert "--dry-run and --every exclude each other" in said.err


def test_every_goes_on_until_it_is_told_to_stop(cluster, index_name, tiny):
    fill_index(cluster, index_name, 5)
    on = ["--encoder", str(tiny), "--url", cluster.url]
    assert hybridr_cli.main(["reindex", index_name, *on, "--quiet"]) == 0
    command = [sys.executable, "-m", "hybridr_cli", "sync", index_name, *on, "--every", "0.2s", "--json"]
    command += ["--metrics", "0"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    port = json.loads(running.stdout.readline())["metrics_port"]
    first = json.loads(running.stdout.readline())
    assert (first["event"], first["copied"], first["destination"]) == ("round", 0, f"{index_name}-hybridr-1")
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        told = answer.read().decode()
    assert f'hybridr_sync_refused{{index="{index_name}"}} 0.0' in told
    assert 'hybridr_cluster_seconds_count{api="_refresh"}' in told
    put_documents(cluster, index_name, [5, 6])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and json.loads(running.stdout.readline())["copied"] != 2:
        continue
    running.send_signal(signal.SIGTERM)  # another one interrupts a reindex in its test
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in said
    assert sources(cluster, f"{index_name}-hybridr") == sources(cluster, index_name)


def test_a_refused_document_ends_a_single_round_with_3(cluster, index_name, tiny, cli):
    """Clients of the copy made `surprise` a number there before the source had it."""
    fill_index(cluster, index_name, 3)
    on = ["--encoder", str(tiny), "--url", cluster.url]
    cli.typed(["reindex", index_name, *on])
    destination = f"{index_name}-hybridr-1"
    number = {"properties": {"surprise": {"type": "integer"}}}
    cluster.request("PUT", path_of(destination, "_mapping"), number)
    bulk(cluster, index_name, [{"index": {"_id": "new"}}, {"text": "anchor", "surprise": "a word"}])
    assert cli.typed(["sync", index_name, *on, "--json"], 3).json["rejected"] == 1


def test_settings_that_decide_the_vectors_come_from_the_index(cluster, index_name):
    reindexed(cluster, index_name, 3, HashingEncoder(), ReindexSettings(vector_field="embedding"))
    put_documents(cluster, index_name, [9])
    assert did(sync(cluster, index_name, HashingEncoder())) == (1, 0, 0)
    alias = f"{index_name}-hybridr"
    assert len(cluster.request("GET", path_of(alias, "_doc", "d9"))["_source"]["embedding"]) == 16
