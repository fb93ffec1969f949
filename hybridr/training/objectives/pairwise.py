"""Pairwise loss: tell a query's relevant document from its own negatives only."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from ..batches import Batch
from .labelled import EncodedApart


class Pairwise(EncodedApart):
    """Cross-entropy over a query's positive and its own k negatives; k is 1 in ANCE, COCO-DR and MoDIR."""

    name = "pairwise"
    help = "with its own negatives only, as COCO-DR and MoDIR"
    on = "labels"
    rows_apart = True

    def query_losses(self, batch: Batch, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return the cross-entropy of each query, `(n,)`."""
        scores = self.own_scores(batch, queries, positives, negatives)
        targets = scores.new_zeros(len(scores)).long()
        return functional.cross_entropy(scores, targets, reduction="none")
