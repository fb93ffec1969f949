"""Re-rankers: what looks at a query and its best hits once more, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...records import Hit
from ...settings import NoSettings, Stage

FAMILY = "search.rerankers"


class Behind(NamedTuple):
    """The index that a re-ranker stands behind."""

    cluster: Cluster
    info: IndexInfo


class Listed(NamedTuple):
    """A query and its best hits; `contents` are whole texts by document id, where they are needed."""

    query: str
    hits: Sequence[Hit]
    contents: Mapping[str, str]


class Reranker(Protocol):
    """Orders the best hits of a search anew; `[search] rerank` or `Search.reranked(NAME)` puts it behind one.

    A member subclasses this: `name`, `help`, `rescored`, maybe `obstacle`, and `own_settings`, which
    `[search] rerank_settings` fills. Made once a search. Where it
    `needs_texts`, it gets what documents hold, as the encoder reads them: `Hit.text` is a marked fragment.
    """

    name: ClassVar[str]
    help: ClassVar[str] = ""
    needs_texts: ClassVar[bool] = False
    own_settings: ClassVar[type[Stage]] = NoSettings

    def __init__(self, behind: Behind, own: Any) -> None:
        """Take what is needed of an index for which there is no `obstacle`, and the member's own settings."""

    @staticmethod
    def obstacle(behind: Behind) -> str | None:
        """Say why hits of this search cannot be ordered so; None where they can."""
        return None

    def rescored(self, lists: Sequence[Listed]) -> list[list[Hit]]:
        """Give the same hits of each query with new scores, best first, and `rank` from 1."""
