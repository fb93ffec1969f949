"""A fresh REM: its configuration, its seed, its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridr.training import rem
from hybridr.training.adapters import read_design
from hybridr.training.judged import Judged
from hybridr.training.rankers import assemble
from hybridr.training.rem import attach_fresh, config_of, design_of, train_rem
from support.places import DDR
from support.rem_training import TEXTS, rem_settings, vectors


def test_the_configuration_is_that_of_the_published_files(judged: Judged, dam: Path, tmp_path: Path) -> None:
    published = json.loads((DDR / "rems/rem_dense_lora192-pa4/msmarco/adapter_config.json").read_text())
    assert config_of(design_of("both", 192)) == published["config"]
    assert read_design(published["config"]) == design_of("both", 192)
    alone = json.loads((DDR / "rems/rem_dense_lora192/msmarco/adapter_config.json").read_text())
    assert config_of(design_of("lora", 192)) == alone["config"]
    train_rem(judged, rem_settings(dam, tmp_path / "rem", steps=1))
    record = json.loads((tmp_path / "rem" / "adapter_config.json").read_text())
    assert record.keys() == published.keys()
    assert {key: record[key] for key in ("model_class", "model_type", "version", "name", "hidden_size")} == {
        "model_class": "BertDense",
        "model_type": "bert",
        "version": "3.2.1",
        "name": "rem",
        "hidden_size": 32,
    }
    weights = torch.load(tmp_path / "rem" / "pytorch_adapter.bin", weights_only=True)
    assert "bert.encoder.layer.1.attention.self.value.loras.rem.lora_B" in weights


def test_a_fresh_rem_is_seeded_and_changes_nothing(dam: Path) -> None:
    def fresh(seed: int) -> dict[str, torch.Tensor]:
        ranker = assemble(dam)
        attach_fresh(ranker, design_of("both", 16), seed)
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
def test_files_have_the_names_and_sizes_of_the_published_ones(
    kind: str, judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rem, "NAME", "msmarco")
    monkeypatch.setattr(rem, "TOKEN_DIM", 16)
    published = DDR / "rems" / f"rem_{kind}_lora192-pa4" / "msmarco"
    given = rem_settings(
        DDR / "dams" / "dam_source",
        tmp_path,
        ranker=kind,
        design="both",
        rank=192,
        steps=1,
    )
    train_rem(judged, given)
    for file in sorted(path.name for path in published.iterdir()):
        if file.endswith(".json"):
            found, wanted = (json.loads((folder / file).read_text()) for folder in (given.out, published))
            assert found | {"config_id": ""} == wanted | {"config_id": ""}
        else:
            found, wanted = (
                torch.load(folder / file, weights_only=True) for folder in (given.out, published)
            )
            assert {key: value.shape for key, value in found.items()} == {
                key: value.shape for key, value in wanted.items()
            }
