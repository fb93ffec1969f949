"""A training run on disk: its state, its checkpoint and its curve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..files.atomic import replacing, storing
from ..files.pictures import svg

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
CURVE_FILE = "losses.svg"
SMOOTHED = 50  # points of the running mean
CURVE_POINTS = 200


def store(
    path: Path,
    key: str,
    weights: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    losses: list[float],
    seconds: float,
) -> None:
    """Write the state after the last of `losses`, whole or not at all. Raises DownloadError."""
    tensors = {f"weight.{name}": weight.detach().cpu().contiguous() for name, weight in weights.items()}
    for name, weight in weights.items():
        for part, value in optimizer.state[weight].items():
            tensors[f"{part}.{name}"] = value.detach().cpu().contiguous()
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    with storing(path), replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"key": key, "seconds": str(seconds)})


def restore(
    path: Path, key: str, weights: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> tuple[list[float], float]:
    """Load a checkpoint of the same `key`; give its losses and seconds, none of either without one."""
    found = read_state(path, key)
    if found is None:
        return [], 0.0
    tensors, seconds = found
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[f"weight.{name}"])
            optimizer.state[weight] = {
                part: moved(tensors[f"{part}.{name}"], part, weight) for part in MOMENTS
            }
    return tensors["losses"].tolist(), seconds


def moved(value: torch.Tensor, part: str, weight: torch.Tensor) -> torch.Tensor:
    """Put a part of the optimiser's state where it belongs: the fused kernel wants the count there too."""
    return value.to(weight.device) if part != "step" or weight.is_cuda else value


def read_state(path: Path, key: str) -> tuple[dict[str, Any], float] | None:
    """Read a checkpoint; None when there is none, it is damaged, or it belongs to another run."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != key:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}, float(metadata["seconds"])  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError):
        return None


def write_losses(path: Path, losses: list[float]) -> None:
    """Start the log with the losses of the steps that are done."""
    lines = (json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses, 1))
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")


def append_loss(path: Path, step: int, loss: float) -> None:
    """Add one step to the log."""
    with storing(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "loss": loss}) + "\n")


def write_curve(path: Path, losses: Sequence[float], *, label: str = "loss") -> None:
    """Draw one loss per step as SVG, the single steps pale and their running mean on top."""
    steps = np.arange(1, len(losses) + 1)
    width = max(1, len(losses) // SMOOTHED)
    means = np.convolve(losses, np.ones(width) / width, mode="valid")
    with storing(path), svg(path, (7, 3.5)) as axes:
        axes.plot(steps, losses, color="#9db8d2", linewidth=0.8)
        axes.plot(steps[width - 1 :], means, color="#1f4e79", linewidth=1.6)
        axes.set(xlabel="optimiser step", ylabel=label)
        axes.grid(alpha=0.3)


def thinned(losses: Sequence[float]) -> list[float]:
    """Keep some 200 to 400 evenly spread losses, for a manifest."""
    return list(losses[:: max(1, len(losses) // CURVE_POINTS)])
