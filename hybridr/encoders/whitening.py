"""Partial whitening of query vectors: directions in which an index's documents vary most count less.

In an encoder's vectors, much of the difference between documents lies in a few directions (subject, length,
style), and all documents share one mean direction. Both say little about which
document answers a query. Only queries are changed, so that documents keep their vectors.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .contract import Vectors, unit_length

LEVEL = 8
"""Rank of the direction to whose strength stronger ones are reduced."""
SHARE_OF_MEAN = 0.25
"""Share of the documents' mean vector that is subtracted from a query's vector."""


class Whitening(NamedTuple):
    """Correction of query vectors: subtracts `mean` `(dim,)`, then the projections on `rows` `(n, dim)`."""

    mean: Vectors
    rows: Vectors

    @classmethod
    def fit(cls, documents: Vectors) -> Whitening | None:
        """Return the correction for an index with these document vectors `(n, dim)`; None if they vary in
        fewer than eight directions.

        It reduces each principal direction that is stronger than the eighth to the strength of the eighth:
        rows = sqrt(1 - spread of the eighth / spread of the direction) * direction.
        """
        vectors = unit_length(documents)
        mean = vectors.mean(axis=0)
        _, spreads, directions = np.linalg.svd(vectors - mean, full_matrices=False)
        if len(spreads) < LEVEL or spreads[LEVEL - 1] < 1e-6 * spreads[0]:
            return None
        shares = spreads[LEVEL - 1] / spreads[: LEVEL - 1]
        rows = np.sqrt(1 - shares)[:, None] * directions[: LEVEL - 1]
        return cls(*(part.astype(np.float32) for part in (SHARE_OF_MEAN * mean, rows)))

    @classmethod
    @lru_cache(16)  # each search reads that of its index
    def from_text(cls, text: str, dim: int) -> Whitening | None:
        """Return the correction that `text` encodes; None if that is invalid or of another dimension."""
        try:
            values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f2")
        except (binascii.Error, ValueError):
            return None
        if not (dim and len(values) >= dim) or len(values) % dim or not np.isfinite(values).all():
            return None
        mean, *rows = values.reshape(-1, dim).astype(np.float32)
        return cls(mean, np.reshape(rows, (-1, dim)))

    @property
    def text(self) -> str:
        """Return the correction as base64 of its numbers in half precision: 2.7 characters per number."""
        return base64.b64encode(np.vstack([self.mean, self.rows]).astype("<f2").tobytes()).decode()

    def apply(self, queries: Vectors) -> Vectors:
        """Return query vectors `(n, dim)` whitened, of length 1."""
        centred: Vectors = unit_length(queries) - self.mean
        shares: Vectors = centred @ self.rows.T  # (n, rows)
        return unit_length(centred - shares @ self.rows)


def whiten(queries: Vectors, whitening: Whitening | None) -> Vectors:
    """Return query vectors corrected by `whitening`; unchanged without one."""
    return whitening.apply(queries) if whitening else queries
