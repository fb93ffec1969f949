"""Pseudo-relevance feedback (RM3): the best documents of a first search expand the query of a second."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.record import IndexInfo
from ..cluster.retrievers.lexical import lexical_query
from ..indexing.terms.terms import term_vectors, text_vectors
from ..languages import makes_latin_terms

MIN_WEIGHT = 1e-6
FEEDBACK_DOCUMENTS = 10
FEEDBACK_TERMS = 10
ORIGINAL_WEIGHT = 0.5
MAX_DOCUMENT_SHARE = 0.1
TERM_LENGTHS = range(2, 21)
WORD = re.compile(r"[a-z0-9]+")
MIN_NORM = 0.001


def expand_queries(
    cluster: Cluster, info: IndexInfo, fields: Sequence[str], texts: Sequence[str]
) -> list[dict[str, Any]]:
    """Return for each text its query expanded by words of its best documents, field by field.

    The best documents and the term vectors are requested from the cluster. The added terms are weighted and
    not analysed again. Document frequencies are those of one shard, as in the
    server's own scores. Terms other than `[a-z0-9]+` are dropped, as in Anserini, for English, or for Latin
    script if the analyser's language is unknown.
    """
    size = min(FEEDBACK_DOCUMENTS, info.result_window)
    bodies = [{"size": size, "_source": False, "query": lexical_query(text, fields)} for text in texts]
    hit_lists = [answer["hits"]["hits"] for answer in cluster.msearch(info, bodies, texts)]
    routing = {hit["_id"]: hit.get("_routing") for hits in hit_lists for hit in hits}
    requests = [{"_id": doc, **({"routing": value} if value else {})} for doc, value in routing.items()]
    documents = term_vectors(cluster, info.name, fields, requests)
    vectors = {document["_id"]: document.get("term_vectors", {}) for document in documents}
    analyzers = {field.name: field.analyzer for field in info.mapped_fields}
    queries = []
    for text, query, hits in zip(texts, text_vectors(cluster, info, fields, texts), hit_lists, strict=True):
        best = {hit["_id"]: hit["_score"] for hit in hits}
        clauses = []
        for field in fields:
            field_vectors = [vectors[doc].get(field, {}) for doc in best]
            terms = [vector.get("terms", {}) for vector in field_vectors]
            sizes = [vector.get("field_statistics", {}).get("doc_count", 0) for vector in field_vectors]
            query_terms = query.get(field, {}).get("terms", {})
            weights = rm3(
                [term for term, entry in query_terms.items() for _ in range(entry["term_freq"])],
                [
                    ({term: entry["term_freq"] for term, entry in entries.items()}, score)
                    for entries, score in zip(terms, best.values(), strict=True)
                ],
                {term: entry["doc_freq"] for entries in terms for term, entry in entries.items()},
                max(sizes, default=0),
                words_only=makes_latin_terms(analyzers.get(field, ""), text),
            )
            clauses += [
                {"term": {field: {"value": term, "boost": weight}}}
                for term, weight in weights.items()
                if weight >= MIN_WEIGHT
            ]
        expanded = {"bool": {"should": clauses, "minimum_should_match": 1}}
        queries.append(expanded if clauses else lexical_query(text, fields))
    return queries


def rm3(
    query: Sequence[str],
    documents: Sequence[tuple[Mapping[str, int], float]],
    document_frequencies: Mapping[str, int],
    collection_size: int,
    *,
    words_only: bool = True,
) -> dict[str, float]:
    """Return the weighted terms of the expanded query; weights sum to 1.

    `query` are analysed terms; repeated ones count twice. `documents` are those of the first search: the
    frequency of each term, and the score. `words_only` drops terms other than `[a-z0-9]+`. Ties are broken by
    the alphabet.
    """
    relevance: dict[str, float] = {}
    for frequencies, score in documents:
        terms = strongest(
            {
                term: float(frequency)
                for term, frequency in frequencies.items()
                if len(term) in TERM_LENGTHS
                and document_frequencies.get(term, 0) <= MAX_DOCUMENT_SHARE * collection_size
                and (not words_only or WORD.fullmatch(term))
            }
        )
        norm = sum(terms.values())
        if norm > MIN_NORM:
            for term, frequency in terms.items():
                relevance[term] = relevance.get(term, 0.0) + frequency / norm * score
    original = normalised({term: float(query.count(term)) for term in query})
    model = normalised(strongest(relevance))
    if not model:
        return original
    return {
        term: ORIGINAL_WEIGHT * original.get(term, 0.0) + (1 - ORIGINAL_WEIGHT) * model.get(term, 0.0)
        for term in {**original, **model}
    }


def strongest(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the `FEEDBACK_TERMS` terms with the largest weights; of equal ones the first by alphabet."""
    ordered = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:FEEDBACK_TERMS])


def normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights divided by their sum; empty if the sum is 0."""
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total else {}
