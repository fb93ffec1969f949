"""The baseline without a REM: a backbone trained whole, written as a folder that `assemble` opens."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from ..assembly.backbone import TIED, Dam
from .heads import plain_tensors

WEIGHTS = "model.safetensors"
KEPT_FILES = (
    "config.json", "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json",
    "special_tokens_map.json",
)  # fmt: skip


def write_whole(dam: Dam, heads: Mapping[str, torch.Tensor], folder: Path) -> list[str]:
    """Write the model and a ranker's head with the DAM's configuration and tokenizer; name the files."""
    inner = f"{dam.model.base_model_prefix}."
    tensors = {
        key: value
        for key, value in dam.model.state_dict().items()
        if key.startswith(inner) or (dam.has_language_head and not key.endswith(TIED))
    }
    save_file(plain_tensors(tensors | dict(heads)), folder / WEIGHTS, metadata={"format": "pt"})
    copied = [name for name in KEPT_FILES if (dam.folder / name).is_file()]
    for name in copied:
        shutil.copyfile(dam.folder / name, folder / name)
    return [WEIGHTS, *copied]
