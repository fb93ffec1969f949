"""Makes a new REM (adapters and head) in a ranker, and writes a trained one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..files.atomic import write_json
from ..files.manifest import fingerprint
from . import adapters
from .adapters import LORA_NEEDS, PARALLEL_NEEDS, Design, Lora, Parallel
from .ranker import Ranker
from .rankers import CrossEncoder, Splade
from .rem_files import CONFIG, EMBEDDINGS, HEAD_CONFIG, HEAD_WEIGHTS, WEIGHTS

FORMAT = "3.2.1"  # the version of adapter-transformers that writes these very files
UNUSED_HYPERCOMPLEX: dict[str, Any] = {
    "factorized_phm_W": True,
    "factorized_phm_rule": False,
    "hypercomplex_nonlinearity": "glorot-uniform",
    "learn_phm": True,
    "phm_bias": True,
    "phm_c_init": "normal",
    "phm_dim": 4,
    "phm_init_range": 0.0001,
    "phm_rank": 1,
    "shared_W_phm": False,
    "shared_phm_rule": True,
}
"""What published files say about a layer that they do not have."""
CLASSES = {
    "dense": "{}Dense",
    "unicoil": "{}Unicoil",
    "splade": "{}Splade",
    "colbert": "ColBERT",
    "rerank": "{}AdapterModel",
}
"""The class that the authors' code opens a REM with."""
CLASS_NAMES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
Trainable = dict[str, torch.nn.Parameter]
TAGGING: dict[str, Any] = {"head_type": "tagging", "layers": 1, "activation_function": "tanh"}
CLASSIFICATION = TAGGING | {"head_type": "classification", "bias": True, "use_pooler": False}


def design_of(kind: str, rank: int) -> Design:
    """Return the design of a REM by kind: "lora", "parallel", or "both" as published; alpha is the rank."""
    lora = Lora(rank, rank) if kind in ("lora", "both") else None
    return Design(lora, Parallel() if kind in ("parallel", "both") else None)


def attach_fresh(ranker: Ranker, design: Design, seed: int) -> None:
    """Add new adapters, which change nothing yet, to the ranker, and freeze its other weights.

    A and W_down are Kaiming-uniform with a = sqrt(5) from `seed`, the rest is zero (Zhan et al. 2022).
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapters.attach(ranker.backbone, design)


def config_of(design: Design) -> dict[str, Any]:
    """Return the `config` of `adapter_config.json` for a design (the inverse of `read_design`)."""
    parts = []
    if lora := design.lora:
        own = {
            "architecture": "lora",
            "r": lora.rank,
            "alpha": whole(lora.alpha),
            "dropout": lora.dropout,
            "attn_matrices": list(lora.projections),
            "init_weights": "lora",
        }
        parts.append(LORA_NEEDS | own)
    if parallel := design.parallel:
        factor = parallel.reduction_factor
        own = {
            "reduction_factor": dict(factor) if isinstance(factor, Mapping) else whole(factor),
            "scaling": "learned" if parallel.scaling is None else parallel.scaling,
            "non_linearity": parallel.activation,
            "init_weights": "mam_adapter",
            "inv_adapter_reduction_factor": None,
            "residual_before_ln": True,
        }
        parts.append(PARALLEL_NEEDS | UNUSED_HYPERCOMPLEX | own)
    return parts[0] if len(parts) == 1 else {"architecture": "union", "configs": parts}


def whole(value: float) -> float:
    """Return a number as integer if it is whole, as published files write it."""
    return int(value) if value == int(value) else value


def write_rem(ranker: Ranker, design: Design, name: str, folder: Path) -> list[str]:
    """Write the REM in `ranker` into `folder`; return the names of the files."""
    if ranker.rem is not None:
        record = dict(ranker.rem.record)  # that of a REM which is trained on stays as it is
    else:
        config = config_of(design)
        record = {
            "config": config,
            "config_id": fingerprint(config)[:16],
            "hidden_size": int(ranker.config.hidden_size),
            "model_class": CLASSES[ranker.ranker].format(CLASS_NAMES[ranker.config.model_type]),
            "model_name": None,
            "model_type": ranker.config.model_type,
            "name": name,
            "version": FORMAT,
        }
    tensors = adapters.adapter_weights(ranker.backbone, str(record["name"]))
    torch.save(plain_tensors(tensors), folder / WEIGHTS)
    write_json(folder / CONFIG, record)
    return [WEIGHTS, CONFIG, *write_head(ranker, record, folder)]


def add_head(ranker: Ranker, width: int, seed: int) -> None:
    """Add a new linear head of `width` outputs to a ranker that needs one and has none.

    Its weights are drawn with the backbone's own initial spread, its bias is zero. Raises ModelError for
    splade without a masked-LM head, which cannot be made anew.
    """
    if ranker.outputs is None or not isinstance(ranker.head, torch.nn.Identity):
        ranker.require_complete()
        return
    head = torch.nn.Linear(ranker.config.hidden_size, ranker.outputs or width, device=ranker.device)
    generator = torch.Generator().manual_seed(seed)
    spread = float(getattr(ranker.config, "initializer_range", 0.02))
    torch.nn.init.normal_(head.weight, std=spread, generator=generator)
    torch.nn.init.zeros_(head.bias)
    ranker.head = head


def head_weights(ranker: Ranker, name: str) -> Trainable:
    """Return the head's parameters by their keys in a REM called `name`; empty without a head."""
    if isinstance(ranker, Splade):
        return ranker.head_weights()
    return {f"heads.{name}.1.{key}": weight for key, weight in ranker.head.named_parameters()}


