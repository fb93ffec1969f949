from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hybridr.training.backbone import read_rem
from hybridr.training.rankers import assemble
from support.golden_ddr import SOURCE, rem_of
from support.places import DDR


@pytest.mark.parametrize("form", ["folder", "flat"])
def test_zips_load_like_the_folder(form: str) -> None:
    zipped = assemble(SOURCE, DDR / "rems" / f"rem_dense_lora192-pa4.{form}.zip")
    assert zipped.fingerprint == assemble(SOURCE, rem_of("dense_lora192-pa4")).fingerprint


def test_a_folder_that_holds_the_zip(tmp_path: Path) -> None:
    shutil.copy(DDR / "rems" / "rem_dense_lora192-pa4.flat.zip", tmp_path / "lora192-pa4.zip")
    (tmp_path / "training_args.bin").write_bytes(b"not a pickle")
    assert read_rem(tmp_path).name == "msmarco"
