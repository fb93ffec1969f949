"""What both legs say about judged queries, asked once each, so that every variant can be scored here.

BM25 of the candidates is recomputed from their term vectors, for what other k1 and b would make of them.
Source: Lucene's BM25Similarity and SmallFloat. A length of 24 and more keeps, less 24, its four leading bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..cluster.fields import mapping_of
from ..cluster.reading import documents_by_id
from ..cluster.record import IndexInfo
from ..cluster.similarities import BM25, PLAIN_SCORES, Similarity, similarity_of
from ..evaluation.bm25 import idf
from ..progress import Progress, silent
from ..records import Query
from ..search.feedback import TermFeedback, frequencies
from ..search.fusions import Legs
from ..search.search import Search
from ..vocabulary.terms import text_vectors

EXACT_LENGTHS = 24
KEPT_BITS = 4
TermWeights: TypeAlias = Mapping[str, Mapping[str, float]]
"""Field -> term -> what it counts in a query."""

PostingRow: TypeAlias = tuple[float, float, float, float]


class Bm25Variant(NamedTuple):
    """A k1 and b, and how far they are from the index's own, at least 0."""

    similarity: Similarity
    distance: float

    @property
    def is_default(self) -> bool:
        """Tell whether the index has them already."""
        return self.distance == 0

    @property
    def settings(self) -> dict[str, Any]:
        """Give them by name."""
        return self.similarity._asdict()

    def __str__(self) -> str:
        """Name them for people."""
        return str(self.similarity)


def similarity_obstacle(info: IndexInfo, fields: Iterable[str]) -> str | None:
    """Say why the index's k1 and b do not decide the scores of these fields; None where they do."""
    if similarity_of(info) is None:
        kind = info.settings["index.similarity.default.type"]
        return f"the index ranks by '{kind}', not by {BM25}"
    for field in fields:
        if named := mapping_of(info, field).get("similarity"):
            return f"the field '{field}' has a similarity of its own, '{named}'"
    return None


class Postings(NamedTuple):
    """The terms of one query in its candidates, a row for each that occurs: which candidate, what the term
    counts there (times idf), how often it occurs, and the field's length in shares of the mean.

    `old` scores have the factor k1 + 1, which BM25 had before OpenSearch 3.
    """

    places: NDArray[np.int64]
    gains: NDArray[np.float64]
    frequencies: NDArray[np.float64]
    lengths: NDArray[np.float64]
    old: bool = False

    def scores(self, similarity: Similarity, candidates: int) -> NDArray[np.float64]:
        """Score the candidates, `(candidates,)`; 0 where no term occurs."""
        k1, b = similarity
        damped = self.frequencies + k1 * (1 - b + b * self.lengths)
        factor = k1 + 1 if self.old else 1.0
        result: NDArray[np.float64] = np.zeros(candidates)
        np.add.at(result, self.places, factor * self.gains * self.frequencies / damped)
        return result


def rows_of(place: int, weights: TermWeights, document: Mapping[str, Any]) -> list[PostingRow]:
    """Give the rows of `Postings` for one candidate, whose term vectors hold its shard's statistics."""
    rows: list[PostingRow] = []
    for field, wanted in weights.items():
        held = document.get(field, {}).get("terms", {})
        if not (found := [term for term in wanted if term in held]):
            continue
        statistics = document[field]["field_statistics"]
        count, mean = statistics["doc_count"], statistics["sum_ttf"] / statistics["doc_count"]
        length = byte_length(sum(term["term_freq"] for term in held.values())) / mean
        for term in found:
            gain = wanted[term] * idf(held[term]["doc_freq"], count)
            rows.append((place, gain, held[term]["term_freq"], length))
    return rows


def postings(rows: Iterable[PostingRow], *, old: bool = False) -> Postings:
    """Put rows together."""
    table = np.array(list(rows), dtype=np.float64).reshape(-1, 4)
    return Postings(table[:, 0].astype(np.int64), table[:, 1], table[:, 2], table[:, 3], old)


def byte_length(length: int) -> int:
    """Give the length that Lucene reads back from the one byte of a document's norm."""
    if length < EXACT_LENGTHS:
        return length
    rest = length - EXACT_LENGTHS
    lost = max(0, rest.bit_length() - KEPT_BITS)
    return EXACT_LENGTHS + (rest >> lost << lost)


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
    weights, similarity = list(query_weights(search, asked)), similarity_of(search.info) or Similarity()
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
