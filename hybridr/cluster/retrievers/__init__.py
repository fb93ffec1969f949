"""Retrievers: the queries that find candidate documents (by words, vectors, token weights), one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

from ..record import Record

FAMILY = "cluster.retrievers"


class Retriever(Protocol):
    """One way to find documents of an index; a search in the mode of its name uses it alone.

    `reads` says what `query` takes: the text, the encoder's vector `(dim,)`, or the output of the
    representation with the retriever's name. Scores are the engine's own, best first. `part` is the name
    that people see for the retriever's share of a score. `unseen` is the score of a document without a value.
    A retriever `of_words` scores the words of a query. Signals share its weight, feedback expands it, and a
    client's own query replaces it.
    """

    name: ClassVar[str]
    help: ClassVar[str] = ""
    reads: ClassVar[Literal["text", "vector", "representation"]]
    part: ClassVar[str]
    of_words: ClassVar[bool] = False
    unseen: ClassVar[float] = 0.0

    @classmethod
    def obstacle(cls, record: Record) -> str | None:
        """Return why an index with this record cannot be searched by this retriever; None if it can."""
        return None

    @classmethod
    def unscaled(cls, record: Record) -> str | None:
        """Return why this retriever's scores cannot be added to those of others; None if they can."""
        return None

    @classmethod
    def of(cls, record: Record, fields: Sequence[str]) -> Retriever:
        """Return the retriever for an index with this record, whose text fields `fields` are searched."""

    def query(
        self,
        query: Any,
        k: int,
        *,
        filter: dict[str, Any] | None = None,
        explain: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        """Return the OpenSearch query for the best `k` documents that match `filter`.

        With `explain` the query carries the retriever's name, so that hits report its score. `boost`
        multiplies the scores.
        """

    def scoring_query(self, query: Any, doc_ids: Sequence[str]) -> dict[str, Any]:
        """Return the query that scores exactly these documents with their true scores.

        Documents without a score are not found: by default those that do not match the query.
        """
        return among(doc_ids, self.query(query, len(doc_ids)))

    def scoring_clause(self, query: Any, weight: float = 1.0, *, explain: bool = False) -> dict[str, Any]:
        """Return the query clause that gives documents this retriever's true score times a weight.

        By default a document that does not match the query gets no score.
        """
        return self.query(query, 0, explain=explain, boost=None if weight == 1 else weight)

    def among(self, doc_ids: Sequence[str]) -> Retriever:
        """Return a retriever that scores only these documents and needs no script."""
        return self

    def spread_of(self, query: Any) -> float | None:
        """Return the standard deviation of scores for a query; None means that of the encoder's cosines."""
        return None

    @classmethod
    def scale(cls, idf_sum: float, spread: float) -> float:
        """Return the factor that brings this retriever's scores to the scale of (1 + cosine).

        `idf_sum` is the sum of the idf of the query's terms. `spread` is the factor that equalises how widely
        scores spread.
        """


def among(doc_ids: Sequence[str], query: dict[str, Any]) -> dict[str, Any]:
    """Return a query limited to these documents; scores stay."""
    return {"bool": {"must": [query], "filter": [{"ids": {"values": list(doc_ids)}}]}}
