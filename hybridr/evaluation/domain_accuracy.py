"""How well a linear classifier tells two domains apart by their vectors (Xin et al. 2022, MoDIR)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from .adam import Adam

RATE, STEPS, BATCH = 5e-4, 500, 48
TRAINED = 0.7  # share of the vectors that the classifier learns from; it is judged by the others


class DomainAccuracy(NamedTuple):
    """Shares (0..1) of unseen vectors whose domain a classifier finds; 0.5 where it can tell nothing."""

    queries: float
    documents: float


def domain_accuracy(
    source: tuple[NDArray[np.float32], NDArray[np.float32]],
    target: tuple[NDArray[np.float32], NDArray[np.float32]],
    seed: int = 0,
) -> DomainAccuracy:
    """Train a fresh linear classifier on queries and documents of both domains; MoDIR's Global Domain-Acc.

    Each domain gives vectors `(queries, dim)` and `(documents, dim)`; of both, the same number is taken.
    70 % are learnt from in 500 steps of Adam, a batch of queries and one of documents each.
    """
    random = default_rng([seed, 11])
    parts = [split(*pair, random) for pair in zip(source, target, strict=True)]
    weights = random.uniform(-1, 1, (2, source[0].shape[1])) / np.sqrt(source[0].shape[1])
    adam = Adam(weights, RATE)
    for _ in range(STEPS):
        batches = [drawn(vectors, labels, random) for vectors, labels, _, _ in parts]
        adam.step(np.sum([gradient(weights, *batch) for batch in batches], axis=0))
    found = [float(((test @ weights.T).argmax(1) == wanted).mean()) for _, _, test, wanted in parts]
    return DomainAccuracy(*found)


def split(
    source: NDArray[np.float32], target: NDArray[np.float32], random: Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Give vectors and domains to learn from, and to be judged by."""
    count = min(len(source), len(target))
    vectors = np.concatenate([source[:count], target[:count]]).astype(np.float64)
    labels = np.repeat([0, 1], count)
    order = random.permutation(2 * count)
    cut = int(TRAINED * 2 * count)
    return vectors[order[:cut]], labels[order[:cut]], vectors[order[cut:]], labels[order[cut:]]


def drawn(
    vectors: NDArray[np.float64], labels: NDArray[np.int64], random: Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draw a batch."""
    chosen = random.integers(len(vectors), size=BATCH)
    return vectors[chosen], labels[chosen]


def gradient(
    weights: NDArray[np.float64], vectors: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Give the gradient of the mean cross-entropy; `(2, dim)`."""
    scores = vectors @ weights.T
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    found: NDArray[np.float64] = shares.T @ vectors / len(vectors)
    return found
