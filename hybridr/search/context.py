"""The context of a search: what settings, mode and record make of an index, and the queries for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..cluster.connection import Cluster
from ..cluster.fields import choose_text_fields
from ..cluster.limits import clause_limit, rescore_window, result_window
from ..cluster.record import IndexInfo
from ..cluster.retrievers import Retriever
from ..cluster.retrievers.dense import as_kept
from ..cluster.retrievers.lexical import LexicalRetriever, Template, lexical_root
from ..cluster.word_fields import Searched, searched_fields, shared_similarity, word_fields
from ..encoders.contract import Encoder, Reading
from ..errors import DataError, SettingsError
from ..families import member_of
from ..indexing.representations import FAMILY as REPRESENTATIONS
from ..indexing.representations import TextReader
from ..indexing.terms.terms import Analysed, Analysis
from .calibration import (
    MINILM_SPREAD,
    PlainQuery,
    known_scale,
    known_unrelated,
    measured_gain,
    read_template,
    scale_of,
)
from .checks import (
    HYBRID,
    Feedback,
    Mode,
    check_feedback,
    checked_encoder,
    chosen_fusion,
    encodes,
    retrievers_of,
    weighted_boosts,
)
from .clauses import REASONS, NotRanked, ParsedQuery
from .client_query import ClientQueries, filter_of, without_inner_hits
from .feedback import TermFeedback
from .fusions import (
    FAMILY,
    MAX_CLAUSES,
    SPARE_CLAUSES,
    Alone,
    CompiledQuery,
    Fusion,
    Scales,
    Weighted,
    fitting,
    leaves_of,
    within,
)
from .pieces import word_queries
from .scripts import Scripts
from .settings import SearchSettings, with_tuning
from .shapes import Shapes
from .signal_set import SignalSet, signals_taken
from .signals import Place, QueryReading

SAMPLE_TEXT = "words"
AS_IT_STANDS = "--mode lexical asks the template as it stands"


@dataclass(frozen=True)
class SearchContext:
    """An index and the settings by which one search ranks it; each part is made when it is first needed.

    `settings` are those that count: what `tune` found is in them.
    """

    cluster: Cluster
    info: IndexInfo
    mode: Mode
    settings: SearchSettings
    encoder: Encoder | None
    feedback: Feedback | None = None

    @classmethod
    def checked(
        cls,
        cluster: Cluster,
        info: IndexInfo,
        mode: Mode,
        settings: SearchSettings,
        *,
        feedback: Feedback | None,
        encoder: Encoder | None,
        name: str,
    ) -> SearchContext:
        """Return the context of an index that somebody called `name`. Raise what `Search` raises."""
        settings = with_tuning(settings, info)
        needed = checked_encoder(cluster, info, name, mode, encoder) if encodes(mode, settings) else None
        check_feedback(feedback, mode, settings)
        depth = min(settings.depth, result_window(info))
        return cls(cluster, info, mode, settings.model_copy(update={"depth": depth}), needed, feedback)

    @cached_property
    def searched(self) -> list[Searched]:
        """The text fields that are searched by words: the settings', the record's, or all that fit."""
        if fields := self.settings.lexical_fields:
            return searched_fields(self.info, fields)
        names = self.info.record.lexical_fields
        if not names:
            names = word_fields(self.info, choose_text_fields(self.cluster, self.info))
        return [Searched(name) for name in names]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The names of the text fields that are searched by words."""
        return tuple(field.name for field in self.searched)

    @cached_property
    def max_clauses(self) -> int:
        """How many clauses the cluster takes in a query of hybridr."""
        return min(MAX_CLAUSES, max(1, clause_limit(self.cluster) - SPARE_CLAUSES))

    @cached_property
    def fusion_name(self) -> str | None:
        """What joins the retrievers of a hybrid search; None in other modes."""
        return chosen_fusion(self.settings, self.info) if self.mode == HYBRID else None

    @cached_property
    def fusion(self) -> Fusion:
        """The fusion; one retriever is joined with nothing."""
        kind: type[Fusion] = member_of(FAMILY, self.fusion_name) if self.fusion_name else Alone
        scripts = Scripts(self.cluster, self.info.name) if kind.needs_scripts else None
        return kind(self.settings, self.cluster.version, scripts)

    @cached_property
    def words(self) -> LexicalRetriever:
        """What asks for the words of a text, without a query of the user's own."""
        return LexicalRetriever.over(self.info, self.searched, self.cluster.version)

    @cached_property
    def plain(self) -> PlainQuery:
        """The query of the words alone."""
        return PlainQuery(self.fields, self._plain_queries)

    def _plain_queries(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        if self.words.in_pieces:
            return word_queries(self.words, texts, self.analysis.of(texts))
        return [self.words.query(text, self.settings.depth) for text in texts]

    @cached_property
    def retrievers(self) -> dict[str, Retriever]:
        """The retrievers by name. Raise DataError for one that the index lacks."""
        retrievers: dict[str, Retriever] = {}
        for kind in retrievers_of(self.mode, self.settings):
            if obstacle := kind.obstacle(self.info.record):
                raise DataError(f"no {kind.name} retriever here: {obstacle}", hint="--mode lexical")
            retriever = kind.of(self.info.record, self.fields)
            if isinstance(retriever, LexicalRetriever):
                template = None if self.fusion.rescores else self.template
                retriever = replace(
                    retriever, fields=self.words.fields, as_one=self.words.as_one, template=template
                )
            retrievers[kind.name] = retriever
        return retrievers

    @cached_property
    def scales(self) -> Scales:
        """What holds for the scores of every query, where cosines are added to other scores."""
        if not (self.encoder and self.fusion.needs_scales):
            return Scales()
        return Scales(0.0, known_scale(self.encoder), known_unrelated(self.encoder), self.gain)

    @cached_property
    def gain(self) -> float:
        """How much larger the index scores words than plain BM25: by its k1, else as measured."""
        if (similarity := shared_similarity(self.info, self.fields)) is not None:
            plain_since = self.cluster.dialect.plain_scores
            return similarity.gain(old=plain_since is None or self.cluster.version < plain_since)
        return measured_gain(self.cluster, self.info, self.plain, self.analysis)

    def own_factors(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return the factor of each retriever that knows how its scores of a query spread."""
        spreads = {name: retriever.spread_of(values[name]) for name, retriever in self.retrievers.items()}
        return {
            name: scale_of(spread, MINILM_SPREAD) for name, spread in spreads.items() if spread is not None
        }

    @cached_property
    def analysis(self) -> Analysis:
        """Reads the words of texts as the index does."""
        return Analysis(self.cluster, self.info, self.fields)

    @cached_property
    def signals(self) -> SignalSet:
        """The signals that are taken up."""
        if self.encoder is None or not self.fusion.takes_signals:
            return SignalSet({}, {})
        return signals_taken(Place(self.cluster, self.info, self.fields, self.encoder), self.settings.signals)

    @cached_property
    def boosts(self) -> Mapping[str, Weighted]:
        """What fields add by the settings."""
        return weighted_boosts(self.info, self.settings.boost) if self.fusion.takes_boosts else {}

    def boosts_of(self, formula: str | None) -> Mapping[str, Weighted]:
        """Return what a formula adds; None: that of the settings. Raise SettingsError where nothing can."""
        if formula is None:
            return self.boosts
        if formula and not self.fusion.takes_boosts:
            ranks = f"the fusion '{self.fusion_name}'" if self.fusion_name else f"mode {self.mode}"
            raise SettingsError(f"{ranks} adds no boosts", hint="leave the boost out")
        return weighted_boosts(self.info, formula)

    @cached_property
    def template(self) -> Template | None:
        """The user's own lexical query, on the scale of the plain one if a retriever asks it as it is."""
        of_words = any(kind.of_words for kind in retrievers_of(self.mode, self.settings))
        measured = self.cluster if of_words and not self.fusion.rescores else None
        return read_template(self.settings.query_template, self.info, self.plain, measured)

    @cached_property
    def own_queries(self) -> ClientQueries | None:
        """What reads the template's query for a text, to be ranked as a transparent deployment ranks it.

        Raise SettingsError for a template that is not ranked, whatever its text, by the reason that `hybridr
        deploy --way transparent --explain` tells.
        """
        if not (self.template and self.fusion.rescores):
            return None
        shapes = Shapes(self.cluster, self.info, self.plain)
        return ClientQueries(self.info, self.fields, self.analysis, shapes)

    def parse_template(self, text: str) -> ParsedQuery | NotRanked:
        """Return what the template asks for a text, or why it is not ranked."""
        assert self.template
        assert self.own_queries
        try:
            return self.own_queries.parse(self.template.filled(text), "lexical")
        except (TypeError, ValueError, AttributeError):
            return NotRanked("unreadable")

    @cached_property
    def remarks(self) -> list[str]:
        """What ranks otherwise than the settings would have it."""
        remarks = []
        if self.mode != HYBRID and self.settings.boost:
            remarks.append(f"the boost is left out: mode {self.mode} ranks by one retriever")
        if self.fusion.scripts and (refused := self.fusion.scripts.refused()):
            lost = [name for name, signal in self.signals.members.items() if signal.needs_scripts]
            without = f" without {', '.join(lost)}" if lost else ""
            remarks.append(f"ranked in several requests{without}: {refused}")
        if self.own_queries:
            parsed = self.parse_template(SAMPLE_TEXT)
            if isinstance(parsed, NotRanked):
                raise SettingsError(
                    f"{self.settings.query_template} is not ranked: {parsed.why}", hint=AS_IT_STANDS
                )
            if parsed.demand and self.settings.recall == "all":
                remarks.append(f"only what your query matches is found: {REASONS[parsed.demand]}")
        return remarks

    @cached_property
    def readers(self) -> dict[str, TextReader]:
        """What makes of texts what the retrievers of representations look for."""
        record, settings = self.info.record, self.settings
        names = [name for name, retriever in self.retrievers.items() if retriever.reads == "representation"]
        return {name: member_of(REPRESENTATIONS, name).reader(record, settings) for name in names}

    @cached_property
    def expansion(self) -> TermFeedback | None:
        """What makes the query of the lexical retriever in place of the text."""
        return TermFeedback(self.cluster, self.info, self.fields) if self.feedback else None

    def compile(
        self,
        texts: Sequence[str],
        depth: int,
        filter: dict[str, Any] | None = None,
        readings: Sequence[Reading] | None = None,
        *,
        boost: str | None = None,
        shown: bool = False,
        explained: bool = False,
    ) -> list[CompiledQuery]:
        """Compile the query of each text, the user's template among what it asks.

        `readings` are the texts as the encoder reads them, where they are there already; `boost` takes the
        place of the settings' own. Raise DataError where the template's query for a text is not ranked.
        """
        boosts = self.boosts_of(boost)
        if self.own_queries is None:
            filter = self.template.within(filter) if self.template else filter
            queries = self.compile_plain(texts, depth, filter, readings)
        else:
            parsed_queries = []
            for text in texts:
                parsed = self.parse_template(text)
                if isinstance(parsed, NotRanked):
                    raise DataError(f"'{text}' is not ranked: {parsed.why}", hint=AS_IT_STANDS)
                parsed_queries.append(parsed)
            plain_texts = [parsed.text for parsed in parsed_queries]
            readings = readings if plain_texts == list(texts) else None  # they are of other texts
            compiled = self.compile_plain(plain_texts, depth, filter, readings)
            queries = list(map(self._with_template, texts, parsed_queries, compiled))
        return [replace(query, boosts=boosts, shown=shown, explained=explained) for query in queries]

    def _with_template(self, text: str, parsed: ParsedQuery, query: CompiledQuery) -> CompiledQuery:
        """Return a query that asks the template too, which finds in place of the words.

        Neighbours are found too, unless the template demands what they would not keep.
        """
        assert self.template
        assert self.own_queries
        own = self.own_queries.own_query(without_inner_hits(self.template.filled(text)), parsed)
        filters = [part for part in (query.filter, filter_of(parsed)) if part]
        return replace(
            query.with_own(own._replace(finds=within(own.finds, query.filter))),
            filter={"bool": {"filter": filters}} if filters else None,
            words_find=query.words_find or parsed.demand is not None,
        )

    def compile_plain(
        self,
        texts: Sequence[str],
        depth: int,
        filter: dict[str, Any] | None = None,
        readings: Sequence[Reading] | None = None,
    ) -> list[CompiledQuery]:
        """Compile the query of each text by its own words and vector, with scales and signals."""
        if readings is None and self.encoder is not None:
            readings = self.signals.read(self.encoder, texts)
        columns = [self.values_for(retriever, texts, readings) for retriever in self.retrievers.values()]
        values = [dict(zip(self.retrievers, row, strict=True)) for row in zip(*columns, strict=True)]
        scales, analysed = [Scales()] * len(texts), [Analysed()] * len(texts)
        if self.fusion.needs_scales:
            analysed = self.analysis.of(texts)
            scales = [
                self.scales.of(words.idf_sum)._replace(own=self.own_factors(row))
                for words, row in zip(analysed, values, strict=True)
            ]
        signals: list[dict[str, Weighted]] = [{} for _ in texts]
        if self.signals.members and readings is not None:
            roots = [lexical_root(scale.idf_sum) for scale in scales]
            signals = self.signals.of(list(map(QueryReading, texts, analysed, readings, roots)))
            if self.fusion.scripts and self.fusion.scripts.refused():
                signals = [
                    {name: part for name, part in parts.items() if not part.scripted} for parts in signals
                ]
        filter = self.info.scope.both(filter)
        rows = zip(texts, values, analysed, scales, signals, strict=True)
        return [
            self._compiled(text, row, words, scale, parts, depth, filter)
            for text, row, words, scale, parts in rows
        ]

    def _compiled(
        self,
        text: str,
        values: Mapping[str, Any],
        words: Analysed,
        scales: Scales,
        signals: dict[str, Weighted],
        depth: int,
        filter: dict[str, Any] | None,
    ) -> CompiledQuery:
        members = self.retrievers.values()
        represented = [member for member in members if member.reads == "representation"]
        max_clauses = self.max_clauses if represented or self.signals.members else MAX_CLAUSES
        if represented or max_clauses < MAX_CLAUSES:
            used = sum(leaves_of(member.query(values[member.name], 1)) for member in represented)
            signals = fitting(signals, self.max_clauses - used - len(words.words))
        lexical = (member for member in members if isinstance(member, LexicalRetriever))
        # Neighbours of a part number or the like are other parts.
        exact = self.settings.recall == "lexical" or (words.known and is_identifier(text))
        return CompiledQuery(
            self.fusion,
            self.retrievers,
            values,
            depth,
            filter,
            scales=scales,
            signals=signals,
            text=text,
            leaves=max((member.clauses_of(len(words.words)) for member in lexical), default=0),
            words_find=exact and self.fusion.true_scores and len(self.retrievers) > 1,
            window=rescore_window(self.info),
            max_clauses=max_clauses,
        )

    def values_for(
        self, retriever: Retriever, texts: Sequence[str], readings: Sequence[Reading] | None
    ) -> Sequence[Any]:
        """Return what a retriever looks for, for each text."""
        if self.expansion and retriever.of_words:
            return self.expansion.queries(texts)
        if isinstance(retriever, LexicalRetriever) and retriever.in_pieces:
            return word_queries(retriever, texts, self.analysis.of(texts))
        if retriever.reads == "text":
            return texts
        if retriever.reads == "representation":
            return self.readers[retriever.name](texts)
        assert readings is not None
        return list(as_kept(np.stack([reading.vector for reading in readings]), self.info.record.vectors))


def is_identifier(text: str) -> bool:
    """Whether a text is one word of letters and digits, as part numbers and error codes are."""
    letters = {letter.isalpha() for letter in text if letter.isalnum()}
    return len(text.split()) == 1 and letters == {True, False}
