"""BM25 as Lucene writes it down, to say where scores come from: with document lengths exact, or in one byte.

Source: Lucene's BM25Similarity; the byte is read in `hybridr.similarity`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridr.evaluation.bm25 import idf
from hybridr.tuning.bm25_scores import byte_length


class Formula:
    """Ranks documents given as term -> frequency; `in_bytes` reads their lengths as Lucene does.

    Documents without terms do not count, as in an index.
    """

    def __init__(
        self, documents: Sequence[Mapping[str, int]], k1: float, b: float, *, in_bytes: bool
    ) -> None:
        lengths = [sum(terms.values()) for terms in documents]
        self.count = sum(length > 0 for length in lengths)
        read = np.array([byte_length(length) if in_bytes else length for length in lengths], dtype=np.float64)
        self.damped = k1 * (1 - b + b * read / (sum(lengths) / self.count))  # (documents,)
        self.found: dict[str, tuple[list[int], list[int]]] = {}
        for place, terms in enumerate(documents):
            for term, frequency in terms.items():
                places, frequencies = self.found.setdefault(term, ([], []))
                places.append(place)
                frequencies.append(frequency)

    def scores(self, query: Mapping[str, int]) -> np.ndarray:
        """Score every document, `(documents,)`."""
        result = np.zeros(len(self.damped))
        for term, times in query.items():
            places, frequencies = (np.array(one) for one in self.found.get(term, ([], [])))
            if len(places):
                weight = times * idf(len(places), self.count)
                result[places] += weight * frequencies / (frequencies + self.damped[places])
        return result
