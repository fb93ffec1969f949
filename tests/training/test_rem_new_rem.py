"""A fresh REM: its configuration, its seed, its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridr.training import rem
from hybridr.training.adapters import read_design
from hybridr.training.rankers import assemble
from hybridr.training.rem import attach_fresh, design_config, design_for, train_rem
from support.places import DDR
from support.rem_training import TEXTS, rem_settings, vectors


def test_the_configuration_is_that_of_the_published_files() -> None:
    for name, design in (("dense_lora192-pa4", "both"), ("dense_lora192", "lora")):
        config = json.loads((DDR / f"rems/rem_{name}/msmarco/adapter_config.json").read_text())["config"]
        assert design_config(design_for(design, 192)) == config
        assert read_design(config) == design_for(design, 192)


def test_a_fresh_rem_is_seeded_and_changes_nothing(dam: Path) -> None:
    def fresh(seed: int) -> dict[str, torch.Tensor]:
        ranker = assemble(dam)
        attach_fresh(ranker, design_for("both", 16), seed)
        assert np.abs(ranker.encode_documents(TEXTS) - vectors(dam)).max() == 0
        return {name: w.detach() for name, w in ranker.backbone.named_parameters() if w.requires_grad}

    first, again, other = fresh(1), fresh(1), fresh(2)
    bound = 1 / np.sqrt(32)  # of Kaiming-uniform with a = sqrt(5) and 32 inputs
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        if "lora_A" in name or "adapter_down.0.weight" in name:
            assert not torch.equal(weight, other[name])
            assert 0.9 * bound < float(weight.abs().max()) <= bound
        else:
            assert not weight.any()


@pytest.mark.parametrize("kind", ["dense", "unicoil", "splade", "colbert", "rerank"])
def test_files_have_the_names_and_sizes_of_the_published_ones(kind, judged, tmp_path, monkeypatch):
    monkeypatch.setattr(rem, "NAME", "msmarco")
    monkeypatch.setattr(rem, "TOKEN_DIM", 16)
    published = DDR / "rems" / f"rem_{kind}_lora192-pa4" / "msmarco"
    given = rem_settings(DDR / "dams" / "dam_source", tmp_path, ranker=kind, design="both", rank=192, steps=1)
    train_rem(judged, given)
    for file in sorted(path.name for path in published.iterdir()):
        if file.endswith(".json"):
            found, wanted = (json.loads((folder / file).read_text()) for folder in (given.out, published))
            assert found | {"config_id": ""} == wanted | {"config_id": ""}
        else:
            found, wanted = (
                torch.load(folder / file, weights_only=True) for folder in (given.out, published)
            )
            assert {key: found[key].shape for key in found} == {key: wanted[key].shape for key in wanted}
