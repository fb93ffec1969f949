"""COCO-DR (Yu et al. 2022): contrast of spans, and distributionally robust weights of query groups."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import MissingExtra

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "train", "training a model") from missing


def sequence_contrastive(states: Tensor) -> Tensor:
    """Tell a span of the same document from all other spans; `(2n,)`, to be averaged.

    `states` `(2n, dim)` are [CLS] states, those of a document adjacent. Products, temperature 1, a span is no
    candidate for itself. COCO-DR (Yu et al. 2022, equation 5), after coCondenser (Gao and Callan 2022).
    """
    scores = states @ states.T
    scores = scores.masked_fill(torch.eye(len(states), dtype=torch.bool, device=states.device), -torch.inf)
    partners = torch.arange(len(states), device=states.device) ^ 1
    return functional.cross_entropy(scores, partners, reduction="none")


def group_means(losses: Tensor, groups: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Average losses `(n,)` by their group `(n,)` (numbers from 0); means, 0 where absent, and sizes."""
    member = functional.one_hot(groups, count).to(losses.dtype)  # (n, count)
    sizes = member.sum(0)
    return losses @ member / sizes.clamp(min=1), sizes


@dataclass(frozen=True)
class Idro:
    """Implicit distributionally robust optimisation: weights of query groups (COCO-DR, equations 7-10).

    The "code" variant is the released one: cosines of the gradients, the former weight to the power `decay`,
    a floor. The "paper" variant takes raw products, the whole former weight, and no floor.
    """

    power: float = 0.25
    """Of the group losses, 0 or more (alpha in the code, beta in the paper)."""
    decay: float = 0.1
    """Of the former weights, 0..1; "code" only."""
    rate: float = 0.05
    """Step of the weights (1 / tau)."""
    floor: float = 0.01
    """Least weight; "code" only."""
    variant: str = "code"

    def loss(self, group_losses: Tensor, weights: Tensor) -> Tensor:
        """Give the scalar to minimise, from group means `(k,)` and the weights `(k,)` of the step before."""
        if self.variant == "code":
            return (weights * group_losses).sum()
        return (group_losses.detach() ** self.power * weights * group_losses).sum()

    def step(self, weights: Tensor, group_losses: Tensor, sizes: Tensor, gradients: Tensor) -> Tensor:
        """Give the next weights `(k,)`.

        `group_losses` and `sizes` are `(k,)` as `group_means` gives them, `gradients` `(k, parameters)` those
        of the group means; rows of absent groups do not count.
        """
        present = sizes > 0
        code = self.variant == "code"
        gradients = gradients * present.unsqueeze(1)
        if code:
            gradients = functional.normalize(gradients, dim=1, eps=1e-12)
        scale = group_losses.detach().clamp(min=0) ** self.power
        gains = (torch.outer(scale, scale) * (gradients @ gradients.T)).sum(0)
        gains = self.rate * (gains / len(weights) if code else gains) * present
        moved = (weights**self.decay if code else weights) * torch.exp(gains - gains.max())
        if not code:
            return moved / moved.sum()
        moved = moved * present
        return (moved / moved.sum()).clamp(min=self.floor)


@dataclass(frozen=True)
class GreedyDro:
    """GroupDRO that weighs the worst groups up to a share of the samples (Sagawa et al. 2020; COCO-DR)."""

    share: float = 0.25
    """Of the samples that the worst groups make up, above 0 to 1."""
    decay: float = 0.1
    """Weight of the new in the running means, 0..1."""
    floor: float = 0.01

    def loss(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        """Give the scalar to minimise, from losses and groups `(n,)` and the weights `(k,)`."""
        return (weights[groups] * losses).sum() / len(losses)

    def step(
        self, means: Tensor, shares: Tensor, group_losses: Tensor, sizes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the next running means and sizes, and the weights `(k,)` that follow from them.

        All are `(k,)`; running means start at 0 and sizes at 1. `group_losses` and `sizes` are those of the
        batch, as `group_means` gives them.
        """
        moved = (1 - self.decay) * means + self.decay * group_losses.detach()
        means = torch.where(sizes > 0, moved, means)
        shares = (1 - self.decay) * shares + self.decay * sizes
        return means, shares, self.weights(means, shares)

    def weights(self, means: Tensor, shares: Tensor) -> Tensor:
        """Give the worst groups 1 / share until their samples make up the share, the next the rest."""
        order = torch.argsort(means, descending=True)
        portions = (shares / shares.sum())[order]
        whole = min(int((portions.cumsum(0) < self.share).sum()), len(order) - 1)
        rest = (1 - portions[:whole].sum() / self.share) / portions[whole]
        weights = torch.full_like(means, self.floor)
        weights[order[:whole]] = 1 / self.share
        weights[order[whole]] = rest.clamp(min=self.floor)
        return weights
