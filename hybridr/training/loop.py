"""The training loop: every step follows from the seed and its number, so a killed run goes on exactly."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ..errors import ModelError
from ..progress import Progress, silent
from .checkpoint import append_loss, restore, store, write_losses
from .precision import Precision
from .processes import Processes

STATE_FOLDER = ".training"  # in the folder of the result, until that is there
STATE_FILE = "training.safetensors"
LOSSES_FILE = "losses.jsonl"
CURVE_POINTS = 200


class Objective(Protocol):
    """What is minimised, and on what; `parts` must be a pure function of seed, step and rank."""

    @property
    def module(self) -> torch.nn.Module:
        """The model, whose mode the loop sets."""

    @property
    def weights(self) -> Mapping[str, torch.nn.Parameter]:
        """What is trained, by name, in a fixed order."""

    @property
    def dropout(self) -> bool:
        """Whether the model's own dropout is active."""

    @property
    def shared_loss(self) -> bool:
        """Whether every process computes the whole loss; else their losses add up."""

    def parts(self, step: int) -> Sequence[Any]:
        """Give this process's micro-batches of an optimiser step, numbered from 1."""

    def loss(self, part: Any) -> torch.Tensor:
        """Give a scalar; the gradients of all parts of all processes add up to the step's."""


@dataclass(frozen=True)
class Recipe:
    """How the weights are moved: AdamW with betas .9 and .999, eps 1e-8."""

    steps: int
    learning_rate: float
    seed: int
    warm_up: int = 0
    """Steps in which the learning rate rises linearly."""
    decay: bool = False
    """Whether it falls linearly to 0 afterwards; else it stays."""
    weight_decay: float = 0.0
    """Not on biases and LayerNorm."""
    clip: float = 1.0
    """Norm that the gradient is cut to; 0 leaves it."""
    precision: Precision = "fp32"
    checkpoint_every: int = 100

    def rate(self, step: int) -> float:
        """Give the learning rate of a step, numbered from 1."""
        if step <= self.warm_up:
            return self.learning_rate * step / self.warm_up
        left = (self.steps - step + 1) / (self.steps - self.warm_up + 1)
        return self.learning_rate * (left if self.decay else 1.0)


@dataclass
class Training:
    """What a run has done so far: one loss per step, and where it went on from."""

    losses: list[float] = field(default_factory=list)
    resumed_from: int = 0
    seconds: float = 0.0

    @property
    def loss_start(self) -> float:
        """Mean loss of the first tenth of the steps."""
        return float(np.mean(self.losses[: max(1, len(self.losses) // 10)]))

    @property
    def loss_end(self) -> float:
        """Mean loss of the last tenth of the steps."""
        return float(np.mean(self.losses[-max(1, len(self.losses) // 10) :]))


def thinned(losses: Sequence[float]) -> list[float]:
    """Keep some 200 to 400 evenly spread losses, for a manifest."""
    return list(losses[:: max(1, len(losses) // CURVE_POINTS)])


def train(
    objective: Objective,
    recipe: Recipe,
    state: Path,
    key: str,
    *,
    processes: Processes,
    progress: Progress = silent,
) -> Training:
    """Train the objective's weights in place and checkpoint into the file `state`.

    A checkpoint with the same `key` is continued bit for bit, another one is ignored. The losses are
    logged beside it. Raises ModelError when the loss is not finite, DownloadError when the disk is full.
    """
    optimizer = make_optimizer(objective.weights, recipe)
    losses, seconds = restore(state, key, objective.weights, optimizer)
    run = Training(losses, len(losses), seconds)
    log = state.parent / LOSSES_FILE
    if processes.is_main:
        write_losses(log, run.losses)
    objective.module.train(objective.dropout)
    started = time.monotonic()
    with torch.random.fork_rng():
        for step in range(len(run.losses) + 1, recipe.steps + 1):
            run.losses.append(take_step(objective, recipe, optimizer, processes, step))
            progress("train", step, recipe.steps, f"loss {run.losses[-1]:.3f}")
            if not processes.is_main:
                continue
            append_loss(log, step, run.losses[-1])
            if step % recipe.checkpoint_every == 0 or step == recipe.steps:
                run.seconds = seconds + time.monotonic() - started
                store(state, key, objective.weights, optimizer, run.losses, run.seconds)
    objective.module.eval()
    processes.wait()
    return run


def make_optimizer(weights: Mapping[str, torch.nn.Parameter], recipe: Recipe) -> torch.optim.AdamW:
    """Make AdamW with weight decay on matrices only: vectors are biases and LayerNorm."""
    groups = [
        {"params": [weight for weight in weights.values() if weight.ndim > 1],
         "weight_decay": recipe.weight_decay},
        {"params": [weight for weight in weights.values() if weight.ndim < 2], "weight_decay": 0.0},
    ]  # fmt: skip
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=recipe.learning_rate, fused=True
    )


def take_step(
    objective: Objective,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer,
    processes: Processes,
    step: int,
) -> float:
    """Take one optimiser step and give the loss before it. Raises ModelError when that is not finite."""
    torch.manual_seed(seed_of(recipe.seed, step, processes.rank))  # dropout's, the same after a restart
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64, device=processes.device)
    for part in objective.parts(step):
        with torch.autocast(processes.device.type, dtype=torch.bfloat16, enabled=recipe.precision == "bf16"):
            loss = objective.loss(part)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    if not objective.shared_loss:
        processes.add_up([total])
    require_finite(total.item(), step)
    move(list(objective.weights.values()), recipe, optimizer, processes, step)
    return total.item()


def move(
    weights: list[torch.nn.Parameter],
    recipe: Recipe,
    optimizer: torch.optim.Optimizer,
    processes: Processes,
    step: int,
) -> None:
    """Add the gradients of all processes, cut their norm and step."""
    for weight in weights:
        if weight.grad is None:  # unused in this step; it must still be added up in the same order
            weight.grad = torch.zeros_like(weight)
    processes.add_up(weight.grad for weight in weights if weight.grad is not None)
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(weights, recipe.clip)
    for group in optimizer.param_groups:
        group["lr"] = recipe.rate(step)
    optimizer.step()


def require_finite(loss: float, step: int) -> None:
    """Raise ModelError when a loss is infinite or not a number."""
    if not np.isfinite(loss):
        reason = "the first one: the base model or its head is broken" if step == 1 else "it diverged"
        raise ModelError(
            f"the loss is {loss} at step {step}; most likely {reason}",
            hint="lower --learning-rate, train with --precision fp32, or check that the base model works",
        )


def seed_of(seed: int, step: int, rank: int) -> int:
    """Give torch's seed of one step in one process."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))
