"""The choice of a variant from few judged queries: a pull toward the default, and an honest estimate.

Without the pull ten queries lose on average; with it they gain (measured: benchmarks/README.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

PULL = 5.0
FOLDS, REPEATS, SEED = 10, 5, 13
Values: TypeAlias = NDArray[np.float64]
"""A measure, `(queries, variants)`."""


def choose(values: Values, distances: Values) -> int:
    """Give the variant with the best mean less `PULL` / n times its distance `(variants,)`."""
    return int(np.argmax(values.mean(axis=0) - PULL / len(values) * distances))


def held_out_gains(values: Values, distances: Values, default: int) -> Values:
    """Estimate what choosing gains over the default on queries that had no part in the choice, `(queries,)`.

    Nested cross-validation: each fold is judged by the choice of the others, five times over, averaged.
    """
    random = np.random.default_rng(SEED)
    gains = np.zeros(len(values))
    for _ in range(REPEATS):
        for fold in folds(len(values), random):
            kept = np.setdiff1d(np.arange(len(values)), fold)
            chosen = choose(values[kept], distances)
            gains[fold] += values[fold, chosen] - values[fold, default]
    return gains / REPEATS


def folds(count: int, random: np.random.Generator) -> Sequence[NDArray[np.int64]]:
    """Split the positions of `count` queries at random into at most ten folds."""
    return np.array_split(random.permutation(count), min(FOLDS, count))
