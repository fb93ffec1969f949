"""iDRO (Yu et al. 2022, COCO-DR): weights of query groups, larger if training on a group helps the others."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from ...errors import DataError, extra, quantity
from ...settings import Stage
from ..batches import Numbers, TargetTexts
from ..runs import Training
from .labelled import ComparedBatch, EncodedApart, Plain

RESTARTS, ITERATIONS = 5, 500
VECTORS_PER_CLUSTER = 256  # vectors per cluster that fit the centres; every vector joins its nearest centre
LAYER = re.compile(r"\blayer\.(\d+)\.")
GROUP_SERIES = ("weights_after", "group_losses", "group_sizes")  # values of the log by group
Layers = Sequence[int] | Literal["all"] | None
"""Numbers of encoder layers from 0; "all" are all encoder weights, None is the last quarter of the layers."""


def cluster_vectors(vectors: NDArray[Any], count: int, seed: int) -> NDArray[np.int64]:
    """Return the cluster of each vector `(n, dim)`, 0..count-1, by L2 k-means as in COCO-DR.

    A cluster may stay empty. Raises DataError for fewer vectors than clusters, or if all fall into one.
    """
    with extra("train", "clusters of queries"):
        from sklearn.cluster import KMeans
    if len(vectors) < count:
        raise DataError(
            f"{quantity(len(vectors), 'query')} cannot make {count} clusters",
            hint="--method-settings clusters=N lowers their number",
        )
    sample = default_rng([seed, 7]).permutation(len(vectors))[: VECTORS_PER_CLUSTER * count]
    means = KMeans(count, n_init=RESTARTS, max_iter=ITERATIONS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different vectors than clusters: some stay empty
        groups: NDArray[np.int64] = means.fit(vectors[np.sort(sample)]).predict(vectors).astype(np.int64)
    if len(np.unique(groups)) < 2:
        raise DataError(
            "all queries fall into one cluster: there is nothing to weigh against each other",
            hint="train without --method, or with queries that differ",
        )
    return groups


def group_means(losses: Tensor, groups: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the mean of losses `(n,)` in each group (0 for absent groups), and the groups' sizes."""
    member = functional.one_hot(groups, count).to(losses.dtype)  # (n, count)
    sizes = member.sum(0)
    return losses @ member / sizes.clamp(min=1), sizes


