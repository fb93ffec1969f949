"""Adam in numpy, for what needs no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Adam:
    """Adam (Kingma and Ba 2015) on one array of any floating type, changed in place."""

    def __init__(self, weights: NDArray[Any], rate: float) -> None:
        self.weights, self.rate, self.steps = weights, rate, 0
        self.mean, self.square = np.zeros_like(weights), np.zeros_like(weights)

    def step(self, gradient: NDArray[Any]) -> None:
        """Take one step against the gradient."""
        self.steps += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient * gradient - self.square)
        mean, square = self.mean / (1 - 0.9**self.steps), self.square / (1 - 0.999**self.steps)
        self.weights -= self.rate * mean / (np.sqrt(square) + 1e-8)
