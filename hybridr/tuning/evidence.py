"""What both legs say about judged queries, asked once each, so that every variant can be scored here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..cluster.reading import documents_by_id
from ..progress import Progress, silent
from ..records import Query
from ..search.feedback import FEEDBACK_DOCUMENTS, TermFeedback, frequencies
from ..search.fusions import Legs
from ..search.search import Search
from ..vocabulary.terms import PLAIN_SCORES, text_vectors
from .bm25_scores import Postings, Row, Similarity, Weights, postings, rows_of, similarity_of
from .map_fitting import read_vectors

DEPTH = 100
AT_ONCE, DOCUMENTS_AT_ONCE = 32, 250
T = TypeVar("T")


class Asked(NamedTuple):
    """A judged query with what both legs say about its candidates, and the weight of its terms.

    `words` and `expanded` are the terms of the query, and of the one that RM3 makes of it, in the candidates,
    which the index scores by `similarity`; `cosines` are those between the candidates, `(n, n)`, 0 where one
    has no vector. `usual` are the signals that a search takes up by itself, of those in `legs`.
    """

    query: Query
    legs: Legs
    idf_sum: float
    words: Postings | None = None
    expanded: Postings | None = None
    cosines: NDArray[np.float32] | None = None
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
    for batch in parts(queries, AT_ONCE):
        texts = [query.text for query in batch]
        found = zip(batch, search.legs(texts), search.idf_sums(texts), strict=True)
        asked += [Asked(*one, usual=search.signals.usual) for one in found]
        progress("ask", len(asked), len(queries))
    return asked


def with_words(
    search: Search, asked: Sequence[Asked], progress: Progress = silent, *, expand: bool = False
) -> list[Asked]:
    """Look up how often the terms of each query stand in its candidates; with `expand` RM3's terms too."""
    terms = TermFeedback(search.cluster, search.info, search.lexical_fields)
    routing = routing_of(search, asked)
    plain = list(query_weights(search, asked))
    found = [one._replace(similarity=similarity_of(search.info)) for one in asked]
    words = occurrences(terms, asked, plain, routing, progress)
    found = [one._replace(words=each) for one, each in zip(found, words, strict=True)]
    if not expand:
        return found
    wider = [more or own for more, own in zip(expansions(terms, asked, routing), plain, strict=True)]
    words = occurrences(terms, asked, wider, routing, progress)
    return [one._replace(expanded=each) for one, each in zip(found, words, strict=True)]


def occurrences(
    terms: TermFeedback,
    asked: Sequence[Asked],
    weights: Sequence[Weights],
    routing: Mapping[str, str | None],
    progress: Progress,
) -> list[Postings]:
    """Find weighed terms in the candidates of each query; every document is asked for once."""
    rows: list[list[Row]] = [[] for _ in asked]
    places = placed(asked)
    for number, batch in enumerate(parts(list(routing), DOCUMENTS_AT_ONCE)):
        progress("terms", number * DOCUMENTS_AT_ONCE, len(routing))
        for doc_id, document in terms.document_vectors({one: routing[one] for one in batch}).items():
            for which, place in places[doc_id]:
                rows[which] += rows_of(place, weights[which], document)
    progress("terms", len(routing), len(routing))
    old = terms.cluster.version < PLAIN_SCORES
    return [postings(one, old=old) for one in rows]


def query_weights(search: Search, asked: Sequence[Asked]) -> Iterator[Weights]:
    """Give how often each term stands in each query, by field."""
    for batch in parts(asked, AT_ONCE):
        texts = [one.query.text for one in batch]
        for vectors in text_vectors(search.cluster, search.info, search.lexical_fields, texts):
            yield {field: frequencies(vectors, field) for field in search.lexical_fields}


def expansions(
    terms: TermFeedback, asked: Sequence[Asked], routing: Mapping[str, str | None]
) -> Iterator[Weights]:
    """Give what RM3 makes of each query by the best documents of its lexical leg; empty for nothing."""
    for batch in parts(asked, AT_ONCE):
        best = [dict(list(one.legs.listed[0].items())[:FEEDBACK_DOCUMENTS]) for one in batch]
        needed = {doc_id: routing.get(doc_id) for doc_id in chain.from_iterable(best)}
        for weights in terms.weights([one.query.text for one in batch], best, needed):
            yield weights if any(weights.values()) else {}


def routing_of(search: Search, asked: Sequence[Asked]) -> dict[str, str | None]:
    """Look up the routing of every candidate, without which the server would not find its terms."""
    found: dict[str, str | None] = {}
    for batch in parts(sorted(placed(asked)), DOCUMENTS_AT_ONCE):
        there = documents_by_id(search.cluster, search.info, batch, whole=False)
        found |= {doc_id: document.routing for doc_id, document in there.items()}
    return found


def with_cosines(search: Search, asked: Sequence[Asked], progress: Progress = silent) -> list[Asked]:
    """Compare the vectors of each query's candidates."""
    assert search.encoder is not None
    rows = read_vectors(search, sorted(placed(asked)), search.encoder, progress)
    return [one._replace(cosines=cosines_of(one.candidates, rows.vectors, rows.of)) for one in asked]


def cosines_of(
    candidates: Sequence[str], vectors: NDArray[np.float32], of: Mapping[str, slice]
) -> NDArray[np.float32]:
    """Give the cosines between documents `(n, n)` from vectors of length 1."""
    chosen = np.zeros((len(candidates), vectors.shape[1]), dtype=np.float32)
    for place, doc_id in enumerate(candidates):
        if doc_id in of:
            chosen[place] = vectors[of[doc_id]][0]
    return chosen @ chosen.T


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
