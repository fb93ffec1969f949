"""DAMs and REMs that do not fit together are refused with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridr.errors import ModelError
from hybridr.training.rankers import assemble
from support.golden_ddr import SOURCE, changed, rem_of
from support.places import DDR
from support.tiny import damage_json


def broken_zip(folder: Path) -> tuple[Path, Path]:
    path = folder / "rem.zip"
    path.write_bytes((DDR / "rems" / "rem_dense_lora192-pa4.flat.zip").read_bytes()[:5000])
    return SOURCE, path


def not_finite(folder: Path) -> tuple[Path, Path]:
    rem = shutil.copytree(rem_of("dense_lora192"), folder / "rem")
    weights = torch.load(rem / "pytorch_adapter.bin", weights_only=True)
    next(iter(weights.values()))[0, 0] = torch.nan
    torch.save(weights, rem / "pytorch_adapter.bin")
    return SOURCE, rem


def other_width(folder: Path) -> tuple[Path, Path]:
    rem = shutil.copytree(rem_of("dense_lora192"), folder / "rem")
    damage_json(rem / "adapter_config.json", hidden_size=768)
    return SOURCE, rem


def other_depth(folder: Path) -> tuple[Path, Path]:
    rem = shutil.copytree(rem_of("dense_lora192"), folder / "rem")
    weights = torch.load(rem / "pytorch_adapter.bin", weights_only=True)
    weights |= {key.replace("layer.1.", "layer.2."): value for key, value in weights.items()}
    torch.save(weights, rem / "pytorch_adapter.bin")
    return SOURCE, rem


def other_rank(folder: Path) -> tuple[Path, Path]:
    return SOURCE, changed(rem_of("dense_lora192"), folder, lambda part: part.update({"r": 96}))


def two_rems(folder: Path) -> tuple[Path, Path]:
    for name in ("dense_lora192", "dense_pa4"):
        shutil.copytree(rem_of(name), folder / "rems" / name)
    return SOURCE, folder / "rems"


def configured(**change: Any) -> Callable[[Path], tuple[Path, None]]:
    def copy(folder: Path) -> tuple[Path, None]:
        dam = shutil.copytree(SOURCE, folder / "dam")
        damage_json(dam / "config.json", **change)
        return dam, None

    return copy


def other_tokenizer(folder: Path) -> tuple[Path, None]:
    dam = shutil.copytree(SOURCE, folder / "dam")
    record = json.loads((dam / "tokenizer.json").read_text())
    record["model"]["vocab"]["onemore"] = 280
    (dam / "tokenizer.json").write_text(json.dumps(record))
    return dam, None


def no_weights(folder: Path) -> tuple[Path, None]:
    dam = shutil.copytree(SOURCE, folder / "dam")
    (dam / "pytorch_model.bin").unlink()
    return dam, None


MISFITS: list[tuple[Callable[[Path], tuple[Path, Path | None]], str]] = [
    (broken_zip, "cannot be read as a zip"),
    (not_finite, "not finite"),
    (other_width, "of the width 768; this one is 32"),
    (other_depth, "without a place in the backbone, 4 weights, such as bert.encoder.layer.2"),
    (other_rank, "has the shape .192, 32. instead of .96, 32."),
    (two_rems, "holds 2 REMs"),
    (lambda _: (SOURCE, rem_of("dense_lora192-pa4__roberta")), "of the kind roberta; this one is bert"),
    (lambda _: (SOURCE, rem_of("splade_lora192-pa4")), "for the ranker splade; this one is dense"),
    (lambda folder: (SOURCE, folder), "it has no adapter_config.json"),
    (lambda folder: (folder / "none", None), "there is no DAM or REM"),
    (lambda folder: (folder, None), "has no config.json"),
    (configured(num_hidden_layers=1), "has too many weights, such as bert.encoder.layer.1"),
    (configured(num_hidden_layers=3), "lacks weights, such as bert.encoder.layer.2"),
    (configured(hidden_size=64), "has wrong sizes of weights"),
    (configured(model_type="gpt2"), "of the kind 'gpt2'"),
    (other_tokenizer, "has ids up to 280; the model has 280 embeddings"),
    (no_weights, "has no weights"),
]


@pytest.mark.parametrize(("made", "words"), MISFITS, ids=[words for _, words in MISFITS])
def test_what_does_not_fit_is_refused(made, words, tmp_path):
    with pytest.raises(ModelError, match=words) as caught:
        assemble(*made(tmp_path))
    assert caught.value.exit_code == 1
    assert caught.value.hint or caught.value.message.endswith("is needed")
