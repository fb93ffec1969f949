"""RM3 on a cluster: a first search and the term vectors of its best documents make the second query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from .bodies import lexical_query
from .cluster import Cluster
from .feedback import FEEDBACK_DOCUMENTS, FeedbackDocument, rm3
from .languages import is_plain
from .query_terms import term_vectors, text_vectors
from .text_fields import mapped_fields

LEAST_WEIGHT = 1e-6
Vectors = Mapping[str, Any]


class TermFeedback:
    """Expand queries by the words of their best documents, field by field.

    Document frequencies are those of one shard, as the server's own scores are. `words_only` drops terms
    that are not `[a-z0-9]+`, as Anserini does; None does so for English, or where no language is known for
    a field's analyser and the query is in Latin script. With the filter Chinese would not be expanded.
    """

    def __init__(
        self, cluster: Cluster, index: str, fields: Sequence[str], *, words_only: bool | None = None
    ) -> None:
        self.cluster, self.index, self.fields, self.words_only = cluster, index, tuple(fields), words_only

    @cached_property
    def analyzers(self) -> dict[str, str]:
        """Name the analyser of every mapped field."""
        return {one.name: one.analyzer for one in mapped_fields(self.cluster.index_info(self.index))}

    def queries(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Give the expanded query of each text: weighted terms, not analysed again."""
        bodies = [
            {"size": FEEDBACK_DOCUMENTS, "_source": False, "query": lexical_query(text, self.fields)}
            for text in texts
        ]
        found = [answer["hits"]["hits"] for answer in self.cluster.msearch(self.index, bodies)]
        routing = {hit["_id"]: hit.get("_routing") for hits in found for hit in hits}
        best = [{hit["_id"]: hit["_score"] for hit in hits} for hits in found]
        expanded = self.weights(texts, best, routing)
        return [self._query(text, weights) for text, weights in zip(texts, expanded, strict=True)]

    def weights(
        self,
        texts: Sequence[str],
        best: Sequence[Mapping[str, float]],
        routing: Mapping[str, str | None],
    ) -> list[dict[str, dict[str, float]]]:
        """Weigh the terms of each text's second query, field -> term -> weight.

        `best` are the documents of its first search with their scores; `routing` has all of them.
        """
        vectors = self.document_vectors(routing)
        asked = text_vectors(self.cluster, self.index, self.fields, texts)
        return [
            self._expanded(text, query, scores, vectors)
            for text, query, scores in zip(texts, asked, best, strict=True)
        ]

    def _expanded(
        self, text: str, query: Vectors, best: Mapping[str, float], vectors: Mapping[str, Vectors]
    ) -> dict[str, dict[str, float]]:
        stated = [vectors[doc_id] for doc_id in best]
        expanded = {}
        for field in self.fields:
            weights = rm3(
                list(Counter(frequencies(query, field)).elements()),
                [
                    FeedbackDocument(frequencies(one, field), score)
                    for one, score in zip(stated, best.values(), strict=True)
                ],
                {term: found["doc_freq"] for one in stated for term, found in terms_of(one, field).items()},
                max((collection_size(one, field) for one in stated), default=0),
                words_only=self._filters(field, text),
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

    def _filters(self, field: str, text: str) -> bool:
        if self.words_only is not None:
            return self.words_only
        return is_plain(self.analyzers.get(field, ""), text)

    def document_vectors(self, routing: Mapping[str, str | None]) -> dict[str, Vectors]:
        """Give the terms of documents, by field, with the statistics of their own shard."""
        wanted = [
            {"_id": doc_id, **({"routing": value} if value else {})} for doc_id, value in routing.items()
        ]
        answers = term_vectors(self.cluster, self.index, self.fields, wanted)
        return {found["_id"]: found.get("term_vectors", {}) for found in answers}


def terms_of(vectors: Vectors, field: str) -> Mapping[str, Any]:
    """Give a field's terms with their statistics."""
    terms: Mapping[str, Any] = vectors.get(field, {}).get("terms", {})
    return terms


def frequencies(vectors: Vectors, field: str) -> dict[str, int]:
    """Give term -> frequency in one document."""
    return {term: found["term_freq"] for term, found in terms_of(vectors, field).items()}


def collection_size(vectors: Vectors, field: str) -> int:
    """Count the documents that have the field."""
    return int(vectors.get(field, {}).get("field_statistics", {}).get("doc_count", 0))
