"""Re-rankers: models that look at a query and its best hits once more, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from ...records import Hit

FAMILY = "search.rerankers"


class Reranker(Protocol):
    """Orders the best hits of a search anew; `Search.reranked(NAME)` puts it behind a search."""

    name: ClassVar[str]

    def rescore(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """Give the same hits with new scores, best first, and `rank` from 1; `text` is what was found."""
