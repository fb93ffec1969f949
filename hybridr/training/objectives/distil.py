"""Distillation: the student learns the score margins of a teacher (Hofstätter et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..batches import Batch
from .labelled import EncodedApart


class MarginMse(EncodedApart):
    """The squared difference of the margins of student and teacher (Hofstätter et al. 2020)."""

    name = "distil"
    help = "from a teacher's scores"
    on = "labels"
    teacher = True
    rows_apart = True

    def query_losses(self, batch: Batch, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return the loss of each query, `(n,)`."""
        scores = self.own_scores(batch, queries, positives, negatives)
        return margin_mse_rows(scores, torch.as_tensor(batch.teacher).to(scores))


def margin_mse_rows(scores: Tensor, teacher: Tensor) -> Tensor:
    """Return for each query the mean squared difference of its score margins from the teacher's, `(n,)`.

    Both inputs are `(n, 1 + k)`: the positive, then k negatives. Margin-MSE (Hofstätter et al. 2020); DDR
    first divides its scores by the temperature.
    """
    margins, expected = (values[:, :1] - values[:, 1:] for values in (scores, teacher))
    return functional.mse_loss(margins, expected, reduction="none").mean(1)
