"""The choice of a variant from few judged queries: a pull toward the default, and an honest estimate.

A weight is judged together with the weights near it, since neighbours differ by chance more than by worth.
Without pull and neighbours a few queries choose noise; what they are worth with both: benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PULL = 5.0
FOLDS, REPEATS, SPLIT_SEED = 10, 5, 13
"""A measure, `(queries, variants)`."""


class Landscape(NamedTuple):
    """How variants lie to each other: distances from the default `(variants,)`, and how much each one's
    neighbours count `(variants, variants)`, rows that sum to 1."""

    distances: NDArray[np.float64]
    nearness: NDArray[np.float64]

    @property
    def default(self) -> int:
        """Give the position of the default."""
        return int(np.argmin(self.distances))


def choose(values: NDArray[np.float64], landscape: Landscape) -> int:
    """Give the variant with the best mean among its neighbours, less `PULL` / n times its distance."""
    smooth = landscape.nearness @ values.mean(axis=0)
    return int(np.argmax(smooth - PULL / len(values) * landscape.distances))


def held_out_gains(values: NDArray[np.float64], landscape: Landscape) -> NDArray[np.float64]:
    """Estimate what choosing gains over the default on queries that had no part in the choice, `(queries,)`.

    Nested cross-validation: each fold is judged by the choice of the others, five times over, averaged.
    """
    random = np.random.default_rng(SPLIT_SEED)
    gains = np.zeros(len(values))
    for _ in range(REPEATS):
        for fold in folds(len(values), random):
            kept = np.setdiff1d(np.arange(len(values)), fold)
            chosen = choose(values[kept], landscape)
            gains[fold] += values[fold, chosen] - values[fold, landscape.default]
    return gains / REPEATS


def folds(count: int, random: np.random.Generator) -> Sequence[NDArray[np.int64]]:
    """Split the positions of `count` queries at random into at most ten folds."""
    return np.array_split(random.permutation(count), min(FOLDS, count))
