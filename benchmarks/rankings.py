"""Rankings made in this process: of chosen queries and documents, by vectors and BM25; what two differ in."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridr.evaluation.label_free import idf
from hybridr.files.formats import trec_order
from hybridr.records import Document, Qrels, Query, Run

SEED, TOP = 0, 10
EXACT_LENGTHS, KEPT_BITS = 24, 4
SAME = 2e-4
"""Relative: Pyserini rounds scores to four decimals."""
Array = NDArray[np.floating]


def byte_length(length: int) -> int:
    """Give the length that Lucene reads back from the one byte of a document's norm (its SmallFloat).

    One of 24 and more keeps, less 24, its four leading bits.
    """
    if length < EXACT_LENGTHS:
        return length
    rest = length - EXACT_LENGTHS
    lost = max(0, rest.bit_length() - KEPT_BITS)
    return EXACT_LENGTHS + (rest >> lost << lost)


def cut(
    corpus: list[Document], queries: list[Query], qrels: Qrels, *, most: int, documents: int | None
) -> tuple[list[Document], list[Query]]:
    """Keep at most `most` queries, their judged documents, and others up to `documents` in all."""
    draw = random.Random(SEED)
    queries = draw.sample(queries, most) if len(queries) > most else queries
    judged = {document for query in queries for document in qrels[query.query_id]}
    needed = [document for document in corpus if document.doc_id in judged]
    others = [document for document in corpus if document.doc_id not in judged]
    room = len(others) if documents is None else max(0, documents - len(needed))
    return needed + (draw.sample(others, room) if len(others) > room else others), queries


def as_run(found: Iterable[Mapping[str, float]], corpus: Sequence[Document], queries: Sequence[Query]) -> Run:
    """Name queries, and documents that are given by their positions, by their ids."""
    return {
        query.query_id: {corpus[int(position)].doc_id: score for position, score in one.items()}
        for query, one in zip(queries, found, strict=True)
    }


class Formula:
    """Ranks documents given as term -> frequency by Lucene's BM25Similarity, to say where scores come from.

    `in_bytes` reads their lengths as Lucene does; documents without terms do not count, as in an index.
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


def explain(ours: Run, theirs: Run) -> dict[str, Any]:
    """Say what two runs differ in, over documents in both, and query by query.

    `scale` is what ours are times their scores; `typical` and `largest` are the median and the maximum of the
    relative differences left after that. `changed` counts queries with another top ten, `ties` those among
    them where our scores do not tell the documents apart that changed places.
    """
    shared = [
        score / theirs[query][doc]
        for query, run in ours.items()
        for doc, score in run.items()
        if theirs.get(query, {}).get(doc)
    ]
    scale = statistics.median(shared) if shared else 1.0
    left = [abs(ratio / scale - 1) for ratio in shared] or [0.0]
    tops = [(query, top(run), top(theirs.get(query, {}))) for query, run in ours.items()]
    changed = [(ours[query], one, other) for query, one, other in tops if one != other]
    return {
        "scale": scale,
        "typical": statistics.median(left),
        "largest": max(left),
        "changed": len(changed),
        "ties": sum(is_tie(*each) for each in changed),
    }


def top(scores: Mapping[str, float]) -> list[str]:
    """Give the ids of the best ten."""
    return [doc for doc, _ in trec_order(scores)[:TOP]]


def is_tie(scores: Mapping[str, float], one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether place by place both orders hold documents of the same score of ours."""
    return len(one) == len(other) and all(
        abs(scores[mine] - scores.get(yours, 0.0)) <= SAME * scores[mine]
        for mine, yours in zip(one, other, strict=True)
    )


def completed(lexical: Mapping[str, float], dense: Mapping[str, float]) -> dict[str, float]:
    """Fuse true scores over the union of two lists: .4 and .6 of their z-scores, best first.

    Without a lexical score a document has 0, without a dense one the lowest of the list.
    """
    documents = list(dict.fromkeys([*dense, *lexical]))
    lowest = min(dense.values(), default=0.0)
    sides = [[lexical.get(doc, 0.0) for doc in documents], [dense.get(doc, lowest) for doc in documents]]
    left, right = (standardised(np.array(side)) for side in sides)  # (n,) each
    fused = dict(zip(documents, (0.4 * left + 0.6 * right).tolist(), strict=True))
    return dict(sorted(fused.items(), key=lambda one: -one[1]))


def standardised(values: Array) -> Array:
    """Subtract the mean and divide by the deviation; all zero when every value is the same."""
    deviation = values.std() if len(values) else 0.0
    return (values - values.mean()) / deviation if deviation > 0 else np.zeros_like(values)
