"""BM25 in this process, for checks of encoders and for benchmarks that need no cluster."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..languages import STOP_WORDS, idf

WORD = re.compile(r"[^\W_]+")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


class Bm25:
    """A BM25 index of `texts` with Lucene's idf, which is never negative (OpenSearch's defaults).

    Scores include the factor `gain`, k1 + 1, which Lucene leaves out since 8.0.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        from rank_bm25 import BM25Okapi  # here, since most who ask for `terms_of` do not need it

        terms = [terms_of(text) or [""] for text in texts]
        index = BM25Okapi(terms, k1=k1, b=b)
        self.idf: dict[str, float] = lucene_idf(terms)
        self._texts = len(terms)
        self._damped = k1 * (1 - b + b * np.asarray(index.doc_len) / index.avgdl)
        self.gain = k1 + 1
        lists: dict[str, tuple[array[int], array[int]]] = {}
        for position, frequencies in enumerate(index.doc_freqs):
            for term, count in frequencies.items():
                places, counts = lists.setdefault(term, (array("i"), array("i")))
                places.append(position)
                counts.append(count)
        self._postings = {
            term: (np.asarray(places), np.asarray(counts)) for term, (places, counts) in lists.items()
        }

    def scores(self, query: str) -> NDArray[np.float64]:
        """Return the BM25 score of every text for a query, `(texts,)`; 0 for texts without any of its
        terms.
        """
        result: NDArray[np.float64] = np.zeros(self._texts)
        for term in terms_of(query):
            if term in self.idf:
                documents, counts = self._postings[term]
                result[documents] += self.idf[term] * (
                    counts * self.gain / (counts + self._damped[documents])
                )
        return result

    def idf_sum(self, query: str) -> float:
        """Return the sum of the idf of a query's different terms."""
        return sum(self.idf.get(term, 0.0) for term in set(terms_of(query)))

    def search(self, query: str, k: int) -> dict[str, float]:
        """Return the `k` best texts for a query: position (as a string) -> score, best first."""
        return best(self.scores(query), k)


def best(scores: NDArray[np.floating], k: int) -> dict[str, float]:
    """Return position (as a string) -> score of the `k` best scores above zero, best first."""
    k = min(k, len(scores))
    rows = np.argpartition(-scores, k - 1)[:k] if k else np.array([], dtype=np.int64)
    ordered = rows[np.lexsort((rows, -scores[rows]))]
    return {str(position): float(scores[position]) for position in ordered if scores[position] > 0}


def lucene_idf(documents: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return term -> idf, ln(1 + (N - n + 0.5) / (n + 0.5)) as in Lucene's BM25Similarity."""
    containing = Counter(term for terms in documents for term in set(terms))
    return {term: idf(n, len(documents)) for term, n in containing.items()}


def terms_of(text: str) -> list[str]:
    """Return the terms of a text: lower-case words without stop words and plural endings; Chinese as
    character pairs.
    """
    words = WORD.findall(text.lower())
    return [term for word in words if word not in STOP_WORDS for term in parts_of(word)]


def parts_of(word: str) -> list[str]:
    """Return the character pairs of a word in an unspaced script (Chinese, Japanese), else the word's
    singular.
    """
    if not UNSPACED.fullmatch(word):
        return [singular(word)]
    return [word[i : i + 2] for i in range(len(word) - 1)] or [word]


def singular(word: str) -> str:
    """Return an English word without its plural ending (the S-stemmer, Harman 1991)."""
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word
