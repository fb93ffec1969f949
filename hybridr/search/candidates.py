"""Candidates: what the legs of a search find in its index, and how they score what they did not list."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.limits import result_window
from ..cluster.reading import hits_by_id
from ..cluster.record import IndexInfo, Record
from ..cluster.retrievers import FAMILY, Retriever, among
from ..cluster.retrievers.dense import MAX_NEIGHBOURS, DenseRetriever
from ..cluster.retrievers.lexical import highlight
from ..errors import DataError, SettingsError
from ..families import member_of, names_of
from .clauses import REASONS
from .fusions import CandidateLists, CompiledQuery, Fusion, Scores
from .hits import checked_hits
from .scripts import Scripts
from .settings import SearchSettings

HYBRID = "hybrid"
INNER_HITS_IN_HYBRID = (3, 0, 0)  # 2.19 leaves them out of the answer without a word


def modes() -> tuple[str, ...]:
    """Name the modes of a search: several legs, or any single one."""
    return (HYBRID, *names_of(FAMILY))


def legs_of(mode: str, settings: SearchSettings) -> list[type[Retriever]]:
    """Give the legs of a mode."""
    return [member_of(FAMILY, name) for name in (settings.shares if mode == HYBRID else (mode,))]


def encodes(mode: str, settings: SearchSettings) -> bool:
    """Tell whether a search in this mode needs the encoder of the vectors."""
    return any(leg.reads == "vector" for leg in legs_of(mode, settings))


def made_legs(
    mode: str, settings: SearchSettings, record: Record, fields: Sequence[str]
) -> dict[str, Retriever]:
    """Make the legs of a mode for an index. Raises DataError for one that an index with this record lacks."""
    retrievers = {}
    for leg in legs_of(mode, settings):
        if obstacle := leg.obstacle(record):
            raise DataError(f"no {leg.name} leg here: {obstacle}", hint="--mode lexical")
        retrievers[leg.name] = leg.of(record, fields)
    return retrievers


class Alone(Fusion):
    """Ranks by one leg: nothing is joined."""

    name = "alone"
    one_request = True
    true_scores = True

    def body(self, question: CompiledQuery, k: int) -> dict[str, Any]:
        """Ask the leg."""
        [query] = question.queries()
        return {"size": k, "query": query}


def unseen(body: dict[str, Any], seen: Sequence[str]) -> dict[str, Any]:
    """Leave documents out of what a search finds, before anything is scored again."""
    if not seen:
        return body
    others = {"must_not": [{"ids": {"values": list(seen)}}]}
    return body | {"post_filter": {"bool": {"must": [body.get("post_filter", {"match_all": {}})], **others}}}


def groups_of(doc_ids: Sequence[str], size: int = MAX_NEIGHBOURS) -> list[Sequence[str]]:
    """Part documents into groups that one search may return."""
    return [doc_ids[start : start + size] for start in range(0, len(doc_ids), size)]


class Candidates:
    """Asks the legs of one index; many questions go in one request."""

    def __init__(self, cluster: Cluster, info: IndexInfo, legs: Mapping[str, Retriever]) -> None:
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

    def find(self, questions: Sequence[CompiledQuery]) -> list[CandidateLists]:
        """Give what the legs say about each question: one retrieval per leg, then all else by ids."""
        pairs = [(question, leg) for question in questions for leg in question.finding]
        lists = [{"size": question.depth, "query": question.query(leg)} for question, leg in pairs]
        first = iter(self.scores(lists, [question.text for question, _ in pairs]))
        listed = [
            {name: next(first) if name in question.finding else {} for name in question.legs}
            for question in questions
        ]
        missing = [
            self._missing(question, scores) for question, scores in zip(questions, listed, strict=True)
        ]
        bodies = [
            (question.text, body)
            for question, parts in zip(questions, missing, strict=True)
            for body in chain(*parts.values())
        ]
        answers = iter(self.scores([body for _, body in bodies], [text for text, _ in bodies]))
        further = [
            {name: dict(ChainMap(*(next(answers) for _ in part))) for name, part in parts.items()}
            for parts in missing
        ]
        return [
            CandidateLists(
                lists,
                {
                    name: scores[name] if question.finds_otherwise(name) else {**values, **scores[name]}
                    for name, values in lists.items()
                },
                question.scales,
                {name: (part.weight, scores[name]) for name, part in question.signals.items()},
                {name: (part.weight, scores[name]) for name, part in question.boosts.items()},
            )
            for question, lists, scores in zip(questions, listed, further, strict=True)
        ]

    def _missing(
        self, question: CompiledQuery, listed: Mapping[str, Scores]
    ) -> dict[str, list[dict[str, Any]]]:
        """Build by name what asks each leg for the documents that only others found, and the rest for all."""
        documents, by_question = list(dict.fromkeys(chain(*listed.values()))), {}
        window = min(MAX_NEIGHBOURS, result_window(self.info))
        for name, scores in listed.items():
            ids = [doc for doc in documents if doc not in scores or question.finds_otherwise(name)]
            by_question[name] = [
                {"size": len(part), "query": self.legs[name].scores_of(question.asked[name], part)}
                for part in groups_of(ids, window) or [ids]
            ]
        groups = groups_of(documents, window)
        for name, part in {**question.signals, **question.boosts}.items():
            query = {"bool": {"should": list(part.clauses)}}
            clauses = groups if part.clauses else []
            by_question[name] = [{"size": len(ids), "query": among(ids, query)} for ids in clauses]
        return by_question

    def with_passages(self, hits: list[dict[str, Any]], question: CompiledQuery) -> list[dict[str, Any]]:
        """Ask for the best passages of dense hits where the answer of a hybrid search lacks them."""
        supported = len(self.legs) == 1 or self.cluster.version >= INNER_HITS_IN_HYBRID
        if supported or self.info.record.passages is None:
            return hits
        doc_ids = [hit["_id"] for hit in hits if DenseRetriever.name in hit.get("matched_queries", {})]
        inner = self.best_passages(question, doc_ids)
        return [hit | {"inner_hits": inner.get(hit["_id"], {})} for hit in hits]

    def best_passages(self, question: CompiledQuery, doc_ids: Sequence[str]) -> dict[str, Any]:
        """Give the inner hits of each document's passage that is nearest to the vector of a question."""
        dense = self.legs.get(DenseRetriever.name)
        if not doc_ids or not isinstance(dense, DenseRetriever):
            return {}
        sources: dict[str, Any] = {}
        for part in groups_of(doc_ids, result_window(self.info)):
            query = dense.scores_of(question.asked[DenseRetriever.name], part, passages=True)
            body = {"size": len(part), "query": query, "_source": False}
            answer = self.cluster.search(self.info, body)
            sources |= {hit["_id"]: hit["inner_hits"] for hit in checked_hits(answer)}
        return sources

    def looked_up(
        self, doc_ids: Sequence[str], question: CompiledQuery, fields: Sequence[str], searched: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Give what an answer would say of each document: its marked text, its best passage.

        `fields` are shown, with the words marked that match in the `searched` ones.
        """
        passages = self.info.record.passages is not None
        parts = {
            "_source": list(fields) if passages else False,
            "highlight": highlight(self.info, fields, question.text, searched),
        }
        hits = hits_by_id(self.cluster, self.info, doc_ids, parts, question.filter)
        inner = self.best_passages(question, doc_ids) if passages else {}
        return {hit["_id"]: hit | {"inner_hits": inner.get(hit["_id"], {})} for hit in hits}


def check_without_scripts(question: CompiledQuery) -> None:
    """Raise SettingsError for functions around a text: without scripts none act on the sum of all parts."""
    if question.around:
        raise SettingsError(REASONS["scripts"], hint="--mode lexical asks the template as it stands")


@dataclass(frozen=True)
class Joiner:
    """Ranks what the legs find by a fusion: by its one request, else here, by scores that are asked by ids.

    `scripts` tells whether its request may run the script that it needs.
    """

    candidates: Candidates
    fusion: Fusion
    scripts: Scripts | None = None

    @property
    def asks_once(self) -> bool:
        """Tell whether one request ranks."""
        return self.fusion.one_request and not (self.scripts and self.scripts.refused())

    def best(
        self, questions: Sequence[CompiledQuery], k: int, seen: Sequence[str] = ()
    ) -> list[dict[str, float]]:
        """Rank the best `k` for each question that are not `seen`: document id -> score, best first."""
        if self.asks_once:
            bodies = [unseen(self.fusion.body(question, k), seen) for question in questions]
            return self.candidates.scores(bodies, [question.text for question in questions])
        for question in questions:
            check_without_scripts(question)
        return [self.ranked(legs, k, seen) for legs in self.candidates.find(questions)]

    def ranked(self, legs: CandidateLists, k: int, seen: Sequence[str] = ()) -> dict[str, float]:
        """Rank the best `k` candidates that are not `seen`."""
        scores, shown_ids = self.fusion.scores(legs), set(seen)
        order = sorted((doc for doc in scores if doc not in shown_ids), key=lambda doc: -scores[doc])
        return {doc: scores[doc] for doc in order[:k]}
