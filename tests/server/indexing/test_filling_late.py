"""A worker that was thought dead, and whose page arrives when another has done its share and all is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import Share
from hybridr.cluster.writing import Rejects
from hybridr.errors import NotFound
from hybridr.indexing.filling import Fill
from hybridr.indexing.job import Job, Meter
from hybridr.indexing.recipe import TextRecipe
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.targets import beside, in_place
from hybridr.indexing.verification import verify
from hybridr.status.standing import remove
from support.corpus import delete, fill_index, put_documents, reindexed, sources, vectors
from support.hashing import HashingEncoder
from support.in_place_index import assert_vectors_fit, knn_index

NO_MEMORY = {"index": {"gc_deletes": "0s"}}
"""Versions of deleted documents are forgotten within a second, so that new ones begin at 1 again."""


class Late(HashingEncoder):
    """Keeps its first texts in hand until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.in_hand, self.released = threading.Event(), threading.Event()

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        self.in_hand.set()
        assert self.released.wait(60)
        return super().encode_documents(texts, max_tokens=max_tokens)


def once(happen: Callable[[], None]) -> Callable[[object], None]:
    """Let something happen once, while all documents are in hand."""
    left = [happen]
    return lambda _: left.pop()() if left else None


class LateWorker:
    """A share that is filled beside a reindex, by the code that a worker of Ray runs."""

    def __init__(self, cluster: Cluster, source: str, destination: str, work: Any, rejects: Path) -> None:
        self.encoder, self.raised = Late(), list[BaseException]()
        settings = ReindexSettings(term_table=False, slow_search_ms=0)
        recipe = TextRecipe(self.encoder, settings, ("text",))
        job = Job(cluster, source, destination, recipe, Rejects(rejects))
        self.thread = threading.Thread(target=self.fill, args=(Fill(job, work, Meter()),))
        self.thread.start()
        assert self.encoder.in_hand.wait(60)

    def fill(self, task: Fill) -> None:
        try:
            task(Share())
        except BaseException as error:
            self.raised.append(error)

    def write(self) -> None:
        """Let it write what it has in hand."""
        self.encoder.released.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def late(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., LateWorker]]:
    """Begin late workers, which end with the test."""
    begun: list[LateWorker] = []

    def begin(source: str, destination: str, work: Any = beside.COPYING) -> LateWorker:
        begun.append(LateWorker(cluster, source, destination, work, tmp_path / "rejects"))
        return begun[-1]

    yield begin
    for worker in begun:
        worker.write()


def change(cluster: Cluster, index: str) -> None:
    """Change the source in every way that there is: an update, a delete, and one that is made again."""
    put_documents(cluster, index, [1], suffix=" updated")
    delete(cluster, index, "d2")
    delete(cluster, index, "d3")
    time.sleep(0.6)  # its version is forgotten where `gc_deletes` says so
    put_documents(cluster, index, [3], suffix=" reborn")


@pytest.mark.parametrize("forgetful", [False, True], ids=["versions remembered", "versions forgotten"])
def test_a_late_page_changes_nothing(cluster, index_name, late, forgetful):
    fill_index(cluster, index_name, 20)
    for _ in range(3):
        put_documents(cluster, index_name, [2, 3], suffix=" of a higher version")
    if forgetful:
        cluster.request("PUT", path_of(index_name, "_settings"), NO_MEMORY)
    destination, workers = f"{index_name}-hybridr-1", list[LateWorker]()

    def happen() -> None:
        workers.append(late(index_name, destination))
        change(cluster, index_name)

    done = reindex(
        cluster, index_name, HashingEncoder(before=once(happen)), ReindexSettings(slow_search_ms=0)
    )
    assert done.destination == destination
    before = sources(cluster, destination), vectors(cluster, destination)
    assert before[0] == sources(cluster, index_name)
    if forgetful:
        time.sleep(0.6)
    [worker] = workers
    worker.write()
    assert not worker.raised
    cluster.refresh(destination)
    assert (sources(cluster, destination), vectors(cluster, destination)) == before
    assert verify(cluster, destination, HashingEncoder()).ok


def test_a_late_page_in_place_changes_nothing(cluster, index_name, late):
    knn_index(cluster, index_name, 20)
    workers: list[LateWorker] = []

    def happen() -> None:
        workers.append(late(index_name, index_name, in_place.WORK))
        change(cluster, index_name)

    settings = ReindexSettings(in_place=True, fields=("text",), slow_search_ms=0)
    reindex(cluster, index_name, HashingEncoder(before=once(happen)), settings)
    before = sources(cluster, index_name)
    [worker] = workers
    worker.write()
    assert not worker.raised
    cluster.refresh(index_name)
    assert sources(cluster, index_name) == before
    assert_vectors_fit(cluster, index_name)


def test_a_late_page_makes_no_removed_index_anew(cluster, index_name, late):
    done = reindexed(cluster, index_name, 20)
    put_documents(cluster, index_name, range(5), suffix=" later")
    worker = late(index_name, done.destination)
    remove(cluster, index_name)
    worker.write()
    assert [type(error) for error in worker.raised] == [NotFound]
    assert not cluster.exists(done.destination)
