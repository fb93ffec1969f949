"""What objectives on labelled queries share: a ranker, its trained weights, the batches and the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...assembly.ranker import Ranker
from ...assembly.rankers import Colbert
from ...errors import MissingExtra
from ..batches import Batch, Batches, Limits, Numbers, Rows
from ..loop import Processes
from ..settings import RemSettings
from . import Precision, Recipe

try:
    import torch
    from torch import Tensor
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "train", "training a model") from missing

INV_TEMPERATURES = {"ip": 1.0, "cosine": 20.0}
RATES = {False: 2e-5, True: 1e-5}
"""Learning rates of a REM, and of all weights."""


class Labelled:
    """A ranker, its trained weights and the batches, as `RemSettings` say."""

    Settings = RemSettings

    def __init__(
        self,
        ranker: Ranker,
        weights: Mapping[str, torch.nn.Parameter],
        batches: Batches,
        settings: RemSettings,
        precision: Precision,
        processes: Processes,
    ) -> None:
        """Take a ranker with the REM in it, and what is trained of it by name, in a fixed order."""
        self.module: Any = ranker
        self.weights = weights
        self.batches = batches
        self.processes = processes
        self.limits = Limits.of(ranker, settings)
        self.dropout = settings.dropout
        self.inv_temperature = settings.inv_temperature or INV_TEMPERATURES[settings.similarity]
        self.flops = settings.flops if ranker.ranker == "splade" else 0.0
        self.recipe = Recipe(
            steps=settings.steps or settings.epochs * batches.per_epoch,
            seed=settings.seed,
            learning_rate=settings.learning_rate or RATES[settings.full],
            precision=precision,
            checkpoint_every=settings.checkpoint_every,
        )

    def parts(self, step: int) -> Sequence[Batch]:
        """Give the batch of all processes, of which each encodes its share."""
        return [self.batches(step)]

    def own(self, batch: Batch) -> Batch:
        """Give this process's share."""
        return batch.share(self.processes.rank, self.processes.count)

    def tensors(self, *arrays: Numbers) -> list[Tensor]:
        """Bring arrays to where the model is."""
        return [torch.from_numpy(array).to(self.processes.device) for array in arrays]


class EncodedApart(Labelled):
    """Queries and documents are encoded apart, by all processes together.

    Every process sees the vectors of all; the gradient flows through its own share.
    """

    shared_loss = True

    def loss(self, part: Batch) -> Tensor:
        """Give the loss over the batch of all processes."""
        queries, positives, negatives = (self.processes.gathered(v) for v in self.encoded(self.own(part)))
        with torch.autocast(queries.device.type, enabled=False):
            found = self.compared(part, queries, positives, negatives)
            return found + self.penalty(part.step, queries, positives, negatives)

    def compared(self, batch: Batch, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        """Give the loss of the vectors of a batch: n queries, n positives and n * k negatives."""
        raise NotImplementedError

    def penalty(self, step: int, queries: Tensor, *documents: Tensor) -> Tensor | float:
        """Give SPLADE's penalty; positives and negatives count together.

        Its weight grows with the square of the step up to the end of the first epoch (methods.md A.9).
        """
        if not self.flops:
            return 0.0
        ramp = min(1.0, step / self.batches.per_epoch) ** 2
        return self.flops * ramp * (flops(queries) + flops(*documents))

    def encoded(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Encode queries, positives and negatives apart, each padded to its own longest."""
        examples = self.batches.examples
        queries = self.encode(examples.queries, batch.queries, self.limits.query)
        positives = self.encode(examples.documents, batch.positives, self.limits.document)
        if not batch.negatives.size:
            return queries, positives, positives[:0]
        negatives = batch.negatives.ravel()
        return queries, positives, self.encode(examples.documents, negatives, self.limits.document)

    def encode(self, rows: Rows, numbers: Numbers, limit: int) -> Tensor:
        """Encode rows in one call; fp32 `(n, dim)`, for ColBERT `(n, limit, dim)`, zero at padding."""
        ids, mask = self.module.tokens.batch([rows[int(number)].tolist() for number in numbers])
        vectors: Tensor = self.module(*self.tensors(ids, mask)).float()
        if not isinstance(self.module, Colbert):
            return vectors
        # The same length in all processes: they gather.
        return torch.nn.functional.pad(vectors, (0, 0, 0, limit - vectors.shape[1]))


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
