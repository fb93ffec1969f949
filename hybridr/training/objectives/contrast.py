"""Contrastive loss: tell a query's relevant document from all other documents of the batch."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..batches import Batch
from ..rankers import Colbert
from .labelled import EncodedApart, max_sim

MASKED = 10_000.0  # is subtracted from the score of a false negative


class Contrastive(EncodedApart):
    """Cross-entropy over the documents of the global batch (Zhan et al. 2022).

    The candidates of every query are the positives of all processes, then their hard negatives; other
    documents that are labelled relevant are masked.
    """

    name = "contrast"
    help = "with negatives"
    on = "labels"

    def query_losses(self, batch: Batch, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return the cross-entropy of each query, `(n,)`."""
        relevant = self.batches.examples.positives
        numbers = batch.queries.tolist()
        masked = find_false_negatives(
            numbers,
            [*batch.positives.tolist(), *batch.negatives.ravel().tolist()],
            {number: set(relevant[number].tolist()) for number in numbers},
        ).to(queries.device)
        documents = torch.cat([positives, negatives])
        scores = max_sim(queries, documents) if isinstance(self.module, Colbert) else queries @ documents.T
        return contrastive_rows(scores, masked, 1 / self.inv_temperature)


def contrastive_rows(scores: Tensor, false_negatives: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the losses `(n,)` of each query's positive against the whole batch.

    `scores` are `(n, n + m)`: of the n positives in the order of the queries, then of m negatives;
    `false_negatives`, of the same shape, is true for other relevant documents. It is the cross-entropy of
    `scores / temperature`. DDR (Zhan et al. 2022; temperature 1 for English with "ip", 1/20 for Chinese with
    "cosine").
    """
    scores = scores * (1 / temperature) - MASKED * false_negatives.to(scores.dtype)
    targets = torch.arange(len(scores), device=scores.device)
    return functional.cross_entropy(scores, targets, reduction="none")


def find_false_negatives(
    query_ids: Sequence[Hashable],
    doc_ids: Sequence[Hashable],
    relevant: Mapping[Hashable, Collection[Hashable]],
) -> Tensor:
    """Return a mask `(n, n + m)` of documents that are relevant to a query, except for its own positive.

    `doc_ids` are those of the n positives, then of the m negatives.
    """
    marks = [
        [row != column and doc in relevant.get(query, ()) for column, doc in enumerate(doc_ids)]
        for row, query in enumerate(query_ids)
    ]
    return torch.tensor(marks, dtype=torch.bool)
