"""Retrieval: fetches the hits of compiled queries; a document's rank does not depend on the page."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from ..cluster.mappings import index_put
from ..cluster.reading import groups_of, hits_by_id
from ..cluster.record import RESULT_WINDOW
from ..cluster.retrievers import among
from ..cluster.retrievers.dense import MAX_NEIGHBOURS, DenseRetriever
from ..cluster.retrievers.lexical import highlight
from ..cluster.routing import text_preference
from ..errors import SettingsError
from ..records import Hit, Hits
from .clauses import REASONS
from .client_query import UNCHANGED_TEMPLATE_HINT
from .context import SearchContext
from .fusions import CandidateLists, CompiledQuery, Scores
from .hits import checked_hits, fetch_texts, shown_text

INNER_HITS_IN_HYBRID = (3, 0, 0)  # 2.19 silently omits them from the answer


class Retrieval:
    """Ranks the documents of one index: by the fusion's single request, else in this process, by scores
    requested by id.
    """

    def __init__(self, context: SearchContext) -> None:
        self.context, self.cluster, self.info = context, context.cluster, context.info
        self.fusion, self.retrievers = context.fusion, context.retrievers
        self.fields = list(self.info.record.fields or context.fields)
        self.window = self.info.result_window

    def fetch_scores(
        self, bodies: Sequence[dict[str, Any]], texts: Sequence[str] = ()
    ) -> list[dict[str, float]]:
        """Send several searches in one request; return document id -> score of each, best first.

        With `texts`, one per body, the same shard copies answer for the same text.
        """
        if not bodies:  # the server refuses an empty request
            return []
        requests = [body | {"_source": False} for body in bodies]
        answers = self.cluster.msearch(self.info, requests, texts)
        return [{hit["_id"]: hit["_score"] for hit in checked_hits(answer)} for answer in answers]

    def fetch_best(
        self, queries: Sequence[CompiledQuery], k: int, earlier_ids: Sequence[str] = ()
    ) -> list[dict[str, float]]:
        """Return each query's best `k` documents, without `earlier_ids`: document id -> score, best first."""
        if self.fusion.asks_once:
            bodies = [query.body(k, earlier_ids) for query in queries]
            return self.fetch_scores(bodies, [query.text for query in queries])
        for query in queries:
            require_no_wrappers(query)
        return [self.fusion.order(lists, k, earlier_ids) for lists in self.fetch_candidates(queries)]

    def fetch_candidates(self, queries: Sequence[CompiledQuery]) -> list[CandidateLists]:
        """Return the candidate lists of each query.

        A first request fetches the list of each retriever, a second one the missing scores, by document id.
        """
        pairs = [(query, name) for query in queries for name in query.finding_retrievers]
        bodies = [{"size": query.depth, "query": query.query(name)} for query, name in pairs]
        answers = iter(self.fetch_scores(bodies, [query.text for query, _ in pairs]))
        by_query = [
            {name: next(answers) if name in query.finding_retrievers else {} for name in query.retrievers}
            for query in queries
        ]
        missing = [self._missing_scores(query, lists) for query, lists in zip(queries, by_query, strict=True)]
        texts = [
            query.text for query, parts in zip(queries, missing, strict=True) for _ in chain(*parts.values())
        ]
        bodies = [body for parts in missing for body in chain(*parts.values())]
        answers = iter(self.fetch_scores(bodies, texts))
        candidates = []
        for query, lists, parts in zip(queries, by_query, missing, strict=True):
            scores = {name: dict(ChainMap(*(next(answers) for _ in part))) for name, part in parts.items()}
            true_scores = {
                name: scores[name] if query.finds_by_client_query(name) else {**values, **scores[name]}
                for name, values in lists.items()
            }
            signals, boosts = (
                {name: (part.weight, scores[name]) for name, part in side.items()}
                for side in (query.signals, query.boosts)
            )
            candidates.append(CandidateLists(lists, true_scores, query.scales, signals, boosts))
        return candidates

    def _missing_scores(
        self, query: CompiledQuery, lists: Mapping[str, Scores]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the search bodies that fetch missing scores, by the name of the retriever, signal or boost.

        A retriever lacks the scores of documents that only others found, signals and boosts those of all.
        """
        documents = list(dict.fromkeys(chain(*lists.values())))
        window = min(MAX_NEIGHBOURS, self.window)
        bodies = {}
        for name, scores in lists.items():
            ids = [doc for doc in documents if doc not in scores or query.finds_by_client_query(name)]
            bodies[name] = [
                {"size": len(part), "query": self.retrievers[name].scoring_query(query.values[name], part)}
                for part in groups_of(ids, window) or [ids]
            ]
        for name, part in {**query.signals, **query.boosts}.items():
            clauses = {"bool": {"should": list(part.clauses)}}
            groups = groups_of(documents, window) if part.clauses else []
            bodies[name] = [{"size": len(ids), "query": among(ids, clauses)} for ids in groups]
        return bodies

    def spans_depths(self, stop: int) -> bool:
        """Return whether a page ending at `stop` is joined from searches of several depths."""
        of_words = all(retriever.of_words for retriever in self.retrievers.values())
        return not of_words and self.fusion.scoring_clause and stop > self.context.settings.depth

    def fetch_hits(self, page: range, query: CompiledQuery) -> Hits:
        """Return the hits of a page."""
        if not self.spans_depths(page.stop):
            depth = max(self.context.settings.depth, page.stop)
            return self._fetch_page(page, replace(query, depth=depth), [])
        pieces = list(self._fetch_pieces(page, query))
        return Hits(chain(*pieces), pieces[0].best)

    def _fetch_pieces(self, page: range, query: CompiledQuery) -> Iterator[Hits]:
        """Yield the parts of a page that reaches beyond the first `depth` hits; the first part has the best
        score.

        The next hits are the best of twice as many candidates, without the hits so far, and so on.
        """
        earlier_ids: list[str] = []
        depth = self.context.settings.depth
        while True:
            part, first = replace(query, depth=depth), len(earlier_ids)
            if page.start < depth:
                yield self._fetch_page(
                    range(max(page.start, first), min(page.stop, depth)), part, earlier_ids
                )
            if page.stop <= depth:
                return
            [scores] = self.fetch_best([replace(part, display=False)], depth - first, earlier_ids)
            yield Hits(best=first_score(scores.values()))
            earlier_ids += scores
            if len(earlier_ids) < depth:
                return
            reach = self.window + len(earlier_ids) if self.fusion.asks_once else self.window
            if reach <= depth:
                raise SettingsError(
                    f"hits from {depth + 1} on are beyond {RESULT_WINDOW} of '{self.info.name}' "
                    f"({self.window})",
                    hint=index_put(self.info.name, RESULT_WINDOW, str(page.stop)),
                )
            depth = min(2 * depth, MAX_NEIGHBOURS, reach)

    def _fetch_page(self, page: range, query: CompiledQuery, earlier_ids: Sequence[str]) -> Hits:
        """Return the hits of a page with highlights; the first ranks belong to `earlier_ids`.

        The cluster reports the best score of all hits on every page, after rescoring.
        """
        if not self.fusion.asks_once:
            return self._fetch_page_by_ids(page, replace(query, display=False), earlier_ids)
        offset = page.start - len(earlier_ids)
        passages = self.info.record.passages is not None
        body = query.body(offset + len(page), earlier_ids) | {
            "highlight": highlight(self.info, self.fields, query.text, self.context.fields),
            "_source": self.fields if passages else False,  # a text may have megabytes
            "size": len(page),
            "from": offset,
        }
        params = text_preference(query.text) | {"include_named_queries_score": "true"}
        answer = self.cluster.search(self.info, body, params)
        hits = checked_hits(answer)
        if passages and len(self.retrievers) > 1 and self.cluster.version < INNER_HITS_IN_HYBRID:
            dense_ids = [hit["_id"] for hit in hits if DenseRetriever.name in hit.get("matched_queries", {})]
            passages_of = self._fetch_best_passages(query, dense_ids)
            hits = [hit | {"inner_hits": passages_of.get(hit["_id"], {})} for hit in hits]
        shown_hits = [
            self._as_hit(
                Hit(hit["_id"], hit["_score"] or 0.0, rank), query, hit.get("matched_queries", {}), hit
            )
            for rank, hit in enumerate(hits, page.start + 1)
        ]
        return Hits(shown_hits, answer["hits"].get("max_score"))

    def _fetch_page_by_ids(self, page: range, query: CompiledQuery, earlier_ids: Sequence[str]) -> Hits:
        """Return the hits of a page: rank the lists of the retrievers in this process, then fetch the texts
        of the page. The first ranks belong to `earlier_ids`.
        """
        require_no_wrappers(query)
        [lists] = self.fetch_candidates([query])
        ranked = self.fusion.order(lists, page.stop - len(earlier_ids), earlier_ids)
        scores = dict(islice(ranked.items(), page.start - len(earlier_ids), None))
        answers = self._look_up(list(scores), query)
        hits = [
            self._as_hit(Hit(doc, score, rank), query, lists.scoring_query(doc), answers.get(doc, {}))
            for rank, (doc, score) in enumerate(scores.items(), page.start + 1)
        ]
        return Hits(hits, first_score(ranked.values()))

    def _as_hit(
        self, ranked: Hit, query: CompiledQuery, named_scores: Mapping[str, float], answer: dict[str, Any]
    ) -> Hit:
        """Return a hit with the scores of its retrievers, the parts of its score, and its text."""
        text, passage = shown_text(answer, self.fields)
        scores = {name: named_scores.get(name) for name in (*self.context.settings.shares, *query.retrievers)}
        parts = self.fusion.parts(query, named_scores, ranked.score) if query.explained else None
        return ranked._replace(scores=scores, text=text, passage=passage, parts=parts)

    def fetch_pinned_hits(self, pins: Mapping[str, str], query: CompiledQuery) -> list[Hit]:
        """Return the pinned documents that match the query's filter and lie in the index's scope, in their
        order, each with its rule.

        A document that the search would not have found gets the score 0.
        """
        among_pins = query.with_conditions(must=[{"ids": {"values": list(pins)}}])
        hits = {hit.doc_id: hit for hit in self.fetch_hits(range(len(pins)), among_pins)}
        if missing := [doc for doc in pins if doc not in hits]:
            answers = self._look_up(missing, query)
            hits |= {
                doc: self._as_hit(Hit(doc, 0.0, 0), query, {}, answer) for doc, answer in answers.items()
            }
        present = [doc for doc in pins if doc in hits]
        return [hits[doc]._replace(rank=rank, rule=pins[doc]) for rank, doc in enumerate(present, 1)]

    def _look_up(self, doc_ids: Sequence[str], query: CompiledQuery) -> dict[str, dict[str, Any]]:
        """Return for each document id what a search response would hold: highlights and best passage."""
        passages = self.info.record.passages is not None
        parts = {
            "_source": self.fields if passages else False,
            "highlight": highlight(self.info, self.fields, query.text, self.context.fields),
        }
        hits = hits_by_id(self.cluster, self.info, doc_ids, parts, query.filter)
        inner = self._fetch_best_passages(query, doc_ids) if passages else {}
        return {hit["_id"]: hit | {"inner_hits": inner.get(hit["_id"], {})} for hit in hits}

    def _fetch_best_passages(self, query: CompiledQuery, doc_ids: Sequence[str]) -> dict[str, Any]:
        """Return the inner hits of each document's passage that is nearest to the query's vector."""
        dense = self.retrievers.get(DenseRetriever.name)
        if not doc_ids or not isinstance(dense, DenseRetriever):
            return {}
        inner: dict[str, Any] = {}
        for part in groups_of(doc_ids, self.window):
            nearest = dense.scoring_query(query.values[DenseRetriever.name], part, passages=True)
            answer = self.cluster.search(self.info, {"size": len(part), "query": nearest, "_source": False})
            inner |= {hit["_id"]: hit["inner_hits"] for hit in checked_hits(answer)}
        return inner

    def fetch_contents(self, lists: Sequence[Sequence[Hit]]) -> dict[str, str]:
        """Return the whole texts of hits, as the encoder reads them, by document id."""
        doc_ids = list(dict.fromkeys(hit.doc_id for hits in lists for hit in hits))
        return fetch_texts(self.cluster, self.info, doc_ids, self.fields)


def require_no_wrappers(query: CompiledQuery) -> None:
    """Raise SettingsError for a client's functions around the query: these need scripts."""
    if query.wrappers:
        raise SettingsError(REASONS["scripts"], hint=UNCHANGED_TEMPLATE_HINT)


def first_score(scores: Iterable[float]) -> float | None:
    """Return the first, best score; None if there is none."""
    return next(iter(scores), None)
