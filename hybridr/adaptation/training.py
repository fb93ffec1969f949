"""Span contrast as an objective of the training loop, and its loss on documents that are not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.random import default_rng

from ..encoder import padded
from ..retriever import Retriever
from ..settings import SpanSettings
from ..training import Processes, Recipe
from .low_rank import low_rank_weights
from .spans import SpanCorpus, span_loss

WARM_UP = 0.1  # share of the steps in which the learning rate rises; it falls to 0 afterwards


class SpanContrast:
    """Two spans of one document attract each other; a low-rank change of the retriever is trained."""

    dropout = False  # nothing is random but the batches
    shared_loss = True

    def __init__(
        self, retriever: Retriever, corpus: SpanCorpus, settings: SpanSettings, processes: Processes
    ) -> None:
        self.module = retriever
        self.weights: Mapping[str, torch.nn.Parameter] = low_rank_weights(retriever)
        self.corpus = corpus
        self.settings = settings
        self.processes = processes
        self.share = max(1, min(settings.batch_size, len(corpus)) // processes.count)  # documents

    def parts(self, step: int) -> Sequence[list[list[int]]]:
        """Give this process's span rows `(2 share, tokens)`; each epoch visits every document once."""
        size = self.share * self.processes.count
        epoch, part = divmod(step - 1, max(1, len(self.corpus) // size))
        order = default_rng([self.settings.seed, 0, epoch]).permutation(len(self.corpus))
        chosen = order[part * size : (part + 1) * size][self.processes.rank :: self.processes.count].tolist()
        return [self.corpus.pairs(chosen, self.settings.span_tokens, self._random(step))]

    def _random(self, step: int) -> np.random.Generator:
        alone = self.processes.count == 1
        return default_rng([self.settings.seed, 1, step, *(() if alone else (self.processes.rank,))])

    def loss(self, part: list[list[int]]) -> torch.Tensor:
        """Give the loss over the spans of all processes."""
        ids, mask = (torch.from_numpy(array).to(self.processes.device) for array in padded(part))
        vectors = self.module(ids, mask)[1].float()
        return span_loss(self.processes.gathered(vectors), self.settings.temperature)


def recipe_of(settings: SpanSettings) -> Recipe:
    """Give the schedule of span contrast: a rise over the first tenth of the steps, then a fall to 0."""
    return Recipe(
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        warm_up=max(1, round(WARM_UP * settings.steps)),
        decay=True,
        checkpoint_every=settings.checkpoint_every,
    )


def contrast(retriever: Retriever, corpus: SpanCorpus, settings: SpanSettings) -> float | None:
    """Measure the loss on fixed spans of documents that are not trained on; None with fewer than 2."""
    size = min(settings.batch_size, len(corpus))
    if size < 2:
        return None
    random = default_rng([settings.seed, 3])
    losses = []
    with torch.inference_mode():
        for start in range(0, len(corpus) - size + 1, size):
            rows = corpus.pairs(range(start, start + size), settings.span_tokens, random)
            ids, mask = (torch.from_numpy(array).to(retriever.device) for array in padded(rows))
            losses.append(span_loss(retriever(ids, mask)[1], settings.temperature).item())
    return float(np.mean(losses))