@dataclass(frozen=True)
class IdroRule:
    """The rule of implicit distributionally robust optimisation: weights of query groups (COCO-DR, equations
    7-10).

    The "code" variant is the released one: cosines of the gradients, the former weight to the power `decay`,
    a floor. The "paper" variant takes raw products, the full former weight, and no floor.
    """

    power: float = 0.25
    """Exponent of the group losses, 0 or more (alpha in the code, beta in the paper)."""
    decay: float = 0.1
    """Exponent of the former weights, 0..1; "code" only."""
    rate: float = 0.05
    """Step of the weights (1 / tau)."""
    floor: float = 0.01
    """Smallest weight of a group; "code" only."""
    variant: str = "code"

    def start(self, count: int) -> Tensor:
        """Return the weights `(count,)` before the first step."""
        return torch.ones(count) if self.variant == "code" else torch.full((count,), 1 / count)

    def loss(self, group_losses: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted loss from group means and weights `(k,)`."""
        if self.variant == "code":
            return (weights * group_losses).sum()
        return (group_losses.detach() ** self.power * weights * group_losses).sum()

    def step(self, weights: Tensor, group_losses: Tensor, sizes: Tensor, products: Tensor) -> Tensor:
        """Return the next weights `(k,)`.

        `group_losses` and `sizes` are the results `(k,)` of `group_means`. `products` are the inner products
        `(k, k)` of the gradients of the group means; those of absent groups do not count.
        """
        present = sizes > 0
        is_code = self.variant == "code"
        products = torch.where(torch.outer(present, present), products, 0.0)
        if is_code:
            norms = products.diagonal().clamp(min=0).sqrt().clamp(min=1e-12)
            products = products / torch.outer(norms, norms)
        scale = group_losses.detach().clamp(min=0) ** self.power
        gains = (torch.outer(scale, scale) * products).sum(0)
        gains = self.rate * (gains / len(weights) if is_code else gains) * present
        factors = torch.exp(gains - gains.max())
        if not is_code:
            new_weights = weights * factors
            return new_weights / new_weights.sum()
        new_weights = weights**self.decay * factors * present
        return (new_weights / new_weights.sum()).clamp(min=self.floor)


class ClusteringSettings(Stage):
    """Settings of methods that weigh clusters of queries."""

    table: ClassVar[str] = "rem.method_settings"

    clusters: int = Field(50, ge=2, le=10_000, description="clusters of queries")


class IdroSettings(ClusteringSettings):
    """Settings of iDRO."""

    variant: Literal["paper", "code"] | None = Field(None, description="of its paper, or None: as released")


class Grouped(Plain):
    """Base of methods that weigh groups of queries in the loss and change the weights at every step."""

    own_settings = ClusteringSettings

    def __init__(self, objective: EncodedApart, groups: Numbers, weights: Tensor, used: str) -> None:
        """Store the group of each query, numbered from 0, and the initial weights `(k,)`.

        `used` says which weights make the loss of a step: the "former", or the "new" ones computed in it.
        """
        self.objective = objective
        self.groups = torch.from_numpy(groups).to(objective.processes.device)
        self.weights = weights.to(objective.processes.device)
        self.used = used
        self.last_values: dict[str, Tensor] = {}
        """Values of the last step, by name."""

    @staticmethod
    def clusters(objective: EncodedApart, count: int, seed: int) -> Numbers:
        """Return the cluster of each query by its present vector, the same in all processes."""
        processes = objective.processes
        groups = torch.zeros(len(objective.batches.examples.queries), dtype=torch.int64)
        if processes.is_main:
            queries = [row.tolist() for row in objective.batches.examples.queries]
            vectors = objective.module.encode_queries(queries, max_tokens=objective.limits.query)
            groups = torch.from_numpy(cluster_vectors(vectors, count, seed))
        processes.add_up([groups := groups.to(processes.device)])
        return groups.cpu().numpy()

    def loss(self, compared: ComparedBatch) -> Tensor:
        """Return the weighted loss of a batch, and update the weights, through which no gradient flows."""
        numbers = torch.from_numpy(compared.batch.queries).to(self.groups.device)
        groups, former = self.groups[numbers], self.weights
        means, sizes = group_means(compared.losses, groups, len(former))
        self.weights, loss = self.weigh(compared.losses, groups, means, sizes)
        self.last_values = {
            "row_losses": compared.losses.detach(),
            "group_losses": means.detach(),
            "group_sizes": sizes,
            "weights_before": former,
            "weights_after": self.weights,
        }
        return loss

    def weigh(self, losses: Tensor, groups: Tensor, means: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new weights `(k,)` and the weighted loss.

        `losses` and `groups` are those of the batch, `(n,)`, `means` and `sizes` those of its groups, `(k,)`.
        """
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """Return weights and groups for a checkpoint."""
        return {"weights": self.weights, "groups": self.groups}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore weights and groups from the tensors of a checkpoint."""
        self.weights, self.groups = (tensors[name].to(self.weights.device) for name in ("weights", "groups"))

    def observed(self) -> dict[str, Any]:
        """Return the unweighted loss, and weights and mean losses by group, of the last step."""
        values: dict[str, Any] = {name: self.last_values[name].tolist() for name in GROUP_SERIES}
        return values | {"loss_ranking": self.last_values["row_losses"].mean().item()}

    def record(self, run: Training) -> dict[str, Any]:
        """Return for each cluster its number of queries, mean and last weight, and mean loss.

        The mean is over the steps in which the cluster occurred; in the others its logged loss is 0.
        """
        weights, losses, sizes = (np.array(run.observed[name]) for name in GROUP_SERIES)
        steps_present = np.maximum(1, (sizes > 0).sum(0))
        rows = zip(
            np.bincount(self.groups.cpu().numpy(), minlength=len(self.weights)).tolist(),
            weights.mean(0).tolist(),
            weights[-1].tolist(),
            (losses.sum(0) / steps_present).tolist(),
            strict=True,
        )
        names = ("queries", "mean_weight", "last_weight", "mean_loss")
        return {"clusters": [dict(zip(names, row, strict=True)) for row in rows]}


class Idro(Grouped):
    """iDRO as a method: groups whose gradients help the other groups get larger weights (Yu et al. 2022,
    section 3.3).
    """

    name = "idro"
    help = "by what learning a group does for the others"
    on = "method"
    by_clusters = True
    own_settings = IdroSettings
    source = "Yu et al. 2022 (COCO-DR), iDRO"

    def __init__(
        self,
        objective: EncodedApart,
        groups: Numbers,
        count: int,
        rule: IdroRule | None = None,
        *,
        layers: Layers = None,
        used: str = "",
    ) -> None:
        """Take the group of every query; gradients are compared in `layers`.

        The default of `used` is "former" for the released rule and "new" for the paper's.
        """
        self.rule = rule or IdroRule()
        used = used or ("former" if self.rule.variant == "code" else "new")
        super().__init__(objective, groups, self.rule.start(count), used)
        self.gradients = GroupGradients(objective, layers)

    @classmethod
    def create(cls, objective: EncodedApart, settings: Any, seed: int, target: TargetTexts | None) -> Idro:
        """Return the method in the released variant, or in that of the paper."""
        groups = cls.clusters(objective, settings.clusters, seed)
        return cls(objective, groups, settings.clusters, IdroRule(variant=settings.variant or "code"))

    def weigh(self, losses: Tensor, groups: Tensor, means: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Update the weights by the rule; return them and the weighted mean loss of the groups."""
        products = self.gradients.products(losses, groups, means, sizes)
        weights = self.rule.step(self.weights, means, sizes, products)
        return weights, self.rule.loss(means, weights if self.used == "new" else self.weights)

    def finish(self) -> None:
        """Remove the hooks from the layers."""
        for hook in self.gradients.hooks:
            hook.remove()


class GroupGradients:
    """Computes inner products between the gradients of groups' mean losses, over the weights of some layers.

    If a query's loss depends on its own texts only, one backward pass gives the gradients of all groups: the
    gradient of a linear layer's output, times its input, summed over a group's texts. Else each group takes a
    backward pass.
    """

    def __init__(self, objective: EncodedApart, layers: Layers) -> None:
        """Find the trained weights of the layers and register hooks on their modules."""
        self.processes = objective.processes
        count = int(objective.module.config.num_hidden_layers)
        if layers == "all":
            items = objective.weights.items()
            self.weights = [weight for name, weight in items if not name.startswith("head")]
        else:
            numbers = range(count - max(1, count // 4), count) if layers is None else layers
            matches = ((LAYER.search(name), weight) for name, weight in objective.weights.items())
            self.weights = [weight for place, weight in matches if place and int(place[1]) in numbers]
        ids = {id(weight) for weight in self.weights}
        modules = objective.module.modules()
        owners = [
            owner for owner in modules if any(id(weight) in ids for weight in owner.parameters(recurse=False))
        ]
        self.at_once = objective.rows_apart and all(
            isinstance(owner, torch.nn.Linear | torch.nn.LayerNorm)
            and all(weight.requires_grad for weight in owner.parameters(recurse=False))
            for owner in owners
        )
        self.calls: list[tuple[torch.nn.Module, Tensor, Tensor]] = []
        watched = owners if self.at_once else []
        self.hooks = [owner.register_forward_hook(self.keep) for owner in watched]

    def keep(self, module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Forward hook: store a module's input and output."""
        if torch.is_grad_enabled():
            self.calls.append((module, inputs[0].detach(), output))

    def products(self, losses: Tensor, groups: Tensor, means: Tensor, sizes: Tensor) -> Tensor:
        """Return the inner products `(k, k)` of the gradients of mean losses `(k,)`; 0 for absent groups."""
        present = sizes.nonzero().flatten()
        products = losses.new_zeros(len(present), len(present))
        if not self.at_once:
            rows = []
            for mean in means[present]:
                parts = torch.autograd.grad(
                    mean, self.weights, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                rows.append(torch.cat([part.flatten() for part in parts]))
            gradients = torch.stack(rows)
            self.processes.add_up([gradients])
            products = gradients @ gradients.T
        else:
            shares = losses / sizes[groups]  # each query's share of its group's mean
            calls, self.calls = self.calls, []
            deltas = torch.autograd.grad(shares.sum(), [output for _, _, output in calls], retain_graph=True)
            own_groups = groups.view(self.processes.count, -1)[self.processes.rank]
            by_module: dict[torch.nn.Module, list[tuple[Tensor, Tensor]]] = {}
            for (module, inputs, _), delta in zip(calls, deltas, strict=True):
                by_module.setdefault(module, []).append((inputs.float(), delta.float()))
            for module, uses in by_module.items():
                for gradients in group_gradients(module, uses, own_groups, present):
                    self.processes.add_up([gradients])
                    products += gradients @ gradients.T
        all_products = products.new_zeros(len(sizes), len(sizes))
        all_products[present.unsqueeze(1), present] = products
        return all_products


def group_gradients(
    module: Any, uses: Sequence[tuple[Tensor, Tensor]], groups: Tensor, present: Tensor
) -> Iterator[Tensor]:
    """Yield for each weight of a module its gradients by group, `(groups present, values)`.

    A use is the module's input and the gradient of its output; both begin with the axis of texts, some texts
    for each of the queries, whose groups are `(n,)`.
    """
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []
    for group in present:
        weights, biases = [], []
        for states, gradients in uses:
            rows = (groups == group).repeat_interleave(len(states) // len(groups)).nonzero().flatten()
            inputs, delta = (values[rows].flatten(0, -2) for values in (states, gradients))
            if isinstance(module, torch.nn.LayerNorm):
                normal = functional.layer_norm(inputs, module.normalized_shape, eps=module.eps)
                weights.append((delta * normal).sum(0))
            else:
                weights.append((delta.T @ inputs).flatten())
            biases.append(delta.sum(0))
        matrices.append(torch.stack(weights).sum(0))
        vectors.append(torch.stack(biases).sum(0))
    yield torch.stack(matrices)
    if module.bias is not None:
        yield torch.stack(vectors)
