"""Objectives: what a training minimises, one file each.

The class of a member states in plain lines its `name`, that of the file, a `help` for the command line, and
`on`, what it is trained on; that says where it can be chosen and what it is made of. The lines are read
without importing the file: a subclass of another member states them itself. The shortest member is a
subclass, such as `Pairwise`.

    "documents"  `dam train`, `adapt --rem`: Member(dam, frame, cache, settings, precision, processes), which
                 `FitsDam`; its Settings extend `DamSettings`
    "labels"     `rem train --loss`: Member(ranker, weights, batches, settings, precision, processes);
                 `teacher = True` where its batches need a teacher's scores
    "pairs"      the same for the re-ranker, which reads query and document together

A file whose class states nothing holds losses that nothing is trained by yet, or what members share.
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
    """Loss that a training minimises; `parts` must depend only on weights, seed, step and rank."""

    name: str
    """Name of the objective, which is that of its file."""
    on: str
    """Kind of its training data: "documents", "labels" or "pairs"."""
    module: torch.nn.Module
    """The model, whose mode the loop sets."""
    weights: Mapping[str, torch.nn.Parameter]
    """Trained weights by name, in a fixed order."""
    dropout: bool
    """Whether the model's own dropout is active."""
    shared_loss: bool
    """Whether every process computes the whole loss; else their losses add up."""
    recipe: Recipe
    """Optimiser and schedule of the weights, from the settings."""
    processes: Any
    """The `Processes` that train together."""

    @property
    def Settings(self) -> type[Stage]:  # noqa: N802
        """The class of the settings that the objective takes."""

    def parts(self, step: int) -> Sequence[Any]:
        """Return this process's micro-batches of an optimiser step, numbered from 1."""

    def loss(self, part: Any) -> torch.Tensor:
        """Return the loss of a micro-batch; the gradients of all micro-batches of all processes add up to the
        step's.
        """


class FitsDam(Objective, Protocol):
    """An objective on documents without labels, which trains a DAM."""

    title: str
    """Name in words, for curves and manifests."""
    source: str
    """Authors and year, for model cards."""
    strength: float
    """The share (0..1) of the learnt change that is kept unless another is asked for."""
    budget: int
    """The tokens of its largest micro-batch."""
    documents: int
    """Number of documents that are trained on."""
    unused: frozenset[str]
    """Settings that the result does not follow from."""

    def unseen_loss(self) -> float | None:
        """Return the loss on the held-out documents, always computed the same way; None without any."""

    def leave(self, folder: Path) -> list[str]:
        """Write further trained weights beside the DAM into its folder; return the names of the files."""


class Memory(Protocol):
    """State that a training keeps from step to step, beside weights and optimiser."""

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the state as tensors for a checkpoint."""

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the state from the tensors of a checkpoint."""

    def observed(self) -> Mapping[str, Any]:
        """Return the values (numbers or lists) measured in the last step for the log, always by the same
        names.
        """


@dataclass(frozen=True)
class Recipe:
    """Optimisation of the weights: steps, learning rate, its schedule, optimiser (AdamW or plain "sgd")."""

    steps: int
    learning_rate: float
    seed: int
    warm_up: int = 0
    """Steps in which the learning rate rises linearly."""
    decay: bool = False
    """Whether the rate falls linearly to 0 afterwards; else it stays."""
    weight_decay: float = 0.0
    """Not on biases and LayerNorm."""
    clip: float = 1.0
    """Norm that the gradient is cut to; 0 leaves it."""
    precision: TrainingPrecision = "fp32"
    checkpoint_every: int = 100
    optimizer: Literal["adamw", "sgd"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    """Coefficients of AdamW, as `eps`."""
    eps: float = 1e-8

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, numbered from 1."""
        if step <= self.warm_up:
            return self.learning_rate * step / self.warm_up
        left = (self.steps - step + 1) / (self.steps - self.warm_up + 1)
        return self.learning_rate * (left if self.decay else 1.0)
