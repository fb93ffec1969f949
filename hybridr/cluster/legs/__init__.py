"""Legs: what finds candidates for a query, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

from ..record import Record

FAMILY = "cluster.legs"


class Leg(Protocol):
    """One way to find documents of an index; a search in the mode of its name takes it alone.

    `reads` says what a query is asked by: its text, or the encoder's vector `(dim,)`. Scores are the engine's
    own, best first.
    """

    name: ClassVar[str]
    reads: ClassVar[Literal["text", "vector"]]

    @classmethod
    def of(cls, record: Record, fields: Sequence[str]) -> Leg:
        """Make the leg of an index by its record and the text fields that are searched."""

    def mapping(self, version: tuple[int, int, int]) -> dict[str, Any]:
        """Map the fields that an index needs for it besides its texts: name -> mapping; may be none."""

    def value(self, encoded: Any, spans: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
        """Give what a document holds in these fields; `spans` are the characters of its passages."""

    def query(
        self,
        asked: Any,
        k: int,
        *,
        filter: dict[str, Any] | None = None,
        shown: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        """Find the best `k` documents among those that match `filter`.

        `shown` names the query after the leg, so that hits tell its score; `boost` multiplies the scores.
        """

    def scores_of(self, asked: Any, doc_ids: Sequence[str]) -> dict[str, Any]:
        """Find exactly these documents, with their true scores; those without any stay away."""
