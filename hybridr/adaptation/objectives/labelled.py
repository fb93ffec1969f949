"""What objectives on labelled queries share: a ranker, its trained weights and the batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...assembly.ranker import Ranker
from ...assembly.rankers import Colbert
from ...errors import MissingExtra
from ..batches import Batch, Batches, Limits, Numbers, Rows
from ..loop import Processes

try:
    import torch
    from torch import Tensor
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "train", "training a model") from missing


def flops(*vectors: Tensor) -> Tensor:
    """Penalise dense term weights; a scalar.

    Each argument is `(n, vocabulary)`; they count as one batch. Sum over words of the squared mean absolute
    weight. Paria et al. 2020, as SPLADE uses it (Formal et al. 2021, equation 4).
    """
    return (torch.cat(vectors).abs().mean(0) ** 2).sum()


@dataclass(frozen=True)
class Strength:
    """How scores count; the defaults are those of English dense rankers."""

    inv_temperature: float = 1.0
    """What scores are multiplied by."""
    flops: float = 0.0
    """Weight of the penalty on dense term weights, for queries and for documents; grows with the square of
    the step up to the end of the first epoch (methods.md A.9, SPLADE)."""
    dropout: bool = True
    """Whether the (frozen) backbone's own dropout is active."""


class Objective:
    """What all objectives share: a ranker, its trained weights and the batches."""

    def __init__(
        self,
        ranker: Ranker,
        weights: Mapping[str, torch.nn.Parameter],
        batches: Batches,
        processes: Processes,
        limits: Limits,
        strength: Strength,
    ) -> None:
        self.module: Any = ranker
        self.weights = weights
        self.batches = batches
        self.processes = processes
        self.limits = limits
        self.strength = strength
        self.dropout = strength.dropout

    def parts(self, step: int) -> Sequence[Batch]:
        """Give the batch of all processes, of which each encodes its share."""
        return [self.batches(step)]

    def own(self, batch: Batch) -> Batch:
        """Give this process's share."""
        return batch.share(self.processes.rank, self.processes.count)

    def tensors(self, *arrays: Numbers) -> list[torch.Tensor]:
        """Bring arrays to where the model is."""
        return [torch.from_numpy(array).to(self.processes.device) for array in arrays]


class Comparison(Objective):
    """Queries and documents are encoded apart, by all processes together.

    Every process sees the vectors of all; the gradient flows through its own share.
    """

    shared_loss = True

    def loss(self, part: Batch) -> torch.Tensor:
        """Give the loss over the batch of all processes."""
        queries, positives, negatives = (self.processes.gathered(v) for v in self.encoded(self.own(part)))
        with torch.autocast(queries.device.type, enabled=False):
            found = self.compared(part, queries, positives, negatives)
            return found + self.penalty(part.step, queries, positives, negatives)

    def compared(
        self, batch: Batch, queries: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor
    ) -> torch.Tensor:
        """Give the loss of the vectors of a batch: n queries, n positives and n * k negatives."""
        raise NotImplementedError

    def penalty(self, step: int, queries: torch.Tensor, *documents: torch.Tensor) -> torch.Tensor | float:
        """Give SPLADE's penalty; positives and negatives count together."""
        if not self.strength.flops:
            return 0.0
        ramp = min(1.0, step / self.batches.per_epoch) ** 2
        return self.strength.flops * ramp * (flops(queries) + flops(*documents))

    def encoded(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Encode queries, positives and negatives apart, each padded to its own longest."""
        examples = self.batches.examples
        queries = self.encode(examples.queries, batch.queries, self.limits.query)
        positives = self.encode(examples.documents, batch.positives, self.limits.document)
        if not batch.negatives.size:
            return queries, positives, positives[:0]
        negatives = batch.negatives.ravel()
        return queries, positives, self.encode(examples.documents, negatives, self.limits.document)

    def encode(self, rows: Rows, numbers: Numbers, limit: int) -> torch.Tensor:
        """Encode rows in one call; fp32 `(n, dim)`, for ColBERT `(n, limit, dim)`, zero at padding."""
        ids, mask = self.module.tokens.batch([rows[int(number)].tolist() for number in numbers])
        vectors: torch.Tensor = self.module(*self.tensors(ids, mask)).float()
        if not isinstance(self.module, Colbert):
            return vectors
        # The same length in all processes: they gather.
        return torch.nn.functional.pad(vectors, (0, 0, 0, limit - vectors.shape[1]))


def max_sim(queries: Tensor, documents: Tensor) -> Tensor:
    """Score every query against every document, token by token; `(n, m)`.

    Queries are `(n, tokens, dim)`, documents `(m, tokens, dim)`, zero where there is no token. Sum over the
    query's tokens of the largest product with a document's. ColBERT (Khattab and Zaharia 2020, equation 3).
    """
    return torch.einsum("qid,pjd->qpij", queries, documents).amax(3).sum(2)
