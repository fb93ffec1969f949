"""Base classes of objectives on labelled queries, and of methods that combine the queries' losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...settings import NoSettings, Stage
from ..batches import Batch, Batches, Limits, Numbers, Rows
from ..loop import Processes
from ..ranker import Ranker
from ..rankers import Colbert, Dense
from ..runs import Training
from ..settings import RemSettings
from . import CarriedState, Recipe, TrainingPrecision

INV_TEMPERATURES = {"ip": 1.0, "cosine": 20.0}
RATES = {False: 2e-5, True: 1e-5}
"""Learning rates of a REM (False) and of all weights (True)."""


@dataclass(frozen=True)
class Passages:
    """Texts that this process encoded in one call: vectors and token states."""

    vectors: Tensor
    """`(n, dim)`, of ColBERT `(n, limit, dim)`"""
    states: Tensor | None
    """The dense ranker's token states `(n, tokens, width)` that the vectors were pooled from."""


@dataclass(frozen=True)
class ComparedBatch:
    """A training step for a method: the batch of all processes, its vectors, and each query's loss."""

    batch: Batch
    losses: Tensor
    """`(n,)`"""
    queries: Tensor
    """Vectors `(n, dim)`, like those of the positives."""
    positives: Tensor
    negatives: Tensor
    """`(n * k, dim)`"""
    passages: Passages
    """The positives of this process's share."""
    extra_vectors: tuple[Tensor, ...]
    """Vectors of the texts that the method encodes besides the batch."""


class Plain(CarriedState):
    """No method: the mean of the queries' losses. Base class of all methods.

    A method is made by `create(objective, settings, seed, target)`, from its own settings and the texts of a
    target domain.
    """

    own_settings: type[Stage] = NoSettings

    @staticmethod
    def kept_vectors(method_settings: Any) -> int:
        """Return the number of vectors per query in a checkpoint, by the settings of the method."""
        return 0

    def extra_vectors(self, step: int) -> tuple[Tensor, ...]:
        """Return vectors that the method needs besides the step's, encoded by all processes together."""
        return ()

    def loss(self, compared: ComparedBatch) -> Tensor:
        """Return the loss of a step."""
        return compared.losses.mean()

    def finish(self) -> None:
        """Remove what the method added to the model (hooks)."""

    def record(self, run: Training) -> dict[str, Any]:
        """Return the manifest's entry about the method in a run."""
        return {}


class Labelled:
    """Base of objectives on labelled queries: a ranker, its trained weights and batches, by `RemSettings`."""

    Settings = RemSettings

    def __init__(
        self,
        ranker: Ranker,
        weights: Mapping[str, torch.nn.Parameter],
        batches: Batches,
        settings: RemSettings,
        precision: TrainingPrecision,
        processes: Processes,
    ) -> None:
        """Take a ranker that contains the REM, and its trained weights by name, in a fixed order."""
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
        """Return the batch of all processes, of which each process encodes its share."""
        return [self.batches(step)]

    def process_share(self, batch: Batch) -> Batch:
        """Return this process's share of a batch."""
        return batch.share(self.processes.rank, self.processes.count)

    def tensors(self, *arrays: Numbers) -> list[Tensor]:
        """Return arrays as tensors on the model's device."""
        return [torch.from_numpy(array).to(self.processes.device) for array in arrays]


class EncodedApart(Labelled):
    """Base of objectives that encode queries and documents separately, by all processes together.

    Every process gets the vectors of all; the gradient flows through its own share. `method` combines the
    queries' losses into one.
    """

    shared_loss = True
    rows_apart = False
    """Whether the loss of a query depends on its own documents only."""
    method = Plain()

    def loss(self, part: Batch) -> Tensor:
        """Return the loss over the batch of all processes."""
        queries, positives, negatives, passages = self.encode_batch(self.process_share(part))
        extra_vectors = self.method.extra_vectors(part.step)
        queries, positives, negatives = (
            self.processes.gathered(vectors) for vectors in (queries, positives, negatives)
        )
        with torch.autocast(queries.device.type, enabled=False):
            losses = self.query_losses(part, queries, positives, negatives)
            batch = ComparedBatch(part, losses, queries, positives, negatives, passages, extra_vectors)
            return self.method.loss(batch) + self.penalty(part.step, queries, positives, negatives)

    def query_losses(self, batch: Batch, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return losses `(n,)` of n queries from their vectors and those of n positives, n * k negatives."""
        raise NotImplementedError

    def own_scores(self, batch: Batch, queries: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return each query's scores with its positive and negatives, `(n, 1 + k)`, over the temperature."""
        negatives = negatives.view(*batch.negatives.shape, *negatives.shape[1:])
        documents = torch.cat([positives.unsqueeze(1), negatives], dim=1)  # (n, 1 + k, ...)
        if isinstance(self.module, Colbert):
            scores = torch.einsum("qid,qkjd->qkij", queries, documents).amax(3).sum(2)
        else:
            scores = torch.einsum("qd,qkd->qk", queries, documents)
        return self.inv_temperature * scores

    def penalty(self, step: int, queries: Tensor, *documents: Tensor) -> Tensor | float:
        """Return SPLADE's penalty on dense vectors, 0 for other rankers; positives and negatives count
        together.

        Its weight grows with the square of the step up to the end of the first epoch.
        """
        if not self.flops:
            return 0.0
        ramp = min(1.0, step / self.batches.per_epoch) ** 2
        return self.flops * ramp * (flops(queries) + flops(*documents))

    def encode_batch(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Passages]:
        """Return a batch's vectors (queries, positives, negatives), and the positives' token states."""
        examples = self.batches.examples
        queries = self.encode(examples.queries, batch.queries, self.limits.query).vectors
        positives = self.encode(examples.documents, batch.positives, self.limits.document)
        if not batch.negatives.size:
            return queries, positives.vectors, positives.vectors[:0], positives
        negatives = self.encode(examples.documents, batch.negatives.ravel(), self.limits.document)
        return queries, positives.vectors, negatives.vectors, positives

    def encode(self, rows: Rows, numbers: Numbers, limit: int) -> Passages:
        """Encode rows of tokens in one call; vectors are fp32, ColBERT's are zero at padding."""
        batch = self.module.tokens.batch([rows[int(number)].tolist() for number in numbers])
        ids, mask = self.tensors(*batch)
        if isinstance(self.module, Dense):
            states = self.module.states(ids, mask)
            return Passages(self.module.vectors(states, mask), states)
        vectors: Tensor = self.module(ids, mask).float()
        if isinstance(self.module, Colbert):  # one length in all processes, which gather vectors
            vectors = torch.nn.functional.pad(vectors, (0, 0, 0, limit - vectors.shape[1]))
        return Passages(vectors, None)


def flops(*vectors: Tensor) -> Tensor:
    """Return SPLADE's FLOPS penalty: the sum over words of the squared mean absolute weight.

    Each argument is `(n, vocabulary)`; together they count as one batch. Paria et al. 2020, as SPLADE uses it
    (Formal et al. 2021, equation 4).
    """
    return (torch.cat(vectors).abs().mean(0) ** 2).sum()


def max_sim(queries: Tensor, documents: Tensor) -> Tensor:
    """Return ColBERT's scores of every query with every document, `(n, m)`.

    Queries are `(n, tokens, dim)`, documents `(m, tokens, dim)`, zero at padding. A score sums the
    largest product of each query token with a document token (Khattab and Zaharia 2020, equation 3).
    """
    return torch.einsum("qid,pjd->qpij", queries, documents).amax(3).sum(2)
