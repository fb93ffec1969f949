"""Pseudo-relevance feedback: the best documents of a first search lend their words or vectors to a second.

RM3 as in Anserini (Rm3Reranker; Jaleel et al. 2004): raw BM25 scores weigh the documents, each document
gives its most frequent terms, and the query keeps `original_weight` of the total.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEEDBACK_DOCUMENTS = 10
FEEDBACK_TERMS = 10
ORIGINAL_WEIGHT = 0.5
MAX_DOCUMENT_SHARE = 0.1
TERM_LENGTHS = range(2, 21)
WORD = re.compile(r"[a-z0-9]+")
LEAST_NORM = 0.001
ROCCHIO_DOCUMENTS, ROCCHIO_WEIGHT = 3, 0.25  # measured for vectors: design notes, findings.md


class FeedbackDocument(NamedTuple):
    """One document of the first search: term -> frequency, and its retrieval score."""

    terms: Mapping[str, int]
    score: float


def rm3(
    query: Sequence[str],
    documents: Sequence[FeedbackDocument],
    document_frequencies: Mapping[str, int],
    collection_size: int,
    *,
    terms: int = FEEDBACK_TERMS,
    original_weight: float = ORIGINAL_WEIGHT,
    words_only: bool = True,
) -> dict[str, float]:
    """Weigh the terms of the second query; the weights sum to 1.

    `query` are analysed terms, repeated ones count twice. `words_only` drops terms that are not `[a-z0-9]+`
    (switch it off for languages of other scripts). Ties are broken by the alphabet.
    """
    relevance: dict[str, float] = {}
    for document in documents:
        kept = most_frequent(document.terms, document_frequencies, collection_size, terms, words_only)
        norm = sum(kept.values())
        if norm > LEAST_NORM:
            for term, frequency in kept.items():
                relevance[term] = relevance.get(term, 0.0) + frequency / norm * document.score
    original = scaled({term: float(query.count(term)) for term in query})
    model = scaled(strongest(relevance, terms))
    if not model:
        return original
    return {
        term: original_weight * original.get(term, 0.0) + (1 - original_weight) * model.get(term, 0.0)
        for term in [*original, *(term for term in model if term not in original)]
    }


def most_frequent(
    frequencies: Mapping[str, int],
    document_frequencies: Mapping[str, int],
    collection_size: int,
    count: int,
    words_only: bool,
) -> dict[str, float]:
    """Keep a document's most frequent terms that are words and not too common."""
    fit = {
        term: float(frequency)
        for term, frequency in frequencies.items()
        if len(term) in TERM_LENGTHS
        and document_frequencies.get(term, 0) <= MAX_DOCUMENT_SHARE * collection_size
        and (not words_only or WORD.fullmatch(term))
    }
    return strongest(fit, count)


def strongest(weights: Mapping[str, float], count: int) -> dict[str, float]:
    """Keep the `count` largest weights."""
    ordered = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:count])


def scaled(weights: Mapping[str, float]) -> dict[str, float]:
    """Divide by the sum of the weights."""
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total else {}


def rocchio(
    query: NDArray[np.float32], documents: Sequence[Sequence[float]], weight: float = ROCCHIO_WEIGHT
) -> NDArray[np.float32]:
    """Move a query vector `(dim,)` toward the mean direction of documents; its length stays (Rocchio 1971).

    Only relevant documents count, as usual without judgements. Without documents the query stays.
    """
    if not len(documents):
        return query
    vectors = np.asarray(documents, dtype=np.float32)
    center = (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)).mean(axis=0)
    length = float(np.linalg.norm(query))
    moved = query / max(length, 1e-12) + weight * center
    result: NDArray[np.float32] = (moved * (length / max(float(np.linalg.norm(moved)), 1e-12))).astype(
        np.float32
    )
    return result
