"""Sparse encoders of random weights, of the golden rankers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support import golden_ddr

QUERIES = ["the river and the sea", "a bank of the river", "stone by stone", "over the long night"]


def exported(ranker: str = "splade") -> Path:
    return golden_ddr.exported(ranker)


def dense_rows(rows: list[dict[str, float]], tokens: list[str]) -> np.ndarray:
    """Give weights by token as an array `(n, vocabulary)`."""
    return np.array([[row.get(token, 0.0) for token in tokens] for row in rows], dtype=np.float32)
