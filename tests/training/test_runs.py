from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from hybridr.encoders.export.exporting import export
from hybridr.errors import DownloadError
from hybridr.files.staging import claimed_folder
from hybridr.training.adaptation import adapt
from hybridr.training.dam import fit_dam
from hybridr.training.loop import Processes, train
from hybridr.training.rem import train_rem
from hybridr.training.runs import STATE_FILE, read_finished
from hybridr.training.settings import AdaptSettings, DamSettings, RemSettings
from support.toy_training import RECIPE, Regression, trained


def test_a_checkpoint_of_another_run_is_not_continued(tmp_path: Path) -> None:
    trained(tmp_path, RECIPE)
    again = train(Regression(Processes("cpu")), tmp_path / STATE_FILE, "another key")
    assert again.resumed_from == 0
    (tmp_path / STATE_FILE).write_bytes(b"damaged")
    assert trained(tmp_path, RECIPE)


def test_a_manifest_without_outputs_is_no_finished_run(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"stage": "dam", "dam": {"key": "k"}}')
    assert read_finished(tmp_path, "dam", "k") is None


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Path]:
    """Give a folder to which another run writes."""
    out, begun, ends = tmp_path / "out", Event(), Event()

    def hold() -> None:
        with claimed_folder(out):
            begun.set()
            ends.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert begun.wait(60)
        yield out
        ends.set()


@pytest.mark.parametrize(
    "run",
    [
        lambda out: adapt([], AdaptSettings(out=out)),
        lambda out: fit_dam([], DamSettings(out=out)),
        lambda out: train_rem(None, RemSettings(dam="minilm", out=out)),  # type: ignore[arg-type]
        lambda out: export("minilm", out),
    ],
    ids=["adapt", "dam train", "rem train", "export"],
)
def test_two_runs_into_one_folder_never_mix(busy: Path, run: Callable[[Path], Any]) -> None:
    with pytest.raises(DownloadError, match="another run writes to") as refusal:
        run(busy)
    assert "wait until it has ended" in str(refusal.value.hint)
    assert not busy.exists()
