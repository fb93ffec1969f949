"""The losses of DDR, COCO-DR, MoDIR and BERM, as pure functions of tensors."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from .errors import MissingExtra

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "train", "training a model") from missing

MASKED = 10_000.0  # what is taken off the score of a false negative


def contrastive(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor | None = None,
    *,
    false_negatives: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Tell each query's positive from all other documents of the batch; a scalar.

    `queries` and `positives` are `(n, dim)`, row i of one belonging to row i of the other, `negatives`
    `(m, dim)`; `false_negatives` `(n, n + m)` is true where a document is relevant too. Mean cross-entropy
    of `(Q [P; N]^T) / temperature`. DDR (Zhan et al. 2022; temperature 1 for English with "ip",
    1/20 for Chinese with "cosine").
    """
    documents = positives if negatives is None else torch.cat([positives, negatives])
    return contrastive_scores(queries @ documents.T, false_negatives=false_negatives, temperature=temperature)


def contrastive_scores(
    scores: Tensor, *, false_negatives: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """Give `contrastive` of scores `(n, n + m)` that are no products, such as those of `max_sim`."""
    scores = scores * (1 / temperature)
    if false_negatives is not None:
        scores = scores - MASKED * false_negatives.to(scores.dtype)
    return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def in_batch(
    queries: Tensor, positives: Tensor, *, false_negatives: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """Tell each query's positive from the other queries' positives: `contrastive` without hard negatives."""
    return contrastive(queries, positives, false_negatives=false_negatives, temperature=temperature)


def find_false_negatives(
    query_ids: Sequence[Hashable],
    doc_ids: Sequence[Hashable],
    relevant: Mapping[Hashable, Collection[Hashable]],
) -> Tensor:
    """Mark the documents that are relevant to a query without being its own positive; bool `(n, n + m)`.

    `doc_ids` are those of the n positives, then of the m negatives. DDR.
    """
    marks = [
        [row != column and doc in relevant.get(query, ()) for column, doc in enumerate(doc_ids)]
        for row, query in enumerate(query_ids)
    ]
    return torch.tensor(marks, dtype=torch.bool)


def margin_mse(scores: Tensor, teacher: Tensor) -> Tensor:
    """Match a teacher's score differences; a scalar.

    Both are `(n, 1 + k)`: the positive, then k negatives. Mean over n and k of the squared difference of the
    margins. Margin-MSE (Hofstätter et al. 2020); DDR divides its scores by the temperature before.
    """
    margins, wanted = (found[:, :1] - found[:, 1:] for found in (scores, teacher))
    return functional.mse_loss(margins, wanted)


def flops(*vectors: Tensor) -> Tensor:
    """Penalise dense term weights; a scalar.

    Each argument is `(n, vocabulary)`; they count as one batch. Sum over words of the squared mean absolute
    weight. Paria et al. 2020, as SPLADE uses it (Formal et al. 2021, equation 4).
    """
    return (torch.cat(vectors).abs().mean(0) ** 2).sum()


def max_sim(queries: Tensor, documents: Tensor) -> Tensor:
    """Score every query against every document, token by token; `(n, m)`.

    Queries are `(n, tokens, dim)`, documents `(m, tokens, dim)`, zero where there is no token. Sum over the
    query's tokens of the largest product with a document's. ColBERT (Khattab and Zaharia 2020, equation 3).
    """
    return torch.einsum("qid,pjd->qpij", queries, documents).amax(3).sum(2)


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


def domain_logits(classifier: Tensor, vectors: Tensor, bound: float = 5.0) -> Tensor:
    """Ask a linear classifier `(2, dim)` for the domain of vectors `(n, dim)`; `(n, 2)`, cut to +-`bound`.

    Column 0 is the source domain, column 1 the target. MoDIR (Xin et al. 2022).
    """
    return (vectors @ classifier.T).clamp(-bound, bound)


def domain_loss(logits: Tensor, domain: int) -> Tensor:
    """Give the cross-entropy of logits `(n, 2)` with one domain, 0 or 1; a scalar. MoDIR.

    On detached vectors it trains the classifier; on the target's with domain 0 it is the "GAN" loss.
    """
    return functional.cross_entropy(logits, torch.full((len(logits),), domain, device=logits.device))


def confusion(logits: Tensor) -> Tensor:
    """Ask the encoder that neither domain fits better; a scalar, log 2 at least. MoDIR's default."""
    return (domain_loss(logits, 0) + domain_loss(logits, 1)) / 2


def minimax(source: Tensor, target: Tensor) -> Tensor:
    """Ask the encoder that the classifier errs: minus its loss on the logits of both domains. MoDIR."""
    return -(domain_loss(source, 0) + domain_loss(target, 1))


def pairwise(queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Tell each query's positive from its one negative; all `(n, dim)`, a scalar. ANCE, COCO-DR and BERM."""
    scores = torch.stack([(queries * positives).sum(1), (queries * negatives).sum(1)], dim=1)
    return functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.long))


def balance(text: Tensor, units: Tensor, *, per_unit: bool = False) -> Tensor:
    """Ask that a passage's vector `(dim,)` is equally near to its units `(k, dim)`; a scalar.

    KL divergence of the softmax of their products from the uniform distribution; `per_unit` divides it by k
    once more, as the released code does. BERM (Xu et al. 2023), its balance loss.
    """
    wanted = torch.full_like(units[:, 0], 1 / len(units))
    divergence = functional.kl_div(functional.log_softmax(units @ text, dim=0), wanted, reduction="sum")
    return divergence / len(units) if per_unit else divergence


def extract(query: Tensor, text: Tensor, units: Tensor, essential: int, *, twice: bool = False) -> Tensor:
    """Ask that query and passage `(dim,)` together point to the essential one of the units `(k, dim)`.

    Cross-entropy of the products of the units with GELU(query * text); `twice` takes the softmax twice, as
    the released code does. BERM, its extract loss.
    """
    scores = units @ functional.gelu(query * text)
    if twice:
        scores = functional.softmax(scores, dim=0)
    return functional.cross_entropy(scores, torch.tensor(essential, device=scores.device))


def period_units(states: Tensor, ids: Tensor, period: int, *, keep_rest: bool = True) -> Tensor:
    """Average a passage's token states between periods; `(k, dim)`.

    States `(tokens, dim)` and ids `(tokens,)` begin with [CLS]; padding must be off when the rest is kept.
    What follows the last period is a unit too, without the closing token, unless `keep_rest` is false as in
    the released code. BERM.
    """
    ends = (ids == period).nonzero().flatten().tolist()
    if keep_rest and (not ends or ends[-1] < len(ids) - 2):
        ends.append(len(ids) - 1)
    starts = [1, *(end + 1 for end in ends[:-1])]
    return torch.stack(
        [states[start : max(end, start + 1)].mean(0) for start, end in zip(starts, ends, strict=True)]
    )


@dataclass(frozen=True)
class Berm:
    """BERM's loss over a batch; `as_coded` is the released form with its faults, for comparison."""

    alpha: float = 0.1
    """Weight of `balance`."""
    beta: float = 1.0
    """Weight of `extract`."""
    as_coded: bool = False
    """Skips the last passage, divides by one more than it read, and takes two softmaxes."""

    def loss(
        self,
        queries: Tensor,
        positives: Tensor,
        negatives: Tensor,
        units: Sequence[Tensor],
        essential: Sequence[int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the total, and of it `balance` and `extract` unweighted; scalars.

        Vectors are `(n, dim)`; `units` has `(k, dim)` for each positive, `essential` the number of the unit
        with the largest score.
        """
        read = len(queries) - 1 if self.as_coded else len(queries)
        rows = list(zip(queries, positives, units, essential, strict=True))[:read]
        divisor = read + 1 if self.as_coded else read
        balances = [balance(text, found, per_unit=self.as_coded) for _, text, found, _ in rows]
        extracts = [
            extract(query, text, found, number, twice=self.as_coded) for query, text, found, number in rows
        ]
        balanced, extracted = sum_of(balances) / divisor, sum_of(extracts) / divisor
        ranking = pairwise(queries, positives, negatives)
        return ranking + self.alpha * balanced + self.beta * extracted, balanced, extracted


def sum_of(losses: Sequence[Tensor]) -> Tensor:
    """Add scalars; 0 of none."""
    return torch.stack(list(losses)).sum() if losses else torch.zeros(())
