from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from hybridr.errors import ModelError
from hybridr.training.rankers import assemble
from support.golden_ddr import SOURCE


def test_old_names_of_layer_norms_and_bare_backbones(tmp_path: Path) -> None:
    dam = shutil.copytree(SOURCE, tmp_path / "dam")
    weights = torch.load(dam / "pytorch_model.bin", weights_only=True)
    bare = {
        key.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma"): value
        for key, value in weights.items()
        if key.startswith("bert.")
    }
    torch.save(bare, dam / "pytorch_model.bin")
    assert assemble(dam).fingerprint == assemble(SOURCE).fingerprint
    with pytest.raises(ModelError, match="no masked-LM head"):
        assemble(dam, ranker="splade")
