"""The objective of a re-ranker, which reads query and document together: tell a query's positive from its
negatives.
"""

from __future__ import annotations

import numpy as np
import torch

from ...encoders.tokens import pad_rows
from ..batches import Batch
from .labelled import Labelled


class PairChoice(Labelled):
    """A re-ranker's cross-entropy over a query's positive and its k negatives."""

    name = "pairs"
    on = "pairs"
    shared_loss = False

    def loss(self, part: Batch) -> torch.Tensor:
        """Return this process's share of the mean loss over the batch of all processes."""
        share = self.process_share(part)
        documents = np.column_stack([share.positives, share.negatives])
        examples, is_roberta = self.batches.examples, self.module.config.model_type == "roberta"
        rows = []
        for query, numbers in zip(share.queries, documents, strict=True):
            words = examples.queries[int(query)].tolist()
            words += words[-1:] if is_roberta else []  # whose tokenizer puts two separators between texts
            rows += [[*words, *examples.documents[int(number)][1:].tolist()] for number in numbers]
        tokens = self.module.tokens
        segments, _ = pad_rows([tokens.segments(row) for row in rows])
        scores = self.module(*self.tensors(*tokens.batch(rows), segments)).float().view(documents.shape)
        targets = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return torch.nn.functional.cross_entropy(scores, targets) / self.processes.count
