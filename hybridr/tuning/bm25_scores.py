"""BM25 of single documents, recomputed from their term vectors: what other k1 and b would make of them.

Source: Lucene's BM25Similarity and SmallFloat. A length of 24 and more keeps, less 24, its four leading bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..cluster.fields import mapping_of
from ..cluster.record import IndexInfo
from ..evaluation.bm25 import idf

EXACT_LENGTHS = 24
KEPT_BITS = 4
KEY = "index.similarity.default"
TermWeights: TypeAlias = Mapping[str, Mapping[str, float]]
"""Field -> term -> what it counts in a query."""

PostingRow: TypeAlias = tuple[float, float, float, float]


class Similarity(NamedTuple):
    """The two numbers of BM25; OpenSearch's own unless told otherwise."""

    k1: float = 1.2
    b: float = 0.75

    def __str__(self) -> str:
        """Name them for people."""
        return f"k1 {self.k1:g}, b {self.b:g}"


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


def similarity_of(info: IndexInfo) -> Similarity:
    """Read k1 and b of an index's default similarity."""
    given = {name: info.settings.get(f"{KEY}.{name}") for name in Similarity._fields}
    return Similarity(**{name: float(value) for name, value in given.items() if value is not None})


def similarity_obstacle(info: IndexInfo, fields: Iterable[str]) -> str | None:
    """Say why the index's k1 and b do not decide the scores of these fields; None where they do."""
    kind = info.settings.get(f"{KEY}.type", "BM25")
    if kind != "BM25":
        return f"the index ranks by '{kind}', not by BM25"
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
