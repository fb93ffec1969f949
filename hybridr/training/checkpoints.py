"""The state of an unfinished training on disk: weights, optimiser, losses, what a method carries along."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..errors import extra
from ..files.atomic import replacing, storing
from .objectives import Memory
from .runs import Training

with extra("train", "training a model"):
    import torch
    from safetensors.torch import save_file

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
MEMORY, OBSERVED = "memory.", "observed."  # what names in a checkpoint begin with


def store(
    path: Path,
    key: str,
    weights: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    run: Training,
    memory: Memory | None = None,
) -> None:
    """Write the state after the last of the run's losses, whole or not at all. Raises DownloadError."""
    tensors = {f"weight.{name}": weight.detach().cpu().contiguous() for name, weight in weights.items()}
    for name, weight in weights.items():
        for part, value in optimizer.state.get(weight, {}).items():
            if value is not None:  # plain descent has no momentum
                tensors[f"{part}.{name}"] = value.detach().cpu().contiguous()
    for name, value in (memory.tensors() if memory else {}).items():
        tensors[f"{MEMORY}{name}"] = value.detach().cpu().contiguous()
    for name, values in run.observed.items():
        tensors[f"{OBSERVED}{name}"] = torch.tensor(values, dtype=torch.float64)
    tensors["losses"] = torch.tensor(run.losses, dtype=torch.float64)
    with storing(path), replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"key": key, "seconds": str(run.seconds)})


def restore(
    path: Path,
    key: str,
    weights: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    memory: Memory | None = None,
) -> Training:
    """Load a checkpoint of the same `key` and give what was done; a run without one starts anew."""
    checkpoint = read_checkpoint(path, key)
    if checkpoint is None:
        return Training()
    tensors, seconds = checkpoint
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[f"weight.{name}"])
    restore_optimizer(tensors, weights, optimizer)
    if memory is not None:
        memory.take(beginning(MEMORY, tensors))
    losses = tensors["losses"].tolist()
    observed = {name: values.tolist() for name, values in beginning(OBSERVED, tensors).items()}
    return Training(losses, len(losses), seconds, observed)


def restore_optimizer(
    tensors: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Give AdamW its moments back; plain descent has none."""
    for name, weight in weights.items():
        if f"step.{name}" in tensors:
            optimizer.state[weight] = {
                part: moved(tensors[f"{part}.{name}"], part, weight) for part in MOMENTS
            }


def beginning(start: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give the tensors whose names begin with `start`, without that."""
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def moved(value: torch.Tensor, part: str, weight: torch.Tensor) -> torch.Tensor:
    """Put a part of the optimiser's state where it belongs: the fused kernel wants the count there too."""
    return value.to(weight.device) if part != "step" or weight.is_cuda else value


def read_checkpoint(path: Path, key: str) -> tuple[dict[str, Any], float] | None:
    """Read tensors and seconds; None when there are none, they are damaged, or of another run."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != key:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}, float(metadata["seconds"])  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