def embedding_weights(ranker: Ranker) -> Trainable:
    """Return the input embeddings that the REM of a re-ranker carries; empty for other rankers."""
    return dict(ranker.backbone.embeddings.named_parameters()) if isinstance(ranker, CrossEncoder) else {}


def unfreeze(weights: Trainable) -> Trainable:
    """Make parameters trainable and return them, tied ones only once."""
    once: Trainable = {}
    for key, weight in weights.items():
        if not any(weight is parameter for parameter in once.values()):
            weight.requires_grad_(True)
            once[key] = weight
    return once


def write_head(ranker: Ranker, record: Mapping[str, Any], folder: Path) -> list[str]:
    """Write the head (and a re-ranker's embeddings) beside the adapters; return the names of the files."""
    name = str(record["name"])
    weights = head_weights(ranker, name)
    if not weights:
        return []
    torch.save(plain_tensors(weights), folder / HEAD_WEIGHTS)
    names = ("hidden_size", "model_class", "model_name", "model_type", "name", "version")
    common = {key: record[key] for key in names if key in record}
    width = 2 if isinstance(ranker, Splade) else int(ranker.head.get_parameter("bias").numel())
    outputs = {"num_labels": width, "label2id": {f"LABEL_{number}": number for number in range(width)}}
    kind = CLASSIFICATION if isinstance(ranker, CrossEncoder) else TAGGING
    own = (
        {"config": None, "name": None} | outputs if isinstance(ranker, Splade) else {"config": kind | outputs}
    )
    write_json(folder / HEAD_CONFIG, common | own)
    if not isinstance(ranker, CrossEncoder):
        return [HEAD_WEIGHTS, HEAD_CONFIG]
    tensors = plain_tensors(embedding_weights(ranker))
    if "position_embeddings.weight" in tensors:
        tensors["position_ids"] = torch.arange(len(tensors["position_embeddings.weight"])).unsqueeze(0)
    torch.save(tensors, folder / EMBEDDINGS)
    return [HEAD_WEIGHTS, HEAD_CONFIG, EMBEDDINGS]


def plain_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of the weights as contiguous fp32 tensors on the CPU."""
    return {key: weight.detach().float().cpu().clone().contiguous() for key, weight in weights.items()}
