"""OpenSearch's own dialect: nothing is translated."""

from __future__ import annotations

from . import Dialect, Version


class Native(Dialect):
    """The dialect of OpenSearch itself: requests and answers stay as they are."""

    name = "plain"
    product = "OpenSearch"
    most_dimensions = 16_000
    has_parts = True
    plain_scores = (3, 0, 0)

    def __init__(self, version: Version = (0, 0, 0)) -> None:
        """Make the dialect, which is the same for all versions."""
