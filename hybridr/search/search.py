"""Search: text in, ranked hits out, by one leg or by several that a fusion joins.

What a search is made of is `opened`; `pages` are what people see of it. Re-rankers may look at the hits once
more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..cluster.connection import Cluster
from ..cluster.destinations import resolve
from ..cluster.record import IndexInfo
from ..encoders.contract import Encoder, Reading
from ..errors import SettingsError
from ..records import Hit, Hits, Query, Run
from .answers import answers_of
from .candidates import encodes, modes
from .checks import Feedback, Mode, check_request
from .encoders import encoder_for
from .fusions import CandidateLists, CompiledQuery, OwnQuery, Rescoring, Scales
from .opened import open_for_search
from .own_queries import OwnQueries
from .pages import Pages, first_score
from .questions import QueryCompiler
from .reordering import Reordering, chain_behind
from .rules.rules import rules_in_force
from .settings import SearchSettings

BATCH = 32


class Search:
    """Rank the documents of an index; one object serves any number of queries.

    `index` may be the source, the alias or the destination of a reindex. Raises NotFound for a missing
    index, DataError when the mode needs vectors and there are none, FingerprintMismatch when the encoder
    is not the one that wrote them; without one the search finds it itself. `feedback="rm3"` expands a
    lexical search by the words of its best documents. `fusion` names how a hybrid search joins its legs; None
    in other modes. Where the cluster runs no scripts, a fusion whose request needs one ranks here, by scores
    that are asked by ids.

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
        self.cluster, self.mode, self.feedback = cluster, mode, feedback
        self.info = index if isinstance(index, IndexInfo) else resolve(cluster, index)
        name = index if isinstance(index, str) else index.name
        search_settings = settings or SearchSettings()
        self.opened = open_for_search(
            cluster, self.info, mode, search_settings, feedback=feedback, encoder=encoder, name=name
        )
        self.settings, self.encoder = self.opened.settings, self.opened.encoder or encoder
        self.fusion, self.lexical_fields = self.opened.fusion, self.opened.fields
        self.dense_scale, self.template = self.opened.scales.dense, self.opened.template
        self.signals, self.boosts = self.opened.signals, self.opened.boosts
        self.analysis = self.opened.analysis
        self._joiner, self._asking, self._pages = (
            self.opened.joiner,
            QueryCompiler(self.opened),
            Pages(self.opened),
        )
        self.reordering, left_out = chain_behind(self.opened, self._pages.contents, search_settings)
        self.remarks = [*self.opened.remarks, *left_out]
        self.rules = rules_in_force(cluster, self.info)
        self.ruling = self.rules.ruling
        self.remarks += self.rules.remarks()
        self.own_queries: OwnQueries | None = None
        if self.template and self.opened.joining.rescores:
            self.own_queries = OwnQueries(self.opened, self.template)
            self.remarks += self.own_queries.remarks
        self.answers = answers_of(self.opened, self.reordering.names)
        self.at_least = self.settings.at_least if self.answers.known else 0.0
        if self.settings.at_least and self.answers.why:
            self.remarks.append(f"no hit is left out for its confidence: {self.answers.why}")

    def using(self, mode: Mode) -> Search:
        """Give the same search in another mode."""
        return Search(self.cluster, self.info, self.encoder, mode, settings=self.settings)

    def reranked(self, *names: str, **own: Any) -> Search:
        """Give the same search, whose best `depth` hits these re-rankers order anew, one after the other.

        `own` are their settings.
        """
        search = copy(self)
        search.reordering = Reordering.by(self.opened, self._pages.contents, names, own)
        search.answers = answers_of(self.opened, search.reordering.names)
        return search

    def requiring(self, at_least: float) -> Search:
        """Give the same search, which finds nothing where its best hit is of less confidence; 0: anything.

        Raises SettingsError for what is no share below 1, and where no confidence is known.
        """
        search = copy(self)
        search.at_least = self.answers.reachable(at_least)
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
        """Give the best `k` documents with text, highlighted by `<em>`, and the raw score of each leg.

        The text of a document that the dense leg found by one of several passages is that passage. `offset`
        skips the best ones: a page. `filter` is a query that every document has to match. `reading` is the
        text, as rules leave it, as the encoder reads it, where that is there already. `explain` has hits tell
        what each part adds to their score. `boost` is a formula of boosts in place of the settings' own: no
        confidence is known of them, none is left out by it. Where all are, `nearest` is the best.
        """
        check_request(text, k + offset)
        self.opened.joining.check_page(offset, k)
        ruling, readings = self.ruling(text), None if reading is None else [reading]
        [question] = self._questions([ruling.text], self.settings.depth, ruling.within(filter), readings)
        question = replace(question, shown=True, explained=explain, boosts=self.opened.boosts_of(boost))
        page = range(offset, offset + k)
        hits = OrderedList(self._pages, self.reordering).page(page, question, ruling.pins)
        return self.answers.rated(hits, self.at_least) if boost is None else hits

    def request(
        self, text: str, k: int = 10, *, offset: int = 0, filter: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Give the body that asks for this page through plain REST, to be extended by aggregations.

        Raises SettingsError where one request cannot rank so.
        """
        self.opened.joining.check_page(offset, k)
        if offset and self._pages.in_pieces(offset + k):
            raise SettingsError(
                f"hits {offset + 1} to {offset + k} are beyond the {self.settings.depth} candidates of each "
                "leg: one request does not join the pages before it",
                hint=f"--depth {offset + k} for all pages",
            )
        return self.body(text, k + offset, filter=filter) | {"size": k, "from": offset}

    def body(
        self,
        text: str,
        k: int = 10,
        *,
        filter: dict[str, Any] | None = None,
        reading: Reading | None = None,
        boost: str | None = None,
    ) -> dict[str, Any]:
        """Give the body that ranks the best `k`, by `query` and `rescore` where the fusion is absolute.

        `boost` takes the place of the settings' own. Raises SettingsError where one request cannot rank so.
        """
        self._check_one_request()
        check_request(text, k)
        ruling, depth = self.ruling(text), self._pages.depth(k)
        filter = ruling.within(filter)
        [question] = self._questions([ruling.text], depth, filter, reading and [reading])
        question = replace(question, boosts=self.opened.boosts_of(boost))
        if not ruling.pins:
            return self._joiner.fusion.body(question, k)
        if not self._joiner.fusion.rescores:
            raise SettingsError(
                f"a rule pins documents: with the fusion '{self.fusion}' no one request does",
                hint="--fusion absolute",
            )
        return {"size": k, **self._joiner.fusion.rescoring(question).pinning(ruling.pins, filter).body()}

    def rescoring(
        self,
        text: str,
        depth: int,
        own: OwnQuery,
        *,
        filter: dict[str, Any] | None = None,
        reading: Reading | None = None,
        boost: str | None = None,
        among: Sequence[str] | None = None,
    ) -> Rescoring:
        """Give what ranks a client's own query for a text: what it matches is found in place of what matches
        the text, and scored as ever, or its words in their own way. Raises SettingsError as `body`.

        `among` are the documents that are scored again where the cluster runs no scripts."""
        if among is None:
            self._check_one_request()
        [question] = self._asking.questions([text], depth, reading and [reading], filter)
        question = replace(question.asking(own), boosts=self.opened.boosts_of(boost))
        if among is None:
            return self._joiner.fusion.rescoring(question)
        return self._joiner.fusion.rescoring(question.among(among)).among(among)

    @property
    def reranked_by(self) -> list[str]:
        """Name what was asked for to order the best hits anew, which no one request does."""
        return [] if self.reordering.tuned else [reranker.name for reranker in self.reordering.members]

    def _check_one_request(self) -> None:
        if self.reranked_by or not self._joiner.fusion.one_request:
            ranks = "a re-ranker" if self.reranked_by else f"the fusion '{self.fusion}'"
            raise SettingsError(f"{ranks} ranks here: there is no one request", hint="--fusion absolute")
        if self._joiner.scripts and (reason := self._joiner.scripts.refused()):
            raise SettingsError(reason, hint="--fusion pipeline")

    def at_hand(self, text: str) -> bool:
        """Tell whether the body for a text takes no request: words are remembered, nothing else is due."""
        scripts = self._joiner.scripts
        due = (scripts is not None and scripts.due) or self.signals.due(text)
        return not due and self.feedback is None and self.analysis.remembers(text)

    def knows(self, text: str) -> bool:
        """Tell whether any word of a text is in the index."""
        return self.analysis.of([text])[0].known

    def run(self, queries: Iterable[Query], k: int = 100) -> Run:
        """Rank the best `k` documents for each query: query id -> document id -> score."""
        queries = list(queries)
        ranked: Run = {}
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            rankings = self._ranked([query.text for query in batch], k)
            ranked.update(zip([query.query_id for query in batch], rankings, strict=True))
        return ranked

    def legs(self, texts: Sequence[str]) -> list[CandidateLists]:
        """Give what the legs say about each query: one retrieval per leg, and what each one missed."""
        return self._joiner.candidates.find(self._questions(texts, self.settings.depth))

    def further_legs(
        self, text: str, reading: Reading, filter: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Build the queries of the legs beside the words of a text, among what matches `filter`."""
        filter = self.info.scope.both(filter)
        legs = [leg for leg in self.opened.legs.values() if not leg.of_words]
        queries = [self._asking.values_for(leg, [text], [reading])[0] for leg in legs]
        return [
            leg.query(query, self.settings.depth, filter=filter)
            for leg, query in zip(legs, queries, strict=True)
        ]

    def idf_sums(self, texts: Sequence[str]) -> list[float]:
        """Give how much the terms of each query weigh in the fields of the lexical leg."""
        scales = Scales(gain=self.opened.gain)
        return [scales.of(analysis.idf_sum).idf_sum for analysis in self.analysis.of(texts)]

    def _ranked(self, texts: Sequence[str], k: int) -> list[dict[str, float]]:
        if not self.reordering.members:
            return self._joiner.best(self._questions(texts, self._pages.depth(k)), k)
        ordered = self.reordering.of(*self.unordered(texts, self._pages.depth(k)), hurried=False)
        return [{hit.doc_id: 1 / rank for rank, hit in enumerate(hits[:k], 1)} for hits in ordered]

    def unordered(self, texts: Sequence[str], k: int) -> tuple[list[CompiledQuery], list[list[Hit]]]:
        """Give what is asked, and the best `k` hits of each, without texts, before any re-ranker saw them."""
        questions = self._questions(texts, k)
        return questions, [
            [Hit(doc, score, rank) for rank, (doc, score) in enumerate(scores.items(), 1)]
            for scores in self._joiner.best(questions, k)
        ]

    def _questions(
        self,
        texts: Sequence[str],
        depth: int,
        filter: dict[str, Any] | None = None,
        readings: Sequence[Reading] | None = None,
    ) -> list[CompiledQuery]:
        if self.own_queries:
            parsed = self.own_queries.parse_all(texts)
            read = [query.text for query in parsed]
            readings = readings if read == list(texts) else None  # they are of other texts
            questions = self._asking.questions(read, depth, readings, filter)
            triples = zip(texts, questions, parsed, strict=True)
            questions = [self.own_queries.question(*triple) for triple in triples]
        else:
            filter = self.template.within(filter) if self.template else filter
            questions = self._asking.questions(texts, depth, readings, filter)
        return [replace(question, boosts=self.boosts) for question in questions]


class OrderedList(NamedTuple):
    """Whose pages are asked, and who orders them anew."""

    pages: Pages
    reordering: Reordering

    def page(self, page: range, question: CompiledQuery, pins: Mapping[str, str]) -> Hits:
        """Give a page of the list that begins with pinned documents; the others follow by their rank."""
        if not pins:
            return self.ordered(page, question)
        pinned = self.pages.pinned(pins, question)
        taken = [{"ids": {"values": [hit.doc_id for hit in pinned]}}]
        rest = range(max(0, page.start - len(pinned)), max(0, page.stop - len(pinned)))
        others = self.ordered(rest, question.narrowed(must_not=taken)) if rest else Hits()
        moved = [hit._replace(rank=hit.rank + len(pinned)) for hit in others]
        scores = [hit.score for hit in pinned] + ([] if others.best is None else [others.best])
        return Hits([*pinned[page.start : page.stop], *moved], max(scores, default=None))

    def ordered(self, page: range, question: CompiledQuery) -> Hits:
        """Give a page by score, then by the re-rankers."""
        if not self.reordering.members:
            return self.pages.hits(page, question)
        needed = max(page.stop, self.reordering.reach)
        candidates = self.pages.hits(range(needed), question)
        [hits] = self.reordering.of([question], [candidates])
        return Hits(hits[page.start : page.stop], first_score(hit.score for hit in hits))


def asked_of(search: Search, encoder: str) -> dict[str, Any]:
    """Say what a search asks of its index with the encoder of this fingerprint: a server tells it, and
    `deploy` compares it."""
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
    """Open a search of `name` with the encoder that wrote its vectors, or the one in the given folder."""
    info = resolve(cluster, name)
    needed = encoder is not None and encodes(mode, settings or SearchSettings())
    model = encoder_for(cluster, info, encoder) if needed else None
    return Search(cluster, info, model, mode, settings=settings)
