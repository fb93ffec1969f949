"""What all legs say about judged queries, asked once each, so that every variant can be scored here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..records import Progress, Query, silent
from ..search.fusions import CandidateLists
from ..search.search import Search

DEPTH = 100
QUERIES_AT_ONCE = 32


class Asked(NamedTuple):
    """A judged query with what all legs say about its candidates, and the weight of its terms.

    `usual` are the signals that a search takes up by itself, of those in `legs`.
    """

    query: Query
    legs: CandidateLists
    idf_sum: float
    usual: tuple[str, ...] = ()

    @property
    def candidates(self) -> list[str]:
        """List the documents that any leg found."""
        return self.legs.documents


def ask(search: Search, queries: Sequence[Query], progress: Progress = silent) -> list[Asked]:
    """Retrieve once with each leg for every query, and complete the scores of the candidates."""
    answers: list[Asked] = []
    progress("ask", 0, len(queries))
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        batch = queries[start : start + QUERIES_AT_ONCE]
        texts = [query.text for query in batch]
        triples = zip(batch, search.legs(texts), search.idf_sums(texts), strict=True)
        answers += [Asked(*answer, usual=search.signals.usual) for answer in triples]
        progress("ask", len(answers), len(queries))
    return answers
