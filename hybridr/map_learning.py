"""Fits the matrix of a query map: dense scores shall rank candidates as a teacher does. Numpy only.

Loss: KL(teacher || dense), both softmaxes over a query's candidates, plus a ridge that keeps the change
small. Its gradient is written out below; Adam (Kingma and Ba 2015, algorithm 1) does the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from .encoder import Vectors
from .progress import Progress, silent
from .query_map import lengths, with_lengths
from .settings import MapSettings

SPREAD = 0.12
"""Standard deviation of MiniLM's cosines over a query's candidates (on three collections). Scores of other
encoders are brought to it, so that one weight and one temperature do for all."""
REPORTED = 20  # steps


@dataclass(frozen=True)
class Examples:
    """Queries `(n, dim)`, rows of `vectors` `(m, dim)` for each `(n, c)`, and the teacher's share of each.

    `shares` `(n, c)` sum to 1; a row that only fills up has `there` False and share 0.
    """

    queries: Vectors
    vectors: Vectors
    rows: NDArray[np.int64]
    there: NDArray[np.bool_]
    shares: Vectors


def learn_matrix(examples: Examples, settings: MapSettings, progress: Progress = silent) -> Vectors:
    """Fit D `(dim, dim)`, float32; the same one each time for the same seed."""
    dim = examples.queries.shape[1]
    matrix, first, second = (np.zeros((dim, dim), dtype=np.float32) for _ in range(3))
    for step, batch in enumerate(batches(len(examples.queries), settings), 1):
        gradient = slope(examples, batch, matrix, settings.temperature) + settings.ridge * matrix
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient * gradient - second)
        unbiased = first / (1 - 0.9**step), second / (1 - 0.999**step)
        matrix -= settings.learning_rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        if step % REPORTED == 0 or step == settings.steps:
            progress("fit", step, settings.steps)
    return matrix


def batches(count: int, settings: MapSettings) -> Iterator[NDArray[np.int64]]:
    """Yield positions of queries for every step, each query once before any comes again."""
    random = default_rng([settings.seed, 7])
    waiting = np.array([], dtype=np.int64)
    size = min(settings.batch_size, count)
    for _ in range(settings.steps):
        if len(waiting) < size:
            waiting = random.permutation(count)
        yield waiting[:size]
        waiting = waiting[size:]


def slope(examples: Examples, batch: NDArray[np.int64], matrix: Vectors, temperature: float) -> Vectors:
    """Give the gradient of the mean divergence of a batch by the matrix, `(dim, dim)`."""
    queries = examples.queries[batch]
    candidates = examples.vectors[examples.rows[batch]]  # (batch, c, dim)
    changed = queries + queries @ matrix
    size, length = lengths(changed), lengths(queries)
    size = np.where(size > 0, size, 1.0)
    direction = changed / size
    mapped = direction * length
    found = softmax(np.einsum("bcd,bd->bc", candidates, mapped) / temperature, examples.there[batch])
    by_score = (found - examples.shares[batch]) / temperature
    by_mapped = np.einsum("bcd,bc->bd", candidates, by_score)
    along = np.sum(direction * by_mapped, axis=1, keepdims=True)  # the length is fixed: no slope along it
    by_changed = (by_mapped - direction * along) * (length / size)
    return np.asarray(queries.T @ by_changed / len(batch), dtype=np.float32)


def divergence(examples: Examples, matrix: Vectors, temperature: float) -> float:
    """Give the mean KL(teacher || dense) over all queries, in nats."""
    total = 0.0
    for start in range(0, len(examples.queries), 100):
        part = slice(start, start + 100)
        queries = examples.queries[part]
        mapped = with_lengths(queries + queries @ matrix, lengths(queries))
        scores = np.einsum("bcd,bd->bc", examples.vectors[examples.rows[part]], mapped)
        found, wanted = softmax(scores / temperature, examples.there[part]), examples.shares[part]
        ratio = np.where(wanted > 0, wanted / np.maximum(found, 1e-30), 1.0)
        total += float(np.sum(wanted * np.log(ratio)))
    return total / max(1, len(examples.queries))


def softmax(scores: Vectors, there: NDArray[np.bool_]) -> Vectors:
    """Give shares `(n, c)` that sum to 1 over those that are there."""
    raised = np.where(there, scores, -np.inf)
    powers = np.exp(raised - raised.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


def spread(scores: Vectors, there: NDArray[np.bool_]) -> float:
    """Give the mean over queries of the standard deviation of their candidates' scores `(n, c)`."""
    found = [float(row[kept].std()) for row, kept in zip(scores, there, strict=True) if kept.sum() > 1]
    return float(np.mean(found)) if found else 0.0
