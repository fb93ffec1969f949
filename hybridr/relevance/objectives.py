"""What a REM is trained to do: tell relevant documents from others, or score as a teacher does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .. import losses
from ..assembly.rankers import Dense
from ..training import Processes
from .examples import Batch, Batches, Numbers, Rows


class Ranking:
    """What both objectives share: a dense ranker, its trained weights and the batches."""

    def __init__(
        self,
        ranker: Dense,
        weights: Mapping[str, torch.nn.Parameter],
        batches: Batches,
        processes: Processes,
        *,
        inv_temperature: float = 1.0,
        dropout: bool = True,
    ) -> None:
        """Take what scores are multiplied by, and whether the (frozen) backbone's dropout is active."""
        self.module = ranker
        self.weights = weights
        self.batches = batches
        self.processes = processes
        self.inv_temperature = inv_temperature
        self.dropout = dropout

    def parts(self, step: int) -> Sequence[Batch]:
        """Give the batch of all processes, of which each encodes its share."""
        return [self.batches(step)]

    def own(self, batch: Batch) -> Batch:
        """Give this process's share."""
        return batch.share(self.processes.rank, self.processes.count)

    def encode(self, rows: Rows, numbers: Numbers) -> torch.Tensor:
        """Encode rows in one call, padded to their own longest; fp32 `(n, dim)`."""
        ids, mask = self.module.tokens.batch([rows[int(number)].tolist() for number in numbers])
        where = self.processes.device
        kept = torch.from_numpy(mask).to(where)
        states = self.module.states(torch.from_numpy(ids).to(where), kept)
        return self.module.pool(states.float(), kept)  # a mean in bf16 would lose digits

    def encoded(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Encode queries, positives and negatives apart; the last are `(n * k, dim)`."""
        examples = self.batches.examples
        queries = self.encode(examples.queries, batch.queries)
        positives = self.encode(examples.documents, batch.positives)
        if not batch.negatives.size:
            return queries, positives, positives[:0]
        return queries, positives, self.encode(examples.documents, batch.negatives.ravel())


class Contrastive(Ranking):
    """Cross-entropy over the documents of the global batch (Zhan et al. 2022, methods.md A.8).

    The candidates of every query are the positives of all processes, then their hard negatives; documents
    that are labelled relevant too are masked.
    """

    shared_loss = True

    def loss(self, part: Batch) -> torch.Tensor:
        """Give the loss over the batch of all processes; the gradient flows through the own share."""
        queries, positives, negatives = (self.processes.gathered(v) for v in self.encoded(self.own(part)))
        with torch.autocast(queries.device.type, enabled=False):
            return losses.contrastive(
                queries, positives, negatives,
                false_negatives=self.false_negatives(part).to(queries.device),
                temperature=1 / self.inv_temperature,
            )  # fmt: skip

    def false_negatives(self, batch: Batch) -> torch.Tensor:
        """Mark what is relevant to a query without being its own positive; bool `(n, n + n * k)`."""
        positives = self.batches.examples.positives
        numbers = batch.queries.tolist()
        relevant = {number: set(positives[number].tolist()) for number in numbers}
        documents = [*batch.positives.tolist(), *batch.negatives.ravel().tolist()]
        return losses.find_false_negatives(numbers, documents, relevant)


class MarginMse(Ranking):
    """Squared difference of the margins to a teacher's (Hofstätter et al. 2020; methods.md A.8)."""

    shared_loss = False

    def loss(self, part: Batch) -> torch.Tensor:
        """Give this process's share of the mean over the batch of all processes."""
        own = self.own(part)
        queries, positives, negatives = self.encoded(own)
        documents = torch.cat([positives.unsqueeze(1), negatives.view(*own.negatives.shape, -1)], dim=1)
        with torch.autocast(queries.device.type, enabled=False):
            scores = self.inv_temperature * torch.einsum("nd,nkd->nk", queries, documents)
            return losses.margin_mse(scores, torch.as_tensor(own.teacher).to(scores)) / self.processes.count
