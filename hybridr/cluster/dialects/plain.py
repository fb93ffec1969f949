"""OpenSearch's own dialect: nothing is translated."""

from __future__ import annotations

from typing import Any

from ..versions import Version
from . import Dialect, Sent

PLAIN_SCORES: Version = (3, 0, 0)  # before, BM25 has Lucene's old factor k1 + 1


class Native(Dialect):
    """What OpenSearch is told, and says."""

    name = "plain"
    product = "OpenSearch"
    most_dimensions = 16_000
    has_parts = True

    def __init__(self, version: Version = (0, 0, 0)) -> None:
        """Translate for no version in particular."""

    def level(self, found: Version) -> Version:
        """Give the version itself."""
        return found

    def has_old_scores(self, level: Version) -> bool:
        """Tell whether it is older than OpenSearch 3."""
        return level < PLAIN_SCORES

    def lacks(self, what: str) -> str | None:
        """Say nothing: whoever asks for a thing knows what it needs."""
        return None

    def sent(self, request: Sent) -> Sent:
        """Give it as it is."""
        return request

    def answered(self, request: Sent, answer: Any) -> Any:
        """Give it as it is."""
        return answer
