"""What a worker on Ray refuses, and what Ray is told, without a Ray."""

from __future__ import annotations

import json
import pickle
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from hybridr import load_encoder
from hybridr.encoders.opening import pack_encoder
from hybridr.errors import AccessDenied, ClusterError, HybridrError, MissingExtra, ModelError, SettingsError
from hybridr.indexing.job import Filling, Meter
from hybridr.indexing.runners import ray as on_ray
from hybridr.indexing.runners.ray import Machine, Ray, Refusal, Worker, processors_each
from hybridr.indexing.settings import ReindexSettings


class Store:
    """Of Ray, what gets a task out of its store."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def get(self, reference: Any) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def answer_of(monkeypatch: pytest.MonkeyPatch, found: Any, release: str | None = None) -> Any:
    monkeypatch.setattr(on_ray, "ray_module", lambda: Store(found))
    return Worker(release or on_ray.release(), 1, ["reference"]).open()


@pytest.mark.model
def test_the_same_encoder_folder_is_opened(minilm_encoder_folder: Path) -> None:
    sent = pickle.loads(pickle.dumps(pack_encoder(load_encoder(minilm_encoder_folder))))
    assert sent.open(1).fingerprint == load_encoder(minilm_encoder_folder).fingerprint


@pytest.mark.model
def test_a_worker_without_the_model_or_with_another_says_so(monkeypatch, minilm_encoder_folder, tmp_path):
    folder = tmp_path / "encoder"
    shutil.copytree(minilm_encoder_folder, folder)
    task = pack_encoder(load_encoder(folder))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["encoder"]["fingerprint"] = "f" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    other = answer_of(monkeypatch, task)
    assert "holds encoder ffffffffffff, not" in other.message
    assert f"(a worker on {socket.gethostname()})" in other.message
    shutil.rmtree(folder)
    gone = answer_of(monkeypatch, task)
    assert isinstance(gone.error(), ModelError)
    assert f"there is no encoder folder {folder}" in gone.message
    assert gone.hint == "put the same encoder folder at the same path on every machine"


def test_a_worker_of_another_hybridr_is_refused_before_it_reads_anything(monkeypatch) -> None:
    found = answer_of(monkeypatch, ValueError("must not be read"), release="0.0.1")
    assert isinstance(found.error(), SettingsError)
    assert "the driver is hybridr 0.0.1, a worker hybridr" in found.message
    assert "the same clone or wheel of hybridr" in str(found.hint)


def test_what_cannot_be_read_on_a_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer_of(monkeypatch, ModuleNotFoundError("No module named 'mine'"))
    assert isinstance(found.error(), ModelError)
    assert "cannot be read: No module named 'mine'" in found.message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ModelError("no", hint="do"), ModelError),
        (AccessDenied("no", hint="do", status=403), AccessDenied),
        (MissingExtra("openvino", "openvino", "it"), ModelError),
    ],
)
def test_errors_of_ours_travel(error: HybridrError, kind: type[HybridrError]) -> None:
    found = pickle.loads(pickle.dumps(Refusal.of(error))).error()
    assert type(found) is kind
    assert found.message.startswith(error.message)
    assert found.hint == error.hint


@pytest.mark.parametrize("address", ["nonsense", "http://host:1", "host:", "host:x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="is not the address of a Ray cluster"):
        Ray(ReindexSettings(runner="ray", ray_address=address)).check()


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        with pytest.raises(SettingsError, match="nothing answers at 'ray://127"):
            Ray(
                ReindexSettings(runner="ray", ray_address=f"ray://127.0.0.1:{taken.getsockname()[1]}")
            ).check()


class FakeRay:
    """A Ray whose workers die in their first shares, so many times, or `unready` as soon as they begin."""

    class exceptions:
        class RayActorError(Exception):
            pass

    def __init__(self, deaths: int, unready: bool = False) -> None:
        self.deaths, self.unready, self.filled = deaths, unready, list[int]()

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **options: self

    def nodes(self) -> list[dict[str, Any]]:
        gone = {"Alive": False, "Resources": {"CPU": 64.0}}
        return [gone, *({"Alive": True, "Resources": {"CPU": 2.0}} for _ in range(3))]

    def remote(self, *given: Any) -> Any:
        return FakeWorker(self)

    def wait(self, pending: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
        return pending, []

    def get(self, call: tuple[object, int | None]) -> Filling | None:
        share = call[1]
        if self.deaths and (share is not None or self.unready):
            self.deaths -= 1
            raise self.exceptions.RayActorError("its machine is gone")
        if share is None:
            return None
        self.filled.append(share)
        return Filling(encoded=share)


class FakeWorker:
    """An actor, and what calls it."""

    def __init__(self, ray: FakeRay) -> None:
        self.options = self.open = self.fill = self

    def __call__(self, **options: Any) -> Any:
        return self

    def remote(self, *given: Any) -> Any:
        return self if len(given) > 1 else (object(), *(given or (None,)))


class Packing:
    """A task that travels."""

    meter = Meter()

    def packed(self, workers: int) -> str:
        return "packed"


def crew_of(monkeypatch: pytest.MonkeyPatch, workers: int, ray: FakeRay) -> Any:
    monkeypatch.setattr(on_ray, "ray_module", lambda: ray)
    return on_ray.WorkerPool(Packing(), ReindexSettings(runner="ray", workers=workers))  # type: ignore[arg-type]


@pytest.mark.parametrize("unready", [False, True])
def test_a_machine_that_is_lost_with_all_its_workers_stops_nothing(monkeypatch, unready: bool) -> None:
    ray = FakeRay(16, unready)
    done = crew_of(monkeypatch, 16, ray).run(range(40))
    assert [filling.encoded for filling in done] == list(range(40)), "in the order of the shares"
    assert sorted(ray.filled) == list(range(40)), "each once"


@pytest.mark.parametrize("unready", [False, True])
def test_workers_that_always_die_end_the_run(monkeypatch: pytest.MonkeyPatch, unready: bool) -> None:
    with pytest.raises(ClusterError, match="workers die as soon as they begin: its machine is gone"):
        crew_of(monkeypatch, 2, FakeRay(1000, unready)).run(range(2))


@pytest.mark.parametrize(
    ("processors", "workers", "each"),
    [
        ([2, 2, 2], 2, 2),  # six by two is three, for which no machine has room
        ([2, 2, 2], 1, 2),
        ([2, 2, 2], 4, 1),
        ([16, 2, 2], 3, 5),
        ([4, 0, 0.5], 2, 2),
        ([4], 64, 1 / 16),
        ([1, 1], 3, 1 / 2),
        ([], 4, 1 / 4),
    ],
)
def test_no_worker_asks_for_more_than_a_machine_has(processors, workers, each):
    assert processors_each([Machine(one) for one in processors], workers) == each


def test_workers_with_a_gpu_share_the_processors_of_machines_that_have_one() -> None:
    found = [Machine(32), Machine(8, 2), Machine(8, 2)]
    assert processors_each(found, 4, gpus=1) == 4
    assert processors_each(found, 64, gpus=1) == 4, "four begin, the others wait"
    assert processors_each(found, 8, gpus=0.5) == 2


def test_gpus_that_no_machine_has_are_refused() -> None:
    asked = ReindexSettings(runner="ray", workers=8, gpus_per_worker=1)
    with pytest.raises(SettingsError, match="no machine of the Ray cluster has more than 0"):
        on_ray.check_gpus([Machine(8), Machine(8)], asked, is_local=False)
    on_ray.check_gpus([Machine(8), Machine(8, 1)], asked, is_local=False)
    with pytest.raises(SettingsError, match="8 GPUs are asked for, this machine has 1"):
        on_ray.check_gpus([Machine(8, 1)], asked, is_local=True)


def test_a_driver_outside_of_the_ray_cluster_is_told_how_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    class Outside:
        def is_initialized(self) -> bool:
            return False

        def init(self, **given: Any) -> None:
            raise ConnectionError(f"Failed to connect to Ray cluster at {given['address']}")

    monkeypatch.setattr(on_ray, "ray_module", Outside)
    monkeypatch.setattr(on_ray.os, "environ", {})
    with (
        pytest.raises(SettingsError, match="no Ray cluster at 'head:6379'") as caught,
        on_ray.within_ray(ReindexSettings(runner="ray", ray_address="head:6379")),
    ):
        pass
    assert "--ray-address ray://HOST:10001" in str(caught.value.hint)
