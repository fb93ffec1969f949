"""Reindex on a Ray of this machine: the same as in threads, whoever is killed or comes late."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray

from hybridr import ReindexSettings, connect, load_encoder
from hybridr.cluster.connection import Cluster
from hybridr.errors import ModelError
from hybridr.indexing import lag
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.verification import verify
from hybridr.status.standing import remove
from support.corpus import delete, fill_index, put_documents, reindexed, sources, text_number, vectors
from support.hashing import HashingEncoder
from support.in_place_index import assert_vectors_fit, knn_index
from support.places import ROOT, SUPPORT
from support.waiting import wait_until
from support.workers import SHARE, BrokenFor, Telling, on_ray, told_in

PASSWORD = "not-to-be-found-anywhere"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A small Ray, whose workers find the helpers of the tests."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", f"{ROOT / 'tests'}:{ROOT}")
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    small = {"num_cpus": 4, "object_store_memory": 80_000_000, "include_dashboard": False}
    ray.init(address="local", log_to_driver=False, logging_level="ERROR", **small)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
    patch.undo()


@pytest.fixture(autouse=True)
def quick(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shares."""
    monkeypatch.setattr(lag, "SHARE", SHARE)


def written(cluster: Cluster, index: str) -> int:
    """Count the documents of an index; none while it is not there."""
    if not cluster.exists(index):
        return 0
    cluster.refresh(index)
    return cluster.count(index)


def holders_of(folder: Path, ending: str) -> list[int]:
    """Name the processes that have a text in hand."""
    files = folder.glob("*.txt")
    return [int(one.stem) for one in files if any(x.endswith(ending) for x in one.read_text().splitlines())]


@pytest.mark.model
@pytest.mark.usefixtures("fresh_vectors")
def test_vectors_are_those_of_threads_to_the_bit(cluster, index_name, minilm):
    fill_index(cluster, index_name, 60, settings={"number_of_replicas": 0, "number_of_shards": 2})
    encoder, seen = load_encoder(minilm, threads=4), []
    plain = ReindexSettings(term_table=False, force=True)
    threads = reindex(cluster, index_name, encoder, plain)
    expected, copied = vectors(cluster, threads.destination), sources(cluster, threads.destination)
    remove(cluster, index_name)
    done = reindex(cluster, index_name, encoder, on_ray(force=True), progress=lambda *told: seen.append(told))
    assert (done.encoded, done.skipped, done.documents, done.switched) == (60, 0, 60, True)
    assert vectors(cluster, done.destination) == expected
    assert sources(cluster, done.destination) == copied
    assert [told for told in seen if told[0] == "encode and write"][-1] == ("encode and write", 60, 60)


