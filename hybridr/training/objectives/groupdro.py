"""GroupDRO (Sagawa et al. 2020), greedy as in COCO-DR: groups with the largest losses get larger weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..batches import Numbers, TargetTexts
from .idro import Grouped
from .labelled import EncodedApart


@dataclass(frozen=True)
class GreedyDro:
    """The rule that gives larger weights to the worst groups, up to a share of the samples (Sagawa et al.
    2020; COCO-DR).
    """

    share: float = 0.25
    """Share of samples that the worst groups make up, above 0 to 1."""
    decay: float = 0.1
    """Weight of a new value in the running means, 0..1."""
    floor: float = 0.01

    def loss(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean loss, from losses and groups `(n,)` and weights `(k,)`."""
        return (weights[groups] * losses).sum() / len(losses)

    def step(
        self, means: Tensor, running_sizes: Tensor, group_losses: Tensor, batch_sizes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next running mean losses and sizes, and the weights of the groups; all are `(k,)`.

        `means` start at 0, `running_sizes` at 1. `group_losses` are the mean losses of the groups in a batch,
        `batch_sizes` the numbers of its samples in each group.
        """
        running_means = (1 - self.decay) * means + self.decay * group_losses.detach()
        means = torch.where(batch_sizes > 0, running_means, means)
        running_sizes = (1 - self.decay) * running_sizes + self.decay * batch_sizes
        # The worst groups weigh 1 / share until they make up the share; the next group gets the remainder.
        order = torch.argsort(means, descending=True)
        portions = (running_sizes / running_sizes.sum())[order]
        full_count = min(int((portions.cumsum(0) < self.share).sum()), len(order) - 1)
        last_weight = (1 - portions[:full_count].sum() / self.share) / portions[full_count]
        weights = torch.full_like(means, self.floor)
        weights[order[:full_count]] = 1 / self.share
        weights[order[full_count]] = last_weight.clamp(min=self.floor)
        return means, running_sizes, weights


class GroupDro(Grouped):
    """GroupDRO as a method: groups with the largest losses get larger weights (as in COCO-DR's table 7)."""

    name = "groupdro"
    help = "by the size of its loss"
    on = "method"
    by_clusters = True
    source = "Sagawa et al. 2020 (GroupDRO), greedy as in Yu et al. 2022 (COCO-DR)"

    def __init__(
        self,
        objective: EncodedApart,
        groups: Numbers,
        count: int,
        rule: GreedyDro | None = None,
        *,
        used: str = "former",
    ) -> None:
        """Take the group of every query."""
        super().__init__(objective, groups, torch.ones(count), used)
        self.rule = rule or GreedyDro()
        self.means, self.sizes = torch.zeros_like(self.weights), torch.ones_like(self.weights)

    @classmethod
    def create(cls, objective: EncodedApart, settings: Any, seed: int, _: TargetTexts | None) -> GroupDro:
        """Return the method with the published constants."""
        return cls(objective, cls.clusters(objective, settings.clusters, seed), settings.clusters)

    def weigh(self, losses: Tensor, groups: Tensor, means: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Update running means, sizes and weights; return the new weights and the weighted loss."""
        self.means, self.sizes, weights = self.rule.step(self.means, self.sizes, means, sizes)
        return weights, self.rule.loss(losses, groups, weights if self.used == "new" else self.weights)

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, groups, running means and running sizes for a checkpoint."""
        return super().tensors() | {"means": self.means, "sizes": self.sizes}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from the tensors of a checkpoint."""
        super().restore(tensors)
        self.means, self.sizes = (tensors[name].to(self.means.device) for name in ("means", "sizes"))
