"""The baseline without a REM: a backbone trained whole, written as a folder that `assemble` opens."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from ..assembly.backbone import TIED, Dam
from ..assembly.ranker import Ranker

WEIGHTS = "model.safetensors"
KEPT_FILES = (
    "config.json", "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json",
)  # fmt: skip


def unfreeze(ranker: Ranker) -> dict[str, torch.nn.Parameter]:
    """Make every weight that reaches the vectors trainable; give them by name."""
    ranker.backbone.requires_grad_(True)
    return dict(ranker.backbone.named_parameters())


def write_whole(dam: Dam, folder: Path) -> list[str]:
    """Write the model with the DAM's configuration and tokenizer; give the names of the files."""
    inner = f"{dam.model.base_model_prefix}."
    tensors = {
        key: value.detach().float().cpu().clone().contiguous()
        for key, value in dam.model.state_dict().items()
        if key.startswith(inner) or (dam.has_language_head and not key.endswith(TIED))
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    copied = [name for name in KEPT_FILES if (dam.folder / name).is_file()]
    for name in copied:
        shutil.copyfile(dam.folder / name, folder / name)
    return [WEIGHTS, *copied]
