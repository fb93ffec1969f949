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
from hybridr.encoding.opening import shipped
from hybridr.errors import AccessDenied, HybridrError, MissingExtra, ModelError, SettingsError
from hybridr.reindexing.runners import ray as on_ray
from hybridr.reindexing.runners.ray import Ray, Refusal, Worker
from hybridr.reindexing.settings import ReindexSettings
from hybridr.sharing.board import Lease
from hybridr.sharing.dealing import Handed, runs_of


class Store:
    """Of Ray, what gets an errand out of its store."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def get(self, reference: Any) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def answer_of(monkeypatch: pytest.MonkeyPatch, found: Any, release: str | None = None) -> Any:
    monkeypatch.setattr(on_ray, "package", lambda: Store(found))
    return Worker(release or on_ray.version("hybridr"), 1, ["reference"]).hand(0, "share")


class OfFolder:
    """An errand whose encoder is opened where it arrives."""

    def __init__(self, folder: Path) -> None:
        self.encoder = shipped(load_encoder(folder))

    def open(self, threads: int) -> Any:
        encoder = self.encoder.open(threads)
        return lambda share: encoder.fingerprint


@pytest.mark.model
def test_the_same_encoder_folder_is_opened(
    monkeypatch: pytest.MonkeyPatch, minilm_encoder_folder: Path
) -> None:
    errand = pickle.loads(pickle.dumps(OfFolder(minilm_encoder_folder)))
    assert answer_of(monkeypatch, errand).result == load_encoder(minilm_encoder_folder).fingerprint


@pytest.mark.model
def test_a_worker_without_the_model_or_with_another_says_so(
    monkeypatch: pytest.MonkeyPatch, minilm_encoder_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(minilm_encoder_folder, folder)
    errand = OfFolder(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["encoder"]["fingerprint"] = "f" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    other = answer_of(monkeypatch, errand)
    assert "holds encoder ffffffffffff, not" in other.message
    assert f"(a worker on {socket.gethostname()})" in other.message
    shutil.rmtree(folder)
    gone = answer_of(monkeypatch, errand)
    assert isinstance(gone.error(), ModelError)
    assert f"there is no encoder folder {folder}" in gone.message


def test_a_worker_of_another_hybridr_is_refused_before_it_reads_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = answer_of(monkeypatch, ValueError("must not be read"), release="0.0.1")
    assert isinstance(found.error(), SettingsError)
    assert "the driver is hybridr 0.0.1, a worker hybridr" in found.message
    assert "pip install hybridr==0.0.1" in str(found.hint)


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


def test_neighbours_go_to_the_same_worker() -> None:
    leases = [Lease(str(number), {}, number, 1) for number in range(10)]
    parts = runs_of(leases, 4)
    assert [one for part in parts for one in part] == leases
    assert {len(part) for part in parts} == {2, 3}
    assert len(runs_of(leases[:2], 4)) == 2


def test_a_share_of_a_worker_that_died_is_handed_out_again() -> None:
    deal = Handed(["a", "b"])
    first, second = deal.ask("x"), deal.ask("y")
    assert first is not None
    assert second is not None
    assert deal.ask("z") is None
    deal.heard("x", None)
    assert deal.ask("z") == first
    for worker, call in (("z", first), ("y", second)):
        assert not deal.finished()
        deal.heard(worker, on_ray.Done(call.given[0], call.given[1].upper()))
    assert deal.finished()
    assert [done.result for done in deal.results()] == ["A", "B"]
