"""Score completion: every candidate of either leg gets the true score of both before they are fused.

A document that one leg did not list still has a score there, and zero is the wrong one. Measured on twelve
open collections (design notes, findings.md): the largest gain of plain hybrid ranking without labels. It
costs one more request of two small searches over the candidates' ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...cluster.legs.lexical import among, highlight, lexical_leg
from ...encoding.passages import Span
from ...errors import SettingsError
from ...records import Hit, Query, Run
from ..search import BATCH, Search, check_request

DENSE_WEIGHT = 0.6
Scores = Mapping[str, float]


class Candidate(NamedTuple):
    """A document with both true scores and the fused one."""

    doc_id: str
    score: float
    lexical: float
    dense: float


def completed(lexical: Scores, dense: Scores, *, dense_weight: float = DENSE_WEIGHT) -> list[Candidate]:
    """Fuse true scores: the weighted mean of both z-scores over the union, best first.

    A document without a lexical score matches no word of the query and has 0; one without a dense score has
    no vector and gets the lowest of the list.
    """
    documents = list(dict.fromkeys([*dense, *lexical]))
    if not documents:
        return []
    lowest = min(dense.values(), default=0.0)
    left = np.array([lexical.get(doc, 0.0) for doc in documents])  # (n,)
    right = np.array([dense.get(doc, lowest) for doc in documents])  # (n,)
    fused = (1 - dense_weight) * standardised(left) + dense_weight * standardised(right)
    order = np.argsort(-fused, kind="stable")
    return [Candidate(documents[i], float(fused[i]), float(left[i]), float(right[i])) for i in order]


def standardised(values: np.ndarray) -> np.ndarray:
    """Subtract the mean and divide by the deviation; all zero when every value is the same."""
    deviation = values.std()
    return (values - values.mean()) / deviation if deviation > 0 else np.zeros_like(values)


class Legs(NamedTuple):
    """What both legs say about one query: the lists they retrieved, and both true scores of the union."""

    listed: tuple[Scores, Scores]
    lexical: Scores
    dense: Scores


class CompletedSearch(Search):
    """Hybrid search with completion, fused here instead of in the cluster's pipeline."""

    def __call__(
        self, text: str, k: int = 10, *, offset: int = 0, filter: dict[str, Any] | None = None
    ) -> list[Hit]:
        """Give the best `k` documents with text, highlighted by `<em>`, and both true scores."""
        check_request(text, k + offset)
        vectors = self._query_vectors([text])
        best = self._candidates([text], vectors, filter)[0][offset : offset + k]
        shown = self._shown([candidate.doc_id for candidate in best], text, vectors[0])
        return [
            Hit(one.doc_id, one.score, rank, one.lexical, one.dense, *shown.get(one.doc_id, ("", None)))
            for rank, one in enumerate(best, offset + 1)
        ]

    def request(
        self, text: str, k: int = 10, *, offset: int = 0, filter: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Raise SettingsError: completed z-scores are made of several requests."""
        raise SettingsError("completion asks three times, there is no one request", hint="--fusion absolute")

    def run(self, queries: Iterable[Query], k: int = 100) -> Run:
        """Rank the best `k` documents for each query: query id -> document id -> score."""
        queries = list(queries)
        ranked: Run = {}
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            found = self.candidates([query.text for query in batch])
            for query, candidates in zip(batch, found, strict=True):
                ranked[query.query_id] = {one.doc_id: one.score for one in candidates[:k]}
        return ranked

    def candidates(self, texts: list[str]) -> list[list[Candidate]]:
        """Give every candidate of either leg with both true scores, best first."""
        return self._candidates(texts, self._query_vectors(texts))

    def legs(self, texts: list[str]) -> list[Legs]:
        """Give what both legs say about each query: one retrieval per leg, and what each one missed."""
        return self._legs(texts, self._query_vectors(texts))

    def _query_vectors(self, texts: list[str]) -> list[np.ndarray]:
        return [vector for vector in self._vectors(texts) if vector is not None]

    def _candidates(
        self, texts: list[str], vectors: list[np.ndarray], filter: dict[str, Any] | None = None
    ) -> list[list[Candidate]]:
        weight = self.settings.completed_weight
        return [
            completed(found.lexical, found.dense, dense_weight=weight)
            for found in self._legs(texts, vectors, filter)
        ]

    def _legs(
        self, texts: list[str], vectors: list[np.ndarray], filter: dict[str, Any] | None = None
    ) -> list[Legs]:
        legs = [lexical_leg(query, filter=filter) for query in self._lexical_queries(texts)]
        depth = self.settings.depth
        first = self.scores(
            [
                {"size": depth, "query": query}
                for leg, vector in zip(legs, vectors, strict=True)
                for query in (leg, self._nearest(vector, depth, filter))
            ]
        )
        listed = list(zip(first[::2], first[1::2], strict=True))
        second = self.scores(
            [
                body
                for leg, vector, (lexical, dense) in zip(legs, vectors, listed, strict=True)
                for body in self._missing(leg, vector, lexical, dense)
            ]
        )
        more = zip(second[::2], second[1::2], strict=True)
        return [
            Legs((lexical, dense), {**lexical, **more_lexical}, {**dense, **more_dense})
            for (lexical, dense), (more_lexical, more_dense) in zip(listed, more, strict=True)
        ]

    def _missing(
        self, leg: dict[str, Any], vector: np.ndarray, lexical: Scores, dense: Scores
    ) -> list[dict[str, Any]]:
        """Ask each leg for the documents that only the other one found."""
        unseen = [doc for doc in dense if doc not in lexical]
        unlisted = [doc for doc in lexical if doc not in dense]
        return [{"size": len(unseen), "query": among(unseen, leg)}, self._dense_scores(vector, unlisted)]

    def _shown(self, doc_ids: list[str], text: str, vector: np.ndarray) -> dict[str, tuple[str, Span | None]]:
        """Give what to show of each document, and where its best passage stands."""
        fields = self._shown_fields()
        body = {
            "size": len(doc_ids),
            "query": {"ids": {"values": doc_ids}},
            "_source": fields if self.windows else False,
            "highlight": highlight(fields, text),
        }
        hits = self.cluster.search(self.info.name, body)["hits"]["hits"]
        inner = self._best_passages(vector, doc_ids) if self.windows else {}
        return {hit["_id"]: self._text(hit | {"inner_hits": inner.get(hit["_id"], {})}) for hit in hits}
