"""Feedback: a first search tells words for the second (RM3), as `evaluate` compares with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ..cluster.connection import Cluster
from ..cluster.fields import mapped_fields
from ..cluster.limits import result_window
from ..cluster.record import IndexInfo
from ..cluster.retrievers.lexical import lexical_query
from ..indexing.terms.terms import TermVectors, term_vectors, text_vectors
from ..languages import is_plain

LEAST_WEIGHT = 1e-6
FEEDBACK_DOCUMENTS = 10
FEEDBACK_TERMS = 10
ORIGINAL_WEIGHT = 0.5
MAX_DOCUMENT_SHARE = 0.1
TERM_LENGTHS = range(2, 21)
WORD = re.compile(r"[a-z0-9]+")
LEAST_NORM = 0.001


class TermFeedback:
    """Expand queries by the words of their best documents, field by field.

    Document frequencies are those of one shard, as the server's own scores are. Terms that are not
    `[a-z0-9]+` are dropped, as Anserini does, for English, or where no language is known for a field's
    analyser and the query is in Latin script. With the filter Chinese would not be expanded.
    """

    def __init__(self, cluster: Cluster, info: IndexInfo, fields: Sequence[str]) -> None:
        self.cluster, self.info, self.fields = cluster, info, tuple(fields)

    @cached_property
    def analyzers(self) -> dict[str, str]:
        """Name the analyser of every mapped field."""
        return {field.name: field.analyzer for field in mapped_fields(self.info)}

    def queries(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Give the expanded query of each text: weighted terms, not analysed again."""
        size = min(FEEDBACK_DOCUMENTS, result_window(self.info))
        bodies = [
            {"size": size, "_source": False, "query": lexical_query(text, self.fields)} for text in texts
        ]
        answers = [answer["hits"]["hits"] for answer in self.cluster.msearch(self.info, bodies, texts)]
        best = [{hit["_id"]: hit["_score"] for hit in hits} for hits in answers]
        vectors = self.document_vectors({hit["_id"]: hit.get("_routing") for hits in answers for hit in hits})
        query_vectors = text_vectors(self.cluster, self.info, self.fields, texts)
        return [
            self._query(text, self._expanded(text, query, scores, vectors))
            for text, query, scores in zip(texts, query_vectors, best, strict=True)
        ]

    def _expanded(
        self, text: str, query: TermVectors, best: Mapping[str, float], vectors: Mapping[str, TermVectors]
    ) -> dict[str, dict[str, float]]:
        stated = [vectors[doc_id] for doc_id in best]
        expanded = {}
        for field in self.fields:
            weights = rm3(
                list(Counter(frequencies(query, field)).elements()),
                [
                    FeedbackDocument(frequencies(vectors, field), score)
                    for vectors, score in zip(stated, best.values(), strict=True)
                ],
                {
                    term: statistics["doc_freq"]
                    for vectors in stated
                    for term, statistics in terms_in(vectors, field).items()
                },
                max((collection_size(vectors, field) for vectors in stated), default=0),
                words_only=is_plain(self.analyzers.get(field, ""), text),
            )
            expanded[field] = {term: weight for term, weight in weights.items() if weight >= LEAST_WEIGHT}
        return expanded

    def _query(self, text: str, expanded: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        clauses = [
            {"term": {field: {"value": term, "boost": weight}}}
            for field, weights in expanded.items()
            for term, weight in weights.items()
        ]
        if not clauses:
            return lexical_query(text, self.fields)
        return {"bool": {"should": clauses, "minimum_should_match": 1}}

    def document_vectors(self, routing: Mapping[str, str | None]) -> dict[str, TermVectors]:
        """Give the terms of documents, by field, with the statistics of their own shard."""
        requests = [
            {"_id": doc_id, **({"routing": value} if value else {})} for doc_id, value in routing.items()
        ]
        answers = term_vectors(self.cluster, self.info.name, self.fields, requests)
        return {document["_id"]: document.get("term_vectors", {}) for document in answers}


def terms_in(vectors: TermVectors, field: str) -> Mapping[str, Any]:
    """Give a field's terms with their statistics."""
    terms: Mapping[str, Any] = vectors.get(field, {}).get("terms", {})
    return terms


def frequencies(vectors: TermVectors, field: str) -> dict[str, int]:
    """Give term -> frequency in one document."""
    return {term: entry["term_freq"] for term, entry in terms_in(vectors, field).items()}


def collection_size(vectors: TermVectors, field: str) -> int:
    """Count the documents that have the field."""
    return int(vectors.get(field, {}).get("field_statistics", {}).get("doc_count", 0))


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
    words_only: bool = True,
) -> dict[str, float]:
    """Weigh the terms of the second query; the weights sum to 1.

    `query` are analysed terms, repeated ones count twice. `words_only` drops terms that are not `[a-z0-9]+`
    (switch it off for languages of other scripts). Ties are broken by the alphabet.
    """
    relevance: dict[str, float] = {}
    for document in documents:
        terms = most_frequent(document.terms, document_frequencies, collection_size, words_only)
        norm = sum(terms.values())
        if norm > LEAST_NORM:
            for term, frequency in terms.items():
                relevance[term] = relevance.get(term, 0.0) + frequency / norm * document.score
    original = scaled({term: float(query.count(term)) for term in query})
    model = scaled(strongest(relevance))
    if not model:
        return original
    return {
        term: ORIGINAL_WEIGHT * original.get(term, 0.0) + (1 - ORIGINAL_WEIGHT) * model.get(term, 0.0)
        for term in [*original, *(term for term in model if term not in original)]
    }


def most_frequent(
    frequencies: Mapping[str, int],
    document_frequencies: Mapping[str, int],
    collection_size: int,
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
    return strongest(fit)


def strongest(weights: Mapping[str, float]) -> dict[str, float]:
    """Keep the largest weights."""
    ordered = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:FEEDBACK_TERMS])


def scaled(weights: Mapping[str, float]) -> dict[str, float]:
    """Divide by the sum of the weights."""
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total else {}
