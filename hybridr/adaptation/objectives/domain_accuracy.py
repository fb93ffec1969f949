"""How well a linear classifier tells two domains apart by their vectors (Xin et al. 2022, MoDIR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...encoding.contract import Vectors
from ...errors import DataError
from ...evaluation.adam import Adam

Doubles: TypeAlias = NDArray[np.float64]
Marked: TypeAlias = tuple[Doubles, NDArray[np.int64]]

TRAIN_SHARE, STEPS, BATCH, LEARNING_RATE, CLAMP = 0.7, 500, 48, 5e-4, 5.0
LEAST_VECTORS = 10


def domain_accuracy(groups: Sequence[tuple[Vectors, Vectors]], seed: int) -> list[float]:
    """Train one linear classifier of source against target and give its accuracy on unseen pairs, by group.

    A group is (source, target), vectors `(n, dim)` of documents, or of queries. Global Domain-Acc of MoDIR:
    equal numbers, 70/30 split, softmax(W e) without bias, logits clamped to [-5, 5], Adam 5e-4, 500 steps of
    48 of each group. .5 cannot be told apart, 1 fully. Raises DataError for fewer than 10 vectors of a side.
    """
    random = np.random.default_rng(seed)
    splits = [_split(*group, random) for group in groups]
    dim = groups[0][0].shape[1]
    weights = random.uniform(-1, 1, (2, dim)) / np.sqrt(dim)
    optimiser = Adam(weights, LEARNING_RATE)
    for _ in range(STEPS):
        gradient = np.zeros_like(weights)
        for (vectors, labels), _ in splits:
            chosen = random.integers(0, len(labels), BATCH)
            gradient += _gradient(weights, vectors[chosen], labels[chosen])
        optimiser.step(gradient)
    return [float(((vectors @ weights.T).argmax(axis=1) == labels).mean()) for _, (vectors, labels) in splits]


def _split(source: Vectors, target: Vectors, random: np.random.Generator) -> tuple[Marked, Marked]:
    size = min(len(source), len(target))
    if size < LEAST_VECTORS:
        raise DataError(f"needed at least {LEAST_VECTORS} vectors of source and target, found {size}")
    order = random.permutation(size)
    cut = int(TRAIN_SHARE * size)
    return _labelled(source, target, order[:cut]), _labelled(source, target, order[cut:])


def _labelled(source: Vectors, target: Vectors, rows: NDArray[np.int64]) -> Marked:
    vectors = np.concatenate([source[rows], target[rows]]).astype(np.float64)
    return vectors, np.repeat([0, 1], len(rows))


def _gradient(weights: Doubles, vectors: Doubles, labels: NDArray[np.int64]) -> Doubles:
    """Differentiate the mean cross-entropy of the clamped logits."""
    raw = vectors @ weights.T  # (batch, 2)
    logits = np.clip(raw, -CLAMP, CLAMP)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = odds / odds.sum(axis=1, keepdims=True) - np.eye(2)[labels]
    gradient: Doubles = ((error * (np.abs(raw) < CLAMP)).T @ vectors) / len(labels)
    return gradient
