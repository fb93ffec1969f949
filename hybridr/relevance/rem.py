"""A REM to be trained, and its files: what `assemble` reads, in the format of the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..assembly import adapters
from ..assembly.designs import LORA_NEEDS, PARALLEL_NEEDS, Design, Lora, Parallel
from ..assembly.ranker import Ranker
from ..assembly.rem_files import CONFIG, WEIGHTS
from ..manifest import fingerprint, write_json
from .heads import plain_tensors, write_head

FORMAT = "3.2.1"  # the version of adapter-transformers that writes these very files
UNUSED_HYPERCOMPLEX: dict[str, Any] = {
    "factorized_phm_W": True, "factorized_phm_rule": False, "hypercomplex_nonlinearity": "glorot-uniform",
    "learn_phm": True, "phm_bias": True, "phm_c_init": "normal", "phm_dim": 4, "phm_init_range": 0.0001,
    "phm_rank": 1, "shared_W_phm": False, "shared_phm_rule": True,
}  # fmt: skip
"""What published files say about a layer that they do not have."""

CLASSES = {
    "dense": "{}Dense", "unicoil": "{}Unicoil", "splade": "{}Splade", "colbert": "ColBERT",
    "rerank": "{}AdapterModel",
}  # fmt: skip
"""The class that the authors' code opens a REM with."""

KINDS = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}


def design_of(kind: str, rank: int) -> Design:
    """Give the design of a REM: "lora", "parallel", or "both" as published; alpha is the rank."""
    lora = Lora(rank, rank) if kind in ("lora", "both") else None
    return Design(lora, Parallel() if kind in ("parallel", "both") else None)


def attach_fresh(ranker: Ranker, design: Design, seed: int) -> None:
    """Put a REM that changes nothing yet into the ranker; nothing else is trainable then.

    A and W_down are Kaiming-uniform with a = sqrt(5) from `seed`, all the rest is zero (Zhan et al. 2022).
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapters.attach(ranker.backbone, design)


def record_of(ranker: Ranker, design: Design, name: str) -> dict[str, Any]:
    """Give `adapter_config.json`; that of a REM which is trained on stays as it is."""
    if ranker.rem is not None:
        return dict(ranker.rem.record)
    config = config_of(design)
    return {
        "config": config,
        "config_id": fingerprint(config)[:16],
        "hidden_size": int(ranker.config.hidden_size),
        "model_class": CLASSES[ranker.ranker].format(KINDS[ranker.config.model_type]),
        "model_name": None,
        "model_type": ranker.config.model_type,
        "name": name,
        "version": FORMAT,
    }


def config_of(design: Design) -> dict[str, Any]:
    """Write a design as `read_design` reads it: one method, or a union of two."""
    parts = [lora_part(design.lora)] if design.lora else []
    parts += [parallel_part(design.parallel)] if design.parallel else []
    return parts[0] if len(parts) == 1 else {"architecture": "union", "configs": parts}


def lora_part(lora: Lora) -> dict[str, Any]:
    """Write the settings of a LoRA."""
    return LORA_NEEDS | {
        "architecture": "lora", "r": lora.rank, "alpha": whole(lora.alpha), "dropout": lora.dropout,
        "attn_matrices": list(lora.projections), "init_weights": "lora",
    }  # fmt: skip


def parallel_part(parallel: Parallel) -> dict[str, Any]:
    """Write the settings of a parallel adapter."""
    factor = parallel.reduction_factor
    return PARALLEL_NEEDS | UNUSED_HYPERCOMPLEX | {
        "reduction_factor": dict(factor) if isinstance(factor, Mapping) else whole(factor),
        "scaling": "learned" if parallel.scaling is None else parallel.scaling,
        "non_linearity": parallel.activation, "init_weights": "mam_adapter",
        "inv_adapter_reduction_factor": None, "residual_before_ln": True,
    }  # fmt: skip


def whole(value: float) -> float:
    """Give an integer where the number is one, as the published files write it."""
    return int(value) if value == int(value) else value


def write_rem(ranker: Ranker, design: Design, name: str, folder: Path) -> list[str]:
    """Write the REM in `ranker` into `folder`; give the names of the files."""
    record = record_of(ranker, design, name)
    tensors = adapters.adapter_weights(ranker.backbone, str(record["name"]))
    torch.save(plain_tensors(tensors), folder / WEIGHTS)
    write_json(folder / CONFIG, record)
    return [WEIGHTS, CONFIG, *write_head(ranker, record, folder)]
