"""OpenSearch's own dialect: nothing is translated."""

from __future__ import annotations

from . import Dialect, Version

PLAIN_SCORES: Version = (3, 0, 0)  # before, BM25 has Lucene's old factor k1 + 1


class Native(Dialect):
    """What OpenSearch is told, and says."""

    name = "plain"
    product = "OpenSearch"
    most_dimensions = 16_000
    has_parts = True

    def __init__(self, version: Version = (0, 0, 0)) -> None:
        """Translate for no version in particular."""

    def has_old_scores(self, level: Version) -> bool:
        """Tell whether it is older than OpenSearch 3."""
        return level < PLAIN_SCORES
