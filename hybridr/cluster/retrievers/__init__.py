"""Retrievers: what finds candidates for a query, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

from ..record import Record

FAMILY = "cluster.retrievers"


class Retriever(Protocol):
    """One way to find documents of an index; a search in the mode of its name takes it alone.

    `reads` says what a query is asked by: its text, the encoder's vector `(dim,)`, or what the representation
    of its name makes of the text. Scores are the engine's own, best first. `part` is what a leg adds to a
    score, for people; `unseen` the score of a document that it has none for. A leg `of_words` scores the
    words of a query: signals share its weight, feedback expands
    it, and a client's own query takes its place.
    """

    name: ClassVar[str]
    help: ClassVar[str] = ""
    reads: ClassVar[Literal["text", "vector", "representation"]]
    part: ClassVar[str]
    of_words: ClassVar[bool] = False
    unseen: ClassVar[float] = 0.0

    @classmethod
    def obstacle(cls, record: Record) -> str | None:
        """Say why an index with this record has no such leg; None where it has."""
        return None

    @classmethod
    def unscaled(cls, record: Record) -> str | None:
        """Say why its scores cannot be added to those of others; None where they can."""
        return None

    @classmethod
    def of(cls, record: Record, fields: Sequence[str]) -> Retriever:
        """Make the leg of an index by its record and the text fields that are searched."""

    def mapping(self, version: tuple[int, int, int]) -> dict[str, Any]:
        """Map the fields that an index needs for it besides its texts: name -> mapping."""
        return {}

    def value(self, encoded: Any, spans: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
        """Give what a document holds in these fields; `spans` are the characters of its passages."""
        return {}

    def query(
        self,
        query: Any,
        k: int,
        *,
        filter: dict[str, Any] | None = None,
        explain: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        """Find the best `k` documents among those that match `filter`.

        `shown` names the query after the leg, so that hits tell its score; `boost` multiplies the scores.
        """

    def scores_of(self, query: Any, doc_ids: Sequence[str]) -> dict[str, Any]:
        """Find exactly these documents, with their true scores; those without any stay away.

        As it stands here: of those, the ones that its query matches.
        """
        return among(doc_ids, self.query(query, len(doc_ids)))

    def true_scores(self, query: Any, weight: float = 1.0, *, explain: bool = False) -> dict[str, Any]:
        """Give whatever documents are scored their true scores, times a weight.

        As it stands here those of its query, whose size says how many: what does not match has no score.
        """
        return self.query(query, 0, explain=explain, boost=None if weight == 1 else weight)

    def among(self, doc_ids: Sequence[str]) -> Retriever:
        """Give the same leg, whose true scores take no script, for none but these documents need to be
        scored."""
        return self

    def spread_of(self, query: Any) -> float | None:
        """Give how the scores of a query spread, where the leg knows; else the encoder's cosines tell."""
        return None

    @classmethod
    def scale(cls, idf_sum: float, spread: float) -> float:
        """Give what brings true scores to the scale of (1 + cosine), by the idf of the query's terms, summed
        up, and the factor of the leg's own spread, else of the encoder's cosines."""


def among(doc_ids: Sequence[str], query: dict[str, Any]) -> dict[str, Any]:
    """Ask about these documents only; the scores stay."""
    return {"bool": {"must": [query], "filter": [{"ids": {"values": list(doc_ids)}}]}}
