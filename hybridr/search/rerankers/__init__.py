"""Re-rankers: what looks at a query and its best hits once more, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...records import Hit
from ..settings import SearchSettings

FAMILY = "search.rerankers"


class Behind(NamedTuple):
    """The search that a re-ranker stands behind: its index and how it ranks."""

    cluster: Cluster
    info: IndexInfo
    settings: SearchSettings


class Reranker(Protocol):
    """Orders the best hits of a search anew; `[search] rerank` or `Search.reranked(NAME)` puts it behind one.

    A member subclasses this: `name`, `help`, `rescore`, maybe `obstacle`. Made once a search.
    """

    name: ClassVar[str]
    help: ClassVar[str] = ""

    def __init__(self, behind: Behind) -> None:
        """Take what is needed of a search for which there is no `obstacle`."""

    @staticmethod
    def obstacle(behind: Behind) -> str | None:
        """Say why hits of this search cannot be ordered so; None where they can."""
        return None

    def rescore(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """Give the same hits with new scores, best first, and `rank` from 1; `text` is what was found."""
