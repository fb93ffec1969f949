"""Search: from a text to ranked hits, by one retriever or several combined by a fusion.

`context` compiles the query of a text, `retrieval` fetches its hits, and re-rankers may reorder the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ..cluster.connection import Cluster
from ..cluster.destinations import resolve
from ..cluster.record import IndexInfo
from ..encoders.contract import Encoder, Reading
from ..errors import HybridrError, ModelError, SettingsError
from ..families import load_member
from ..records import Hit, Hits, Query, Run
from .answers import matching_answers, missing_parts_remark
from .calibration import cosine_scale
from .checks import (
    HYBRID,
    Feedback,
    Mode,
    check_feedback,
    check_request,
    checked_encoder,
    encoder_for,
    encodes,
    language_remark,
    modes,
)
from .context import SearchContext, idf_sums, is_wordless, spread_factors
from .fusions import CandidateLists, CompiledQuery, Rescoring, SplitQuery
from .rerankers import FAMILY, IndexAccess, QueryHits, Reranker
from .retrieval import Retrieval, first_score
from .rules.matching import MatchedRules
from .rules.rules import rules_in_force
from .settings import SearchSettings, tuned_chain, with_tuning

BATCH = 32


@dataclass(frozen=True)
class Explanation:
    """The hits of a search with the parts of their scores, the matching rules, and remarks for people.

    `left_out` maps each signal that the search did not use to the reason.
    """

    hits: Hits
    mode: str
    remarks: tuple[str, ...]
    left_out: dict[str, str]
    rules: MatchedRules

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; `rules` only if some match."""
        nearest = self.hits.nearest.to_json() if self.hits.nearest else None
        values: dict[str, Any] = {"mode": self.mode, "left_out": self.left_out, "remarks": list(self.remarks)}
        values |= {"hits": [hit.to_json() for hit in self.hits], "nearest": nearest}
        return values | ({"rules": list(self.rules.names)} if self.rules.names else {})

    def lines(self) -> list[str]:
        """Return in words which rules match and which signals are left out."""
        left_out = (f"without {name}: {reason}" for name, reason in self.left_out.items())
        return [*self.rules.descriptions(), *left_out]


