"""BERM (Xu et al. 2023): balance and extraction of matching units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import MissingExtra

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "train", "training a model") from missing


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
