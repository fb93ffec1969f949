"""OpenSearch's own dialect: nothing is translated."""

from __future__ import annotations

from . import Dialect, Version


class Native(Dialect):
    """What OpenSearch is told, and says."""

    name = "plain"
    product = "OpenSearch"
    most_dimensions = 16_000
    has_parts = True
    plain_scores = (3, 0, 0)

    def __init__(self, version: Version = (0, 0, 0)) -> None:
        """Translate for no version in particular."""