def test_workers_that_are_killed_lose_nothing(cluster, index_name, tmp_path):
    """Three die in the middle of a share each: these are begun again, and no other is."""
    fill_index(cluster, index_name, 160)
    encoder = Telling(tmp_path, deadly=[" n25", " n65", " n105"])
    done = reindex(cluster, index_name, encoder, on_ray(read_documents=10))
    assert len(list(tmp_path.glob("died-*"))) == 3
    assert (done.documents, done.rejected, done.switched) == (160, 0, True)
    assert sources(cluster, done.destination) == sources(cluster, index_name)
    expected = HashingEncoder().encode_documents([text_number(n) for n in range(160)])
    assert vectors(cluster, done.destination) == {f"d{n}": v for n, v in enumerate(expected.tolist())}
    told = Counter(told_in(tmp_path))
    assert set(told) == {text_number(n) for n in range(160)}
    assert max(told.values()) == 2
    twice = {int(text.rpartition("n")[2]) // 20 for text, times in told.items() if times > 1}
    assert twice == {1, 3, 5}


def test_a_driver_that_is_killed_and_started_again_goes_on(cluster, index_name, address, tmp_path):
    fill_index(cluster, index_name, 160)
    driver = subprocess.Popen(
        [sys.executable, str(SUPPORT / "workers.py"), cluster.url, index_name, address, str(tmp_path)]
    )
    destination = f"{index_name}-hybridr-1"

    wait_until(lambda: written(cluster, destination) == 140)
    driver.kill()
    driver.wait()
    wait_until(lambda: not any(psutil.pid_exists(int(file.stem)) for file in tmp_path.glob("*.txt")))
    before = set(told_in(tmp_path))
    (tmp_path / "go").touch()
    again = tmp_path / "again"
    again.mkdir()
    done = reindex(cluster, index_name, Telling(again), on_ray())
    assert (done.skipped, done.encoded, done.documents, done.switched) == (140, 20, 160, True)
    assert set(told_in(again)) == {text_number(n) for n in range(60, 80)}, "the share that was not finished"
    assert before | set(told_in(again)) == {text_number(n) for n in range(160)}


def test_documents_that_are_refused_come_to_the_driver(cluster, index_name):
    """And the password of the user who asked is in no log and no command line."""
    fill_index(cluster, index_name, 60)
    named = connect(cluster.url, user="somebody", password=PASSWORD)
    done = reindex(named, index_name, HashingEncoder(refused=(" n1", " n32")), on_ray(workers=1))
    assert (done.rejected, done.documents, done.switched) == (2, 58, False)
    lines = done.rejects_file.read_text().splitlines()
    assert len(lines) == 2
    assert all("zero vector" in line for line in lines)
    assert reindex(named, index_name, HashingEncoder(), on_ray(workers=1)).switched
    logs = Path(ray._private.worker._global_node.get_session_dir_path()) / "logs"
    files = [file for file in logs.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if PASSWORD.encode() in file.read_bytes()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert PASSWORD.encode() not in process.read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


def test_an_error_of_a_worker_is_told_and_the_next_run_goes_on(cluster, index_name):
    fill_index(cluster, index_name, 60)
    with pytest.raises(ModelError, match=r"vector for document 'd\d+' is not finite \(a worker on "):
        reindex(cluster, index_name, BrokenFor(), on_ray(workers=1))
    done = reindex(cluster, index_name, HashingEncoder(), on_ray(workers=1))
    assert (done.documents, done.switched) == (60, True)


def test_sync_runs_on_ray_too(cluster, index_name):
    done = reindexed(cluster, index_name, 5, HashingEncoder(), on_ray(workers=1))
    put_documents(cluster, index_name, range(3, 60), suffix=" later")
    assert sync(cluster, index_name, HashingEncoder(), on_ray()).copied == 57
    assert sources(cluster, done.destination) == sources(cluster, index_name)


def test_two_drivers_at_once_and_a_worker_that_was_frozen(cluster, index_name, address, tmp_path):
    """A worker is frozen with a share in hand, threads end the job, and it wakes up when all is over."""
    fill_index(cluster, index_name, 160)
    put_documents(cluster, index_name, range(160))  # of a higher version than what is made again
    command = [sys.executable, str(SUPPORT / "workers.py"), cluster.url, index_name, address, str(tmp_path)]
    driver = subprocess.Popen(command)
    destination = f"{index_name}-hybridr-1"
    try:
        wait_until(lambda: written(cluster, destination) == 120)
        [frozen] = [psutil.Process(pid) for pid in holders_of(tmp_path, " n70")]
        frozen.suspend()
        put_documents(cluster, index_name, [61], suffix=" updated")
        for number in (62, 63):
            delete(cluster, index_name, f"d{number}")
        put_documents(cluster, index_name, [63], suffix=" reborn")
        done = reindex(cluster, index_name, HashingEncoder(), ReindexSettings(term_table=False))
        assert (done.destination, done.documents, done.switched) == (destination, 159, True)
        before = sources(cluster, destination)
        assert before == sources(cluster, index_name)
        (tmp_path / "go").touch()
        frozen.resume()
        assert driver.wait(timeout=120) == 0
    finally:
        driver.kill()
    cluster.refresh(destination)
    assert sources(cluster, destination) == before
    assert verify(cluster, index_name, HashingEncoder(), sample=160).ok
    assert len(cluster.indices(f"{index_name}-hybridr-*")) == 1


def test_vectors_in_place_come_from_ray_too(cluster, index_name):
    knn_index(cluster, index_name, 60)
    done = reindex(cluster, index_name, HashingEncoder(), on_ray(workers=1, in_place=True, fields=("text",)))
    assert (done.encoded, done.documents, done.destination) == (60, 60, index_name)
    assert_vectors_fit(cluster, index_name)


def test_an_encoder_that_cannot_travel_is_refused(cluster, index_name):
    fill_index(cluster, index_name, 60)
    encoder = HashingEncoder()
    encoder.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="the encoder cannot travel to a worker"):
        reindex(cluster, index_name, encoder, on_ray())
