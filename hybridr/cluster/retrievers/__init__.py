"""Retrievers: what finds candidates for a query, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

from ..record import Record

FAMILY = "cluster.retrievers"


class Retriever(Protocol):
    """One way to find documents of an index; a search in the mode of its name takes it alone.

    `reads` says what a query is asked by: its text, the encoder's vector `(dim,)`, or what the representation
    of its name makes of the text. Scores are the engine's own, best first. `part` names for people what a
    retriever adds to a score. `unseen` is the score of a document that it does not score. A retriever
    `of_words` scores the words of a query: signals share its weight, feedback expands it, and a client's own
    query takes its place.
    """

    name: ClassVar[str]
    help: ClassVar[str] = ""
    reads: ClassVar[Literal["text", "vector", "representation"]]
    part: ClassVar[str]
    of_words: ClassVar[bool] = False
    unseen: ClassVar[float] = 0.0

    @classmethod
    def obstacle(cls, record: Record) -> str | None:
        """Return why an index with this record cannot be searched by it; None where it can."""
        return None

    @classmethod
    def unscaled(cls, record: Record) -> str | None:
        """Return why its scores cannot be added to those of others; None where they can."""
        return None

    @classmethod
    def of(cls, record: Record, fields: Sequence[str]) -> Retriever:
        """Return the retriever of an index, by its record and the text fields that are searched."""

    def query(
        self,
        query: Any,
        k: int,
        *,
        filter: dict[str, Any] | None = None,
        explain: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        """Return the query for the best `k` documents among those that match `filter`.

        With `explain` it has the retriever's name, so that hits tell its score. `boost` multiplies scores.
        """

    def scores_of(self, query: Any, doc_ids: Sequence[str]) -> dict[str, Any]:
        """Return the query that finds exactly these documents, with their true scores.

        Documents without a score stay away: by default those that its query does not match.
        """
        return among(doc_ids, self.query(query, len(doc_ids)))

    def true_scores(self, query: Any, weight: float = 1.0, *, explain: bool = False) -> dict[str, Any]:
        """Return the clause that scores documents by this retriever's own scores, times a weight.

        By default it is that of `query`: a document that does not match has no score.
        """
        return self.query(query, 0, explain=explain, boost=None if weight == 1 else weight)

    def among(self, doc_ids: Sequence[str]) -> Retriever:
        """Return the same retriever for scoring these documents alone, which takes no script."""
        return self

    def spread_of(self, query: Any) -> float | None:
        """Return how its scores of a query spread; None: as the encoder's cosines do."""
        return None

    @classmethod
    def scale(cls, idf_sum: float, spread: float) -> float:
        """Return what brings true scores to the scale of (1 + cosine).

        `idf_sum` is that of the query's terms; `spread` the factor of the retriever's own spread, else of the
        encoder's cosines.
        """


def among(doc_ids: Sequence[str], query: dict[str, Any]) -> dict[str, Any]:
    """Return the query for these documents only; the scores stay."""
    return {"bool": {"must": [query], "filter": [{"ids": {"values": list(doc_ids)}}]}}
