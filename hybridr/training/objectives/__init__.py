"""Training objectives, one file each.

The class of a member assigns literals to `name` (that of the file), `help` for the command line, and `on`,
the kind of its training data. `on` decides where it can be chosen and how it is constructed. These lines are
read without importing the file, so a subclass of another member repeats them. The shortest member is a
subclass, such as `Pairwise`.

    "documents"  `dam train`, `adapt --rem`: Member(dam, frame, cache, settings, precision, processes), which
                 `FitsDam`; its Settings extend `DamSettings`
    "labels"     `rem train --loss`: Member(ranker, weights, batches, settings, precision, processes);
                 `teacher = True` if its batches need a teacher's scores
    "pairs"      the same for the re-ranker, which reads query and document together

A file whose class assigns none of them holds losses that no training uses yet, or code of several members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ...settings import Stage

if TYPE_CHECKING:
    import torch

TrainingPrecision = Literal["fp32", "bf16"]


class Objective(Protocol):
    """Loss to minimise; `parts` must depend only on weights, seed, step and rank."""

    name: str
    """Name of the objective, which is that of its file."""
    on: str
    """Kind of its training data: "documents", "labels" or "pairs"."""
    module: torch.nn.Module
    """The model, whose mode the loop sets."""
    weights: Mapping[str, torch.nn.Parameter]
    """Trained weights by name, in a fixed order."""
    dropout: bool
    """Whether the model's dropout is active."""
    shared_loss: bool
    """Whether every process computes the entire loss; else the losses are summed."""
    recipe: Recipe
    """Optimiser and schedule of the weights, from the settings."""
    processes: Any
    """The `Processes` that train together."""
    Settings: type[Stage]
    """Class of the settings that the objective takes."""

    def parts(self, step: int) -> Sequence[Any]:
        """Return this process's micro-batches of an optimiser step, numbered from 1."""

    def loss(self, part: Any) -> torch.Tensor:
        """Return a micro-batch's loss; the gradients of all micro-batches together add up to the step's."""


class FitsDam(Objective, Protocol):
    """An objective on documents without labels, which trains a DAM."""

    title: str
    """Name in words, for curves and manifests."""
    source: str
    """Authors and year, for model cards."""
    strength: float
    """Default share (0..1) of the learnt change that is applied."""
    budget: int
    """Tokens of its largest micro-batch."""
    documents: int
    """Number of training documents."""
    unused: frozenset[str]
    """Settings that do not affect the result."""

    def unseen_loss(self) -> float | None:
        """Return the loss on the held-out documents, always computed the same way; None without any."""

    def write_extra_weights(self, folder: Path) -> list[str]:
        """Write further trained weights beside the DAM into its folder; return the names of the files."""


class CarriedState:
    """State that a training keeps from step to step, besides weights and optimiser; here none."""

    def tensors(self) -> dict[str, Any]:
        """Return the state as tensors, or states of optimisers, for a checkpoint."""
        return {}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Restore the state from that of a checkpoint."""

    def observed(self) -> dict[str, Any]:
        """Return the values (numbers or lists) of the last step for the log, always by the same names."""
        return {}


@dataclass(frozen=True)
class Recipe:
    """Optimisation of the weights: steps, learning rate, its schedule, optimiser (AdamW or plain "sgd")."""

    steps: int
    learning_rate: float
    seed: int
    warm_up: int = 0
    """Steps in which the learning rate rises linearly."""
    decay: bool = False
    """Whether the rate falls linearly to 0 afterwards; else it is constant."""
    weight_decay: float = 0.0
    """Not applied to biases and LayerNorm."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    precision: TrainingPrecision = "fp32"
    checkpoint_every: int = 100
    optimizer: Literal["adamw", "sgd"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    """Coefficients of AdamW, like `eps`."""
    eps: float = 1e-8

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, numbered from 1."""
        if step <= self.warm_up:
            return self.learning_rate * step / self.warm_up
        remaining = (self.steps - step + 1) / (self.steps - self.warm_up + 1)
        return self.learning_rate * (remaining if self.decay else 1.0)
