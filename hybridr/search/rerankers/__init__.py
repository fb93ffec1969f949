"""Re-rankers: what looks at a query and its best hits once more, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class Listed(NamedTuple):
    """A query and its best hits; `contents` are whole texts by document id, where they are needed."""

    query: str
    hits: Sequence[Hit]
    contents: Mapping[str, str]


class Reranker(Protocol):
    """Orders the best hits of a search anew; `[search] rerank` or `Search.reranked(NAME)` puts it behind one.

    A member subclasses this: `name`, `help`, `rescored`, maybe `obstacle`. Made once a search. Where it
    `needs_texts`, it gets what documents hold, as the encoder reads them: `Hit.text` is a marked fragment.
    """

    name: ClassVar[str]
    help: ClassVar[str] = ""
    needs_texts: ClassVar[bool] = False

    def __init__(self, behind: Behind) -> None:
        """Take what is needed of a search for which there is no `obstacle`."""

    @staticmethod
    def obstacle(behind: Behind) -> str | None:
        """Say why hits of this search cannot be ordered so; None where they can."""
        return None

    def rescored(self, lists: Sequence[Listed]) -> list[list[Hit]]:
        """Give the same hits of each query with new scores, best first, and `rank` from 1."""
