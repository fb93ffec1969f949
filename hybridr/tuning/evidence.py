"""What both legs say about judged queries, asked once each, so that every variant can be scored here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ..cluster.reading import documents_by_id
from ..progress import Progress, silent
from ..records import Query
from ..search.feedback import TermFeedback, frequencies
from ..search.fusions import Legs
from ..search.search import Search
from ..vocabulary.terms import PLAIN_SCORES, text_vectors
from .bm25_scores import PostingRow, Postings, Similarity, TermWeights, postings, rows_of, similarity_of

DEPTH = 100
QUERIES_AT_ONCE, DOCUMENTS_AT_ONCE = 32, 250
T = TypeVar("T")


class Asked(NamedTuple):
    """A judged query with what both legs say about its candidates, and the weight of its terms.

    `words` are the terms of the query in the candidates, which the index scores by `similarity`. `usual` are
    the signals that a search takes up by itself, of those in `legs`.
    """

    query: Query
    legs: Legs
    idf_sum: float
    words: Postings | None = None
    similarity: Similarity = Similarity()
    usual: tuple[str, ...] = ()

    @property
    def candidates(self) -> list[str]:
        """List the documents that either leg found."""
        return self.legs.documents


def ask(search: Search, queries: Sequence[Query], progress: Progress = silent) -> list[Asked]:
    """Retrieve once with each leg for every query, and complete the scores of the candidates."""
    asked: list[Asked] = []
    progress("ask", 0, len(queries))
    for batch in parts(queries, QUERIES_AT_ONCE):
        texts = [query.text for query in batch]
        found = zip(batch, search.legs(texts), search.idf_sums(texts), strict=True)
        asked += [Asked(*one, usual=search.signals.usual) for one in found]
        progress("ask", len(asked), len(queries))
    return asked


def with_words(search: Search, asked: Sequence[Asked], progress: Progress = silent) -> list[Asked]:
    """Look up how often the terms of each query stand in its candidates."""
    terms = TermFeedback(search.cluster, search.info, search.lexical_fields)
    weights, similarity = list(query_weights(search, asked)), similarity_of(search.info)
    words = occurrences(terms, asked, weights, routing_of(search, asked), progress)
    return [one._replace(words=each, similarity=similarity) for one, each in zip(asked, words, strict=True)]


def occurrences(
    terms: TermFeedback,
    asked: Sequence[Asked],
    weights: Sequence[TermWeights],
    routing: Mapping[str, str | None],
    progress: Progress,
) -> list[Postings]:
    """Find weighed terms in the candidates of each query; every document is asked for once."""
    rows: list[list[PostingRow]] = [[] for _ in asked]
    places = placed(asked)
    for number, batch in enumerate(parts(list(routing), DOCUMENTS_AT_ONCE)):
        progress("terms", number * DOCUMENTS_AT_ONCE, len(routing))
        for doc_id, document in terms.document_vectors({one: routing[one] for one in batch}).items():
            for which, place in places[doc_id]:
                rows[which] += rows_of(place, weights[which], document)
    progress("terms", len(routing), len(routing))
    old = terms.cluster.version < PLAIN_SCORES
    return [postings(one, old=old) for one in rows]


def query_weights(search: Search, asked: Sequence[Asked]) -> Iterator[TermWeights]:
    """Give how often each term stands in each query, by field."""
    for batch in parts(asked, QUERIES_AT_ONCE):
        texts = [one.query.text for one in batch]
        for vectors in text_vectors(search.cluster, search.info, search.lexical_fields, texts):
            yield {field: frequencies(vectors, field) for field in search.lexical_fields}


def routing_of(search: Search, asked: Sequence[Asked]) -> dict[str, str | None]:
    """Look up the routing of every candidate, without which the server would not find its terms."""
    found: dict[str, str | None] = {}
    for batch in parts(sorted(placed(asked)), DOCUMENTS_AT_ONCE):
        there = documents_by_id(search.cluster, search.info, batch, whole=False)
        found |= {doc_id: document.routing for doc_id, document in there.items()}
    return found


def placed(asked: Sequence[Asked]) -> dict[str, list[tuple[int, int]]]:
    """Give the queries whose candidate a document is, with its place there."""
    found = defaultdict(list)
    for which, one in enumerate(asked):
        for place, doc_id in enumerate(one.candidates):
            found[doc_id].append((which, place))
    return found


def parts(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut a sequence into parts of at most `size`."""
    for start in range(0, len(values), size):
        yield values[start : start + size]
