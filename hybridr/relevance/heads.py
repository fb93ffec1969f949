"""What a REM holds beside the adapters: the head of its ranker, and the embeddings that were trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..assembly.ranker import Ranker
from ..assembly.rankers import Reranker, Splade
from ..assembly.rem_files import EMBEDDINGS, HEAD_CONFIG, HEAD_WEIGHTS
from ..manifest import write_json

Weights = dict[str, torch.nn.Parameter]

TAGGING: dict[str, Any] = {"head_type": "tagging", "layers": 1, "activation_function": "tanh"}
CLASSIFICATION = TAGGING | {"head_type": "classification", "bias": True, "use_pooler": False}


def add_head(ranker: Ranker, width: int, seed: int) -> None:
    """Give a ranker that needs one a fresh linear head of `width` outputs, unless it has one.

    Its weights are normal, as wide as the backbone's own initial ones, its bias is zero. Raises ModelError
    for splade without a masked-LM head: that one cannot be made up.
    """
    if ranker.outputs is None or not isinstance(ranker.head, torch.nn.Identity):
        ranker.require_head()
        return
    head = torch.nn.Linear(ranker.config.hidden_size, ranker.outputs or width, device=ranker.device)
    generator = torch.Generator().manual_seed(seed)
    spread = float(getattr(ranker.config, "initializer_range", 0.02))
    torch.nn.init.normal_(head.weight, std=spread, generator=generator)
    torch.nn.init.zeros_(head.bias)
    ranker.head = head


def head_weights(ranker: Ranker, name: str) -> Weights:
    """Give the head's parameters by the keys they have in a REM called `name`; empty without a head."""
    if isinstance(ranker, Splade):
        return ranker.head_weights()
    return {f"heads.{name}.1.{key}": weight for key, weight in ranker.head.named_parameters()}


def embedding_weights(ranker: Ranker) -> Weights:
    """Give the input embeddings that a re-ranker's REM carries (splade's words are its head's decoder)."""
    return dict(ranker.backbone.embeddings.named_parameters()) if isinstance(ranker, Reranker) else {}


def unfreeze(weights: Weights) -> Weights:
    """Make parameters trainable, those that are tied once only."""
    once: Weights = {}
    for key, weight in weights.items():
        if not any(weight is other for other in once.values()):
            weight.requires_grad_(True)
            once[key] = weight
    return once


def write_head(ranker: Ranker, record: Mapping[str, Any], folder: Path) -> list[str]:
    """Write head and embeddings beside the adapters; give the names of the files."""
    name = str(record["name"])
    weights = head_weights(ranker, name)
    if not weights:
        return []
    torch.save(plain_tensors(weights), folder / HEAD_WEIGHTS)
    write_json(folder / HEAD_CONFIG, head_record(ranker, record))
    if not isinstance(ranker, Reranker):
        return [HEAD_WEIGHTS, HEAD_CONFIG]
    tensors = plain_tensors(embedding_weights(ranker))
    if "position_embeddings.weight" in tensors:
        tensors["position_ids"] = torch.arange(len(tensors["position_embeddings.weight"])).unsqueeze(0)
    torch.save(tensors, folder / EMBEDDINGS)
    return [HEAD_WEIGHTS, HEAD_CONFIG, EMBEDDINGS]


def head_record(ranker: Ranker, record: Mapping[str, Any]) -> dict[str, Any]:
    """Give `head_config.json`, as the published files have it."""
    kept = ("hidden_size", "model_class", "model_name", "model_type", "name", "version")
    common = {key: record[key] for key in kept if key in record}
    if isinstance(ranker, Splade):
        return common | {"config": None, "name": None, "num_labels": 2, "label2id": labels(2)}
    width = int(ranker.head.get_parameter("bias").numel())
    kind = CLASSIFICATION if isinstance(ranker, Reranker) else TAGGING
    return common | {"config": kind | {"num_labels": width, "label2id": labels(width)}}


def labels(count: int) -> dict[str, int]:
    """Name the outputs."""
    return {f"LABEL_{number}": number for number in range(count)}


def plain_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give copies on the CPU that any weights-only reader takes."""
    return {key: weight.detach().float().cpu().clone().contiguous() for key, weight in weights.items()}
