"""The low-rank change (LoRA, by peft) on the query and value projections of a retriever."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

from ..errors import MissingExtra, ModelError
from ..retriever import Retriever

try:
    import peft
    from peft.tuners.lora import LoraLayer
except ImportError as missing:
    raise MissingExtra(missing.name or "peft", "train", "adapting a model") from missing

PROJECTIONS = ({"query", "value"}, {"q_lin", "v_lin"}, {"q", "v"}, {"q_proj", "v_proj"})
"""How BERT and RoBERTa, DistilBERT, MPNet, and later models call the two projections."""


def attach(retriever: Retriever, rank: int, seed: int) -> Retriever:
    """Give a copy whose backbone carries a fresh LoRA; everything else is frozen.

    The change starts at zero; its random half is drawn from `seed`. Raises ModelError.
    """
    names = {name.rsplit(".", 1)[-1] for name, _ in retriever.backbone.named_modules()}
    targets = next((found for found in PROJECTIONS if found <= names), None)
    if targets is None:
        raise ModelError(f"{retriever.base} has no query and value projections that LoRA could change")
    settings = peft.LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=sorted(targets))
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft calls what transformers renamed
        torch.manual_seed(seed)
        backbone = peft.get_peft_model(copy.deepcopy(retriever.backbone), settings)
    return Retriever(backbone, retriever.tokenizer_json, retriever.usage, retriever.folder)


def low_rank_weights(retriever: Retriever) -> dict[str, torch.nn.Parameter]:
    """Name the weights that are trained, in a fixed order."""
    return {name: weight for name, weight in retriever.backbone.named_parameters() if weight.requires_grad}


def merge(retriever: Retriever, strength: float) -> Retriever:
    """Give a plain copy with `strength` (0..1) of the change folded into the weights."""
    backbone: Any = copy.deepcopy(retriever.backbone)
    for module in backbone.modules():
        if isinstance(module, LoraLayer):
            module.scale_layer(strength)
    merged = backbone.merge_and_unload().eval()
    return Retriever(merged, retriever.tokenizer_json, retriever.usage, retriever.folder)