class Search:
    """Ranks the documents of an index; one object serves any number of queries.

    `index` may be the source, the alias or the destination of a reindex. Raises NotFound for a missing
    index, DataError when the mode needs vectors and there are none, FingerprintMismatch when the encoder
    is not the one that wrote them; without one the search finds it itself. `feedback="rm3"` expands a
    lexical search by the words of its best documents. `fusion` names how a hybrid search joins its
    retrievers; None in other modes. On a cluster that runs no scripts, a fusion that needs them ranks in
    this process, by scores requested for document ids.

    >>> search = hybridr.Search(hybridr.connect(), "docs", encoder)
    >>> [hit.rank for hit in search("basket", k=2)]
    [1, 2]
    """

    def __init__(
        self,
        cluster: Cluster,
        index: str | IndexInfo,
        encoder: Encoder | None = None,
        mode: Mode = "hybrid",
        feedback: Feedback | None = None,
        *,
        settings: SearchSettings | None = None,
    ) -> None:
        if mode not in modes():
            raise SettingsError(f"unknown mode '{mode}': {', '.join(modes())}")
        self.cluster, self.mode = cluster, mode
        self.info = index if isinstance(index, IndexInfo) else resolve(cluster, index)
        name = index if isinstance(index, str) else index.name
        search_settings = settings or SearchSettings()
        tuned = with_tuning(search_settings, self.info)
        needed = checked_encoder(cluster, self.info, name, mode, encoder) if encodes(mode, tuned) else None
        check_feedback(feedback, mode, tuned)
        self.settings = tuned.model_copy(update={"depth": min(tuned.depth, self.info.result_window)})
        self.context = SearchContext(cluster, self.info, mode, self.settings, needed, feedback)
        self.retrieval, self.encoder = Retrieval(self.context), needed or encoder
        self.fusion = self.context.fusion.name if mode == HYBRID else None
        self.lexical_fields = self.context.fields
        self.signals, self.analysis = self.context.signals, self.context.analysis
        self.boosts, self.dense_scale = self.context.boosts, self.context.scales.dense
        self.reordering, left_out = Reordering.from_settings_or_tuning(
            self.context, self.retrieval.fetch_contents, search_settings
        )
        self.rules = rules_in_force(cluster, self.info)
        self.ruling = self.rules.ruling
        self.remarks = [*self.context.remarks, *left_out, *self.rules.remarks()]
        self.answers = matching_answers(self.context, self.reordering.names)
        self.at_least = self.settings.at_least if self.answers.calibration else 0.0
        if self.settings.at_least and self.answers.reason:
            self.remarks.append(f"no hit is left out for its confidence: {self.answers.reason}")

    def using(self, mode: Mode) -> Search:
        """Return the same search in another mode."""
        return Search(self.cluster, self.info, self.encoder, mode, settings=self.settings)

    def reranked(self, *names: str, **values: Any) -> Search:
        """Return the same search with its best `depth` hits reordered by these re-rankers, in this order.

        `values` are settings of the re-rankers.
        """
        search = copy(self)
        search.reordering = Reordering.from_names(self.context, self.retrieval.fetch_contents, names, values)
        search.answers = matching_answers(self.context, search.reordering.names)
        return search

    def requiring(self, at_least: float) -> Search:
        """Return the same search, which returns no hits if the best hit has less confidence; 0 requires none.

        Raises SettingsError for a value outside 0 to 1, or if the index is not calibrated.
        """
        search = copy(self)
        search.at_least = self.answers.checked_confidence(at_least)
        return search

    def __call__(
        self,
        text: str,
        k: int = 10,
        *,
        offset: int = 0,
        filter: dict[str, Any] | None = None,
        reading: Reading | None = None,
        explain: bool = False,
        boost: str | None = None,
    ) -> Hits:
        """Return the best `k` hits for a text, highlighted by `<em>`, with the score of each retriever.

        For a document found by one of several passages, the text is that passage. `offset` skips the best
        hits. `filter` is a query that every hit must match. `reading` is the encoder's reading of the text
        after rules, if known. `explain` adds the parts of each score. `boost` is a formula that replaces the
        settings' boost; hits then have no confidence and none is left out. If all hits are left out for their
        confidence, `nearest` is the best of them.
        """
        check_request(text, k + offset)
        self.context.fusion.check_page(offset, k)
        rules = self.ruling(text)
        [query] = self.context.compile(
            [rules.text],
            self.settings.depth,
            rules.restricted_filter(filter),
            None if reading is None else [reading],
            boost=boost,
            display=True,
            explained=explain,
        )
        if not rules.pins:
            hits = self._ordered(range(offset, offset + k), query)
        else:  # the list begins with the pinned documents, the others follow by their rank
            pinned = self.retrieval.fetch_pinned_hits(rules.pins, query)
            pins = [{"ids": {"values": [hit.doc_id for hit in pinned]}}]
            page = range(max(0, offset - len(pinned)), max(0, offset + k - len(pinned)))
            others = self._ordered(page, query.with_conditions(must_not=pins)) if page else Hits()
            moved = [hit._replace(rank=hit.rank + len(pinned)) for hit in others]
            scores = [hit.score for hit in pinned] + ([] if others.best is None else [others.best])
            hits = Hits([*pinned[offset : offset + k], *moved], max(scores, default=None))
        if boost is not None or self.answers.calibration is None:
            return hits
        wordless = is_wordless(self.context, rules.text)
        return self.answers.with_confidence(hits, self.at_least, wordless=wordless)

    def remarks_on(self, text: str) -> list[str]:
        """Return remarks to read before trusting the hits for a text."""
        missing = missing_parts_remark(self.info) if self.mode == HYBRID else ""
        foreign = language_remark(text, self.context.encoder)
        return [*self.remarks, *filter(None, (missing, foreign))]

    def explain(
        self,
        text: str,
        k: int = 10,
        *,
        offset: int = 0,
        filter: dict[str, Any] | None = None,
        parts: bool = True,
    ) -> Explanation:
        """Search as a call does; return the hits, the matching rules, and remarks on what the ranking could
        not use, such as re-rankers that ran out of time.

        `parts` adds to each hit the parts of its score.
        """
        hits = self(text, k, offset=offset, filter=filter, explain=parts)
        remarks = (*self.remarks_on(text), *self.reordering.late_remarks(hits))
        return Explanation(hits, self.mode, remarks, dict(self.signals.left_out), self.ruling(text))

    def _ordered(self, page: range, query: CompiledQuery) -> Hits:
        """Return the hits of a page, after the re-rankers."""
        if not self.reordering.members:
            return self.retrieval.fetch_hits(page, query)
        candidates = self.retrieval.fetch_hits(range(max(page.stop, self.reordering.reach)), query)
        [hits] = self.reordering.reorder([query], [candidates])
        return Hits(hits[page.start : page.stop], first_score(hit.score for hit in hits))

    def request(
        self, text: str, k: int = 10, *, offset: int = 0, filter: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the body of a plain REST search for this page, to which aggregations can be added.

        Raises SettingsError if one request cannot produce this ranking.
        """
        self.context.fusion.check_page(offset, k)
        if offset and self.retrieval.spans_depths(offset + k):
            raise SettingsError(
                f"hits {offset + 1} to {offset + k} are beyond the {self.settings.depth} candidates of each "
                "retriever: one request does not join the pages before it",
                hint=f"--depth {offset + k} for all pages",
            )
        return self.body(text, k + offset, filter=filter) | {"size": k, "from": offset}

    def body(
        self,
        text: str,
        k: int = 10,
        *,
        filter: dict[str, Any] | None = None,
        boost: str | None = None,
    ) -> dict[str, Any]:
        """Return the search body for the best `k` hits, with `query` and `rescore` if the fusion is absolute.

        `boost` replaces the settings' boost. Raises SettingsError if one request cannot produce this ranking.
        """
        self._check_one_request()
        check_request(text, k)
        rules, fusion = self.ruling(text), self.context.fusion
        filter, depth = rules.restricted_filter(filter), max(self.settings.depth, k)
        [query] = self.context.compile([rules.text], depth, filter, boost=boost)
        if not rules.pins:
            return query.body(k)
        if not fusion.rescores:
            raise SettingsError(
                f"a rule pins documents, which a request with the fusion '{self.fusion}' cannot do",
                hint="--fusion absolute",
            )
        return {"size": k, **fusion.rescoring(query).with_pins(rules.pins, filter).body()}

    def rescoring(
        self,
        text: str,
        depth: int,
        client_query: SplitQuery,
        *,
        filter: dict[str, Any] | None = None,
        reading: Reading | None = None,
        boost: str | None = None,
        among: Sequence[str] | None = None,
    ) -> Rescoring:
        """Return the queries that rank a client's own query for a text: its matches are the candidates.

        Words are scored by the plain query, or in the client's own way. `among` are the documents to score
        again if the cluster runs no scripts. Raises SettingsError as `body` does.
        """
        if among is None:
            self._check_one_request()
        [query] = self.context.compile_plain([text], depth, filter, None if reading is None else [reading])
        query = replace(query.with_client_query(client_query), boosts=self.context.boost_clauses(boost))
        if among is None:
            return self.context.fusion.rescoring(query)
        return self.context.fusion.rescoring(query.among(among)).among(among)

    @property
    def reranked_by(self) -> list[str]:
        """Return the names of re-rankers that the user chose; with these, no single request can rank."""
        return [] if self.reordering.tuned else [reranker.name for reranker in self.reordering.members]

    def _check_one_request(self) -> None:
        """Raise SettingsError if this ranking cannot be written as one request."""
        fusion = self.context.fusion
        if self.reranked_by or not fusion.one_request:
            ranker = "a re-ranker" if self.reranked_by else f"the fusion '{self.fusion}'"
            message = f"{ranker} ranks in this process: one request cannot produce this ranking"
            raise SettingsError(message, hint="--fusion absolute")
        if fusion.scripts and (reason := fusion.scripts.refused()):
            raise SettingsError(reason, hint="--fusion pipeline")

    def needs_no_request(self, text: str) -> bool:
        """Return whether the body for a text can be made without a request to the cluster."""
        scripts = self.context.fusion.scripts
        if (scripts and scripts.needs_check) or self.signals.needs_request(text) or self.context.feedback:
            return False
        return self.analysis.remembers(text)

    def has_word_of(self, text: str) -> bool:
        """Return whether the index contains any word of a text."""
        return self.analysis.of([text])[0].known

    def run(self, queries: Iterable[Query], k: int = 100) -> Run:
        """Return the best `k` documents for each query: query id -> document id -> score."""
        queries = list(queries)
        depth = max(self.settings.depth, k)
        ranked: Run = {}
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            texts = [query.text for query in batch]
            if self.reordering.members:
                lists = self.reordering.reorder(*self.first_stage_hits(texts, depth), time_limited=False)
                rankings = [{hit.doc_id: 1 / rank for rank, hit in enumerate(hits[:k], 1)} for hits in lists]
            else:
                rankings = self.retrieval.fetch_best(self.context.compile(texts, depth), k)
            ranked.update(zip([query.query_id for query in batch], rankings, strict=True))
        return ranked

    def candidates(self, texts: Sequence[str]) -> list[CandidateLists]:
        """Return the candidate lists of each text, with true scores of all retrievers."""
        return self.retrieval.fetch_candidates(self.context.compile(texts, self.settings.depth))

    def first_stage_hits(self, texts: Sequence[str], k: int) -> tuple[list[CompiledQuery], list[list[Hit]]]:
        """Return the compiled queries and the best `k` hits of each, without texts and before re-ranking."""
        queries = self.context.compile(texts, k)
        return queries, [
            [Hit(doc, score, rank) for rank, (doc, score) in enumerate(scores.items(), 1)]
            for scores in self.retrieval.fetch_best(queries, k)
        ]


def requirements_of(search: Search, encoder: str) -> dict[str, Any]:
    """Return what a search needs of its index, as JSON values: uuid, encoder, fields, term table.

    A server reports these values, and `deploy` compares them. `encoder` is the encoder's fingerprint.
    """
    record = search.info.record
    return {
        "uuid": search.info.uuid,
        "encoder": encoder,
        "vector_field": record.vector_field,
        "fields": list(search.lexical_fields),
        "term_table": record.term_table.fingerprint if record.term_table else None,
    }


def open_search(
    cluster: Cluster,
    name: str,
    mode: Mode = "hybrid",
    encoder: Path | None = None,
    settings: SearchSettings | None = None,
) -> Search:
    """Return a search of the index `name`. Queries are encoded by the encoder in the folder `encoder`, or, if
    that is None, by the one that wrote the index's vectors.
    """
    info = resolve(cluster, name)
    needed = encoder is not None and encodes(mode, settings or SearchSettings())
    model = encoder_for(info, encoder) if needed else None
    return Search(cluster, info, model, mode, settings=settings)


TextFetcher: TypeAlias = Callable[[Sequence[Sequence[Hit]]], Mapping[str, str]]


@dataclass(frozen=True)
class Reordering:
    """Re-rankers that follow a search, one after the other; `contents` reads the texts of hits."""

    context: SearchContext
    contents: TextFetcher
    members: tuple[Reranker, ...] = ()
    tuned: bool = False
    """Whether `tune` chose them and no user: a single request, which cannot re-rank, is then allowed."""
    reranker_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[Any]:
        """Return the names of the re-rankers, and their settings."""
        return [[reranker.name for reranker in self.members], dict(self.reranker_settings)]

    @property
    def reach(self) -> int:
        """Return how many of the best hits the re-rankers look at; later hits keep their places."""
        depth = self.context.settings.depth
        return min(depth, max(reranker.reach for reranker in self.members))

    @classmethod
    def from_names(
        cls, context: SearchContext, contents: TextFetcher, names: Sequence[str], values: Mapping[str, Any]
    ) -> Reordering:
        """Return the named re-rankers for a search; each takes from `values` the settings that it has.

        Raises SettingsError for unknown settings, for a re-ranker that cannot order hits of this index, and
        if the fusion gives no true scores.
        """
        access = IndexAccess(context.cluster, context.info)
        kinds: list[type[Reranker]] = [load_member(FAMILY, name) for name in names]
        unknown = values.keys() - {name for kind in kinds for name in kind.own_settings.model_fields}
        rerankers = []
        for kind in kinds:
            if obstacle := kind.obstacle(access):
                raise SettingsError(f"'{kind.name}' cannot order hits here: {obstacle}", hint="--rerank none")
            fields = unknown | kind.own_settings.model_fields.keys()
            settings = {name: value for name, value in values.items() if name in fields}
            rerankers.append(kind(access, kind.own_settings(**settings)))
        if rerankers and not context.fusion.scoring_clause:
            raise SettingsError(
                f"'{names[0]}' adds to true scores, which the fusion '{context.fusion.name}' does not give",
                hint="--fusion absolute",
            )
        return cls(context, contents, tuple(rerankers), reranker_settings=values if rerankers else {})

    @classmethod
    def from_settings_or_tuning(
        cls, context: SearchContext, contents: TextFetcher, settings: SearchSettings
    ) -> tuple[Reordering, list[str]]:
        """Return the re-rankers of the settings, else those that `tune` chose for hybrid searches, and
        remarks.

        If those of `tune` cannot be used on this machine, none are used, and a remark gives the reason.
        """
        if context.settings.chain or context.mode != HYBRID:
            values = context.settings.rerank_settings
            return cls.from_names(context, contents, context.settings.chain, values), []
        try:
            tuned = tuned_chain(settings, context.info)
            chain = cls.from_names(context, contents, tuned.chain, tuned.rerank_settings)
            return replace(chain, tuned=bool(chain.members)), []
        except HybridrError as error:
            return cls(context, contents), [f"the re-rankers that tune chose are left out: {error}"]

    def reorder(
        self, queries: Sequence[CompiledQuery], hit_lists: Sequence[list[Hit]], *, time_limited: bool = True
    ) -> list[list[Hit]]:
        """Return the hits of each query; the best `depth` of the settings are reordered, the rest follow.

        `time_limited` says that a user waits. Raises ModelError if a re-ranker adds or drops hits.
        """
        depth = self.context.settings.depth
        best, rest = [hits[:depth] for hits in hit_lists], [hits[depth:] for hits in hit_lists]
        for reranker in self.members:
            to_read = [hits[: reranker.reach] for hits in best] if reranker.needs_texts else []
            contents = self.contents(to_read)
            lists = [
                QueryHits(query.text, hits, contents, scale, time_limited)
                for query, hits, scale in zip(queries, best, self.scales(queries), strict=True)
            ]
            earlier, best = best, reranker.rescored(lists)
            for old, new in zip(earlier, best, strict=True):
                if {hit.doc_id for hit in old} != {hit.doc_id for hit in new} or len(old) != len(new):
                    raise ModelError(
                        f"the re-ranker '{reranker.name}' was given {len(old)} hits and returned {len(new)}, "
                        "not exactly the same ones",
                        hint="--rerank none",
                    )
        return [first + others for first, others in zip(best, rest, strict=True)]

    def scales(self, queries: Sequence[CompiledQuery]) -> list[float]:
        """Return for each query the factor that brings scores of its hits to the scale of (1 + cosine)."""
        context = self.context
        if context.fusion.needs_scales:
            return [1 / context.fusion.unit(query) for query in queries]
        [(name, retriever)] = context.retrievers.items()
        cosines = context.info.record.cosines
        factor = cosine_scale(context.encoder, cosines).factor if context.encoder else 1.0
        sums = [0.0] * len(queries)
        if retriever.of_words:
            sums = idf_sums(context, [query.text for query in queries])
        factors = [spread_factors(context.retrievers, query.values).get(name, factor) for query in queries]
        return list(map(retriever.scale, sums, factors))

    def late_remarks(self, hits: Sequence[Hit]) -> list[str]:
        """Return remarks for hits of a page that there was no time to re-rank."""
        return list(filter(None, (reranker.late_remark(hits) for reranker in self.members)))
