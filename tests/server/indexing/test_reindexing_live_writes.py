"""Reindex and sync under two writers that insert, update and delete all the time."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.errors import NotFound
from hybridr.indexing import switching
from hybridr.indexing.job import Filling
from hybridr.indexing.reindexing import reindex, sync
from support.corpus import fill_index, sources, text_number
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node
WRITES_A_SECOND = 50


def write_on(url: str, index: str, dice: random.Random, stop: threading.Event, failures: list[str]) -> None:
    cluster = connect(url)
    while not stop.is_set():
        number = dice.randrange(600)
        path = path_of(index, "_doc", f"d{number}")
        try:
            if dice.random() < 0.3:
                cluster.request("DELETE", path)
            else:
                cluster.request("PUT", path, {"text": text_number(number) + f" {dice.random():.6f}"})
        except NotFound:
            pass
        except Exception as error:  # whatever it is, the test must see it
            failures.append(repr(error))
        stop.wait(1 / WRITES_A_SECOND)


@contextmanager
def two_writers(cluster: Cluster, index: str) -> Iterator[None]:
    seed = random.randrange(10**6)
    sys.stdout.write(f"seed {seed}\n")
    stop, failures = threading.Event(), []
    threads = [
        threading.Thread(target=write_on, args=(cluster.url, index, random.Random(seed + n), stop, failures))
        for n in range(2)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def assert_equal(cluster: Cluster, source: str) -> None:
    destination = resolve(cluster, source).name
    for name in (source, destination):
        cluster.refresh(name)
    assert sources(cluster, destination) == sources(cluster, source)
    hits = cluster.search(destination, {"size": 1000})["hits"]["hits"]
    expected = HashingEncoder().encode_documents([hit["_source"]["text"] for hit in hits])
    np.testing.assert_allclose([hit["_source"]["hybridr_vector"] for hit in hits], expected, atol=1e-5)


SETTINGS = ReindexSettings(read_documents=25, fields=("text",))


def test_source_and_destination_are_equal_when_the_writers_stop(cluster: Cluster, index_name: str) -> None:
    settings = {"number_of_replicas": 0, "number_of_shards": 2}
    fill_index(cluster, index_name, 400, settings=settings)
    slow = HashingEncoder(before=lambda _: time.sleep(0.05))  # writers get between reading and writing
    with two_writers(cluster, index_name):
        assert reindex(cluster, index_name, slow, SETTINGS).switched
        for _ in range(5):
            sync(cluster, index_name, slow, SETTINGS)
    done = sync(cluster, index_name, HashingEncoder(), SETTINGS)
    assert done.copied < 200, "only what happened since the last round"
    assert_equal(cluster, index_name)


def test_what_was_written_before_the_switch_is_there_after_it(cluster: Cluster, index_name: str) -> None:
    fill_index(cluster, index_name, 400)
    written_while_encoding(cluster, index_name)
    assert_equal(cluster, index_name)


def test_what_is_written_while_the_alias_moves_is_there_when_reindex_ends(
    cluster: Cluster, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_index(cluster, index_name, 40)
    original = switching.switch

    def switch(*given: Any) -> None:
        cluster.request("PUT", path_of(index_name, "_doc", "late"), {"text": "zephyr"})
        cluster.request("DELETE", path_of(index_name, "_doc", "d3"))
        original(*given)

    monkeypatch.setattr(switching, "switch", switch)
    assert reindex(cluster, index_name, HashingEncoder(), SETTINGS).switched
    assert_equal(cluster, index_name)


def test_without_the_last_passes_it_would_not_be(
    cluster: Cluster, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridr.indexing.targets import beside

    monkeypatch.setattr(beside, "MAX_PASSES", 1)
    monkeypatch.setattr(switching, "catch_up", lambda _, info: (Filling(), info))
    fill_index(cluster, index_name, 400)
    written_while_encoding(cluster, index_name)
    with pytest.raises(AssertionError):
        assert_equal(cluster, index_name)


def written_while_encoding(cluster: Cluster, index: str) -> None:
    """Reindex while every page that is encoded brings an insert, an update and a delete of others."""

    pages = iter(range(1, 6))

    def write(_: object) -> None:
        if page := next(pages, None):
            for change in (f"new{page}", f"d{page}"):
                body = {"text": f"anchor written on page {page}"}
                cluster.request("PUT", path_of(index, "_doc", change), body)
            cluster.request("DELETE", path_of(index, "_doc", f"d{100 + page}"))

    assert reindex(cluster, index, HashingEncoder(before=write), SETTINGS).switched
