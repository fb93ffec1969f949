"""Checkpoints that run code or are cut short are refused."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridr.errors import ModelError
from hybridr.training.rankers import assemble
from support.golden_ddr import SOURCE, rem_of
from support.tiny import Payload


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("file", ["pytorch_adapter.bin", "pytorch_model_head.bin"])
@pytest.mark.attack(52)
def test_a_rem_that_runs_code_is_refused(file: str, zipped: bool, tmp_path: Path) -> None:
    rem = shutil.copytree(rem_of("colbert_lora192-pa4"), tmp_path / "rem")
    torch.save({"weight": torch.zeros(1), "more": Payload(tmp_path / "ran")}, rem / file)
    if zipped:
        with zipfile.ZipFile(tmp_path / "rem.zip", "w") as archive:
            for path in rem.iterdir():
                archive.write(path, f"inside/{path.name}")
        rem = tmp_path / "rem.zip"
    with pytest.raises(ModelError, match="that may run code") as caught:
        assemble(SOURCE, rem, ranker="colbert")
    assert file in caught.value.message
    assert "trust" in str(caught.value.hint)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
@pytest.mark.attack(52)
def test_a_dam_that_runs_code_is_refused(save: Callable[..., Any], tmp_path: Path) -> None:
    dam = shutil.copytree(SOURCE, tmp_path / "dam")
    save({"weight": Payload(tmp_path / "ran")}, dam / "pytorch_model.bin")
    with pytest.raises(ModelError, match="that may run code"):
        assemble(dam)
    assert not (tmp_path / "ran").exists()


def test_training_args_are_never_opened(tmp_path: Path) -> None:
    rem = shutil.copytree(rem_of("dense_lora192"), tmp_path / "rem")
    torch.save(Payload(tmp_path / "ran"), rem / "training_args.bin")
    assemble(SOURCE, rem)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("keep", [0, 100, -1000])
def test_truncated_files_are_refused(keep: int, tmp_path: Path) -> None:
    rem = shutil.copytree(rem_of("dense_lora192"), tmp_path / "rem")
    dam = shutil.copytree(SOURCE, tmp_path / "dam")
    for path in (rem / "pytorch_adapter.bin", dam / "pytorch_model.bin"):
        path.write_bytes(path.read_bytes()[: keep or None] if keep else b"")
    for arguments in ((SOURCE, rem), (dam, None)):
        with pytest.raises(ModelError) as caught:
            assemble(*arguments)
        assert caught.value.hint
