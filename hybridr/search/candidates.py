"""Candidates: what the legs of a search find in its index, and how they score what they did not list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..cluster.connection import Cluster
from ..cluster.legs import FAMILY, Leg
from ..cluster.legs.dense import DenseLeg
from ..cluster.legs.lexical import among, highlight
from ..cluster.record import IndexInfo
from ..encoding.passages import Span
from ..files.family import member_of, names_of
from .fusions import Fusion, Legs, Question, Scores, Weighted
from .hits import checked_hits, shown_text

HYBRID, LEXICAL, DENSE = "hybrid", "lexical", "dense"
INNER_HITS_IN_HYBRID = (3, 0, 0)  # 2.19 leaves them out of the answer without a word


def modes() -> tuple[str, ...]:
    """Name the modes of a search: both legs, or any single one."""
    return (HYBRID, *names_of(FAMILY))


def legs_of(mode: str) -> list[type[Leg]]:
    """Give the legs of a mode."""
    return [member_of(FAMILY, name) for name in ((LEXICAL, DENSE) if mode == HYBRID else (mode,))]


class Alone(Fusion):
    """Ranks by one leg: nothing is joined."""

    name = "alone"
    one_request = True
    true_scores = True

    def body(self, question: Question, k: int) -> dict[str, Any]:
        """Ask the leg."""
        [query] = question.queries()
        return {"size": k, "query": query}


def unseen(body: dict[str, Any], seen: Sequence[str]) -> dict[str, Any]:
    """Leave documents out of what a search finds, before anything is scored again."""
    if not seen:
        return body
    others = {"must_not": [{"ids": {"values": list(seen)}}]}
    return body | {"post_filter": {"bool": {"must": [body.get("post_filter", {"match_all": {}})], **others}}}


class Candidates:
    """Asks the legs of one index; many questions go in one request."""

    def __init__(self, cluster: Cluster, info: IndexInfo, legs: Mapping[str, Leg]) -> None:
        self.cluster, self.info, self.legs = cluster, info, legs

    def scores(self, bodies: Sequence[dict[str, Any]], texts: Sequence[str] = ()) -> list[dict[str, float]]:
        """Send several searches in one request: document id -> score, best first, of each.

        With `texts`, one a body, the same copies of the shards answer for the same text.
        """
        if not bodies:  # the server refuses an empty request
            return []
        plain = [body | {"_source": False} for body in bodies]
        answers = self.cluster.msearch(self.info, plain, texts)
        return [{hit["_id"]: hit["_score"] for hit in checked_hits(answer)} for answer in answers]

    def found(self, questions: Sequence[Question]) -> list[Legs]:
        """Give what both legs say about each question: one retrieval per leg, and what each one missed."""
        asked = [one.text for one in questions for _ in one.legs]
        first = self.scores(
            [{"size": one.depth, "query": leg} for one in questions for leg in one.queries()], asked
        )
        listed = list(zip(first[::2], first[1::2], strict=True))
        second = self.scores(
            [
                body
                for question, lists in zip(questions, listed, strict=True)
                for body in self._missing(question, *lists)
            ],
            asked,
        )
        more = zip(second[::2], second[1::2], strict=True)
        signals = self._told([one.signals for one in questions], questions, listed)
        boosts = self._told([one.boosts for one in questions], questions, listed)
        return [
            Legs(lists, {**lists[0], **lexical}, {**lists[1], **dense}, one.scales, *parts)
            for one, lists, (lexical, dense), *parts in zip(
                questions, listed, more, signals, boosts, strict=True
            )
        ]

    def _told(
        self,
        parts: Sequence[Mapping[str, Weighted]],
        questions: Sequence[Question],
        listed: Sequence[tuple[Scores, Scores]],
    ) -> list[dict[str, tuple[float, Scores]]]:
        """Ask for these parts of every candidate's score."""
        unions = [list({**lexical, **dense}) for lexical, dense in listed]
        told = [
            (one.text, {"size": len(union), "query": among(union, {"bool": {"should": list(part.clauses)}})})
            for one, named, union in zip(questions, parts, unions, strict=True)
            for part in named.values()
            if part.clauses
        ]
        found = iter(self.scores([body for _, body in told], [text for text, _ in told]))
        return [
            {name: (part.weight, next(found) if part.clauses else {}) for name, part in named.items()}
            for named in parts
        ]

    def _missing(self, question: Question, lexical: Scores, dense: Scores) -> Iterator[dict[str, Any]]:
        """Ask each leg for the documents that only the other one found."""
        unseen = [doc for doc in dense if doc not in lexical], [doc for doc in lexical if doc not in dense]
        for name, doc_ids in zip((LEXICAL, DENSE), unseen, strict=True):
            query = self.legs[name].scores_of(question.asked[name], doc_ids)
            yield {"size": len(doc_ids), "query": query}

    def with_passages(self, hits: list[dict[str, Any]], question: Question) -> list[dict[str, Any]]:
        """Ask for the best passages of dense hits where the answer of a hybrid search lacks them."""
        supported = len(self.legs) == 1 or self.cluster.version >= INNER_HITS_IN_HYBRID
        if supported or self.info.record.passages is None:
            return hits
        doc_ids = [hit["_id"] for hit in hits if DENSE in hit.get("matched_queries", {})]
        inner = self.best_passages(question.asked[DENSE], doc_ids)
        return [hit | {"inner_hits": inner.get(hit["_id"], {})} for hit in hits]

    def best_passages(self, vector: np.ndarray, doc_ids: Sequence[str]) -> dict[str, Any]:
        """Give the inner hits of each document's passage that is nearest to a query vector `(dim,)`."""
        dense = self.legs[DENSE]
        if not doc_ids or not isinstance(dense, DenseLeg):
            return {}
        query = dense.scores_of(vector, doc_ids, passages=True)
        body = {"size": len(doc_ids), "query": query, "_source": False}
        found = self.cluster.search(self.info, body)
        return {hit["_id"]: hit["inner_hits"] for hit in checked_hits(found)}

    def texts(
        self, doc_ids: Sequence[str], text: str, question: Question, fields: Sequence[str]
    ) -> dict[str, tuple[str, Span | None]]:
        """Give what to show of each document for a query `text`, and where its best passage stands."""
        passages = self.info.record.passages is not None
        body = {
            "size": len(doc_ids),
            "query": {"ids": {"values": list(doc_ids)}},
            "_source": list(fields) if passages else False,
            "highlight": highlight(self.info, fields, text),
        }
        hits = self.cluster.search(self.info, body)["hits"]["hits"]
        inner = self.best_passages(question.asked[DENSE], doc_ids) if passages else {}
        return {
            hit["_id"]: shown_text(hit | {"inner_hits": inner.get(hit["_id"], {})}, fields) for hit in hits
        }
