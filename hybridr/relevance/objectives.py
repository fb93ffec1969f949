"""What a REM is trained to do: tell relevant documents from others, or score as a teacher does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..assembly.ranker import Ranker
from ..assembly.rankers import Colbert
from ..encoder import padded
from ..training import Processes
from ..losses import contrastive, contrastive_scores, find_false_negatives, flops, margin_mse, max_sim
from .examples import Batch, Batches, Limits, Numbers, Rows


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


class Contrastive(Comparison):
    """Cross-entropy over the documents of the global batch (Zhan et al. 2022, methods.md A.8).

    The candidates of every query are the positives of all processes, then their hard negatives; documents
    that are labelled relevant too are masked.
    """

    def compared(
        self, batch: Batch, queries: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor
    ) -> torch.Tensor:
        """Give the cross-entropy."""
        masked = self.false_negatives(batch).to(queries.device)
        temperature = 1 / self.strength.inv_temperature
        if isinstance(self.module, Colbert):
            scores = max_sim(queries, torch.cat([positives, negatives]))
            return contrastive_scores(scores, false_negatives=masked, temperature=temperature)
        return contrastive(
            queries, positives, negatives, false_negatives=masked, temperature=temperature
        )

    def false_negatives(self, batch: Batch) -> torch.Tensor:
        """Mark what is relevant to a query without being its own positive; bool `(n, n + n * k)`."""
        positives = self.batches.examples.positives
        numbers = batch.queries.tolist()
        relevant = {number: set(positives[number].tolist()) for number in numbers}
        documents = [*batch.positives.tolist(), *batch.negatives.ravel().tolist()]
        return find_false_negatives(numbers, documents, relevant)


class MarginMse(Comparison):
    """Squared difference of the margins to a teacher's (Hofstätter et al. 2020; methods.md A.8)."""

    def compared(
        self, batch: Batch, queries: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor
    ) -> torch.Tensor:
        """Give the mean over queries and negatives."""
        others = negatives.view(*batch.negatives.shape, *negatives.shape[1:])
        documents = torch.cat([positives.unsqueeze(1), others], dim=1)  # (n, 1 + k, ...)
        if isinstance(self.module, Colbert):
            scores = torch.einsum("qid,qkjd->qkij", queries, documents).amax(3).sum(2)
        else:
            scores = torch.einsum("qd,qkd->qk", queries, documents)
        return margin_mse(
            self.strength.inv_temperature * scores, torch.as_tensor(batch.teacher).to(scores)
        )


class PairChoice(Objective):
    """A re-ranker tells a query's positive from its negatives: cross-entropy over 1 + k (methods.md A.9)."""

    shared_loss = False

    def loss(self, part: Batch) -> torch.Tensor:
        """Give this process's share of the mean over the batch of all processes."""
        own = self.own(part)
        documents = np.column_stack([own.positives, own.negatives])
        examples = self.batches.examples
        rows = [
            self.paired(examples.queries[int(query)].tolist(), examples.documents[int(number)].tolist())
            for query, numbers in zip(own.queries, documents, strict=True)
            for number in numbers
        ]
        tokens = self.module.tokens
        segments, _ = padded([tokens.segments(row) for row in rows])
        scores = self.module(*self.tensors(*tokens.batch(rows), segments)).float().view(documents.shape)
        wanted = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return torch.nn.functional.cross_entropy(scores, wanted) / self.processes.count

    def paired(self, query: list[int], document: list[int]) -> list[int]:
        """Join two texts' tokens as the tokenizer would; RoBERTa puts two separators between them."""
        twice = self.module.config.model_type == "roberta"
        return [*query, *([query[-1]] if twice else []), *document[1:]]
