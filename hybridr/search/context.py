"""The context of a search: index, settings, mode and signals, and the parts that compile its queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from ..cluster.connection import Cluster
from ..cluster.fields import choose_text_fields
from ..cluster.mappings import clause_limit, rescore_window
from ..cluster.record import IndexInfo
from ..cluster.retrievers import Retriever
from ..cluster.retrievers.dense import to_stored_values
from ..cluster.retrievers.lexical import LexicalRetriever, Template, lexical_divisor
from ..cluster.word_fields import SearchedField, searched_fields, shared_similarity, word_fields
from ..encoders.contract import Encoder, Reading, reads_tokens
from ..encoders.derived import Whitening, whiten
from ..errors import DataError, SettingsError
from ..families import load_member, member_names
from ..indexing.representations import FAMILY as REPRESENTATIONS
from ..indexing.representations import TextReader
from ..indexing.terms.terms import Analysed, Analysis
from .calibration import (
    MINILM_SPREAD,
    PlainQuery,
    cosine_scale,
    document_probes,
    measure_gain,
    measure_template_scale,
    scale_factor,
    stored_whitening,
    template_field_probes,
)
from .checks import HYBRID, Feedback, Mode, chosen_fusion, retrievers_of, weighted_boosts
from .clauses import REASONS, NotRanked, ParsedQuery
from .client_query import UNCHANGED_TEMPLATE_HINT, Shapes, TemplateQueries
from .feedback import expand_queries
from .fusions import FAMILY as FUSIONS
from .fusions import (
    MAX_CLAUSES,
    SPARE_CLAUSES,
    CompiledQuery,
    Fusion,
    Scales,
    SingleRetriever,
    Weighted,
    cut_to_budget,
    leaf_clause_count,
)
from .pieces import word_queries
from .scripts import Scripts
from .settings import SearchSettings
from .signals import FAMILY, Place, QueryReading, Signal

SETS = ("auto", "all", "none")


@dataclass
class SignalSet:
    """The signals of one search by name; `left_out` maps unused signals to the reason.

    `unusual` names signals that most indices use by default, but this one only on request.
    """

    members: Mapping[str, Signal]
    left_out: Mapping[str, str]
    unusual: Collection[str] = ()

    @property
    def usual(self) -> tuple[str, ...]:
        """Return the names of the signals that a search uses by default."""
        usual = (name for name, signal in self.members.items() if signal.usual)
        return tuple(name for name in usual if name not in self.unusual)

    @property
    def others(self) -> tuple[str, ...]:
        """Return the names of the signals that are used only if named."""
        unlearnt = (name for name, signal in self.members.items() if not signal.learnt)
        return tuple(name for name in unlearnt if name not in self.usual)

    @property
    def reads_tokens(self) -> bool:
        """Return whether any signal needs the states of a query's tokens."""
        return any(signal.reads_tokens for signal in self.members.values())

    def read(self, encoder: Encoder, texts: Sequence[str]) -> list[Reading]:
        """Return the encoder's readings of queries, with token states if a signal needs them."""
        if self.reads_tokens and reads_tokens(encoder):
            return encoder.read_queries(texts)
        return [without_tokens(vector) for vector in encoder.encode_queries(list(texts))]

    def needs_request(self, text: str) -> bool:
        """Return whether a signal must first send a request about a text."""
        return any(signal.needs_request(text) for signal in self.members.values())

    def learnt_from(self, texts: Sequence[str]) -> set[str]:
        """Return those texts from which a signal was learnt."""
        return {text for signal in self.members.values() for text in signal.learnt_from(texts)}

    def clauses_for(self, readings: Sequence[QueryReading]) -> list[dict[str, Weighted]]:
        """Return the weighted clauses of each signal for each query."""
        for signal in self.members.values():
            if waiting := [reading for reading in readings if signal.needs_request(reading.text)]:
                signal.prepare(waiting)
        return [
            {
                name: Weighted(signal.weight, signal.clauses(reading), signal.needs_scripts)
                for name, signal in self.members.items()
            }
            for reading in readings
        ]


def choose_signals(place: Place, names: Sequence[str]) -> SignalSet:
    """Return the chosen signals: by name, `auto` for the usual ones that are possible, `all`, or `none`.

    Raises SettingsError for a named signal that this index or encoder cannot give.
    """
    obstacles = obstacles_to(place, names)
    for name in names:
        if name not in SETS and obstacles[name]:
            raise SettingsError(f"no {name} here: {obstacles[name]}", hint="--signals auto")
    members = {name: load_member(FAMILY, name)(place) for name, obstacle in obstacles.items() if not obstacle}
    left_out = {name: obstacle for name, obstacle in obstacles.items() if obstacle}
    return SignalSet(
        members, left_out, {name for name, signal in members.items() if not signal.is_usual(place)}
    )


def obstacles_to(place: Place, names: Sequence[str]) -> dict[str, str]:
    """Return for each chosen signal why it cannot be used; empty text if it can.

    A signal that must be learnt first is omitted if it cannot be used, unless it is named.
    """
    obstacles: dict[str, str] = {}
    for name in member_names(FAMILY):
        kind: type[Signal] = load_member(FAMILY, name)
        in_set = "all" in names or ("auto" in names and (kind.is_usual(place) or kind.learnt))
        if name in names or in_set:
            obstacle = kind.obstacle(place) or ""
            if name in names or not (kind.learnt and obstacle):
                obstacles[name] = obstacle
    for name in obstacles.keys() & set(names):
        replaced = load_member(FAMILY, name).replaces
        if replaced in obstacles and replaced not in names:
            obstacles[replaced] = obstacles[replaced] or f"{name} takes its place"
    return obstacles


def without_tokens(vector: np.ndarray) -> Reading:
    """Return a reading that has only the vector `(dim,)` of a text, without tokens."""
    return Reading(vector, np.zeros((0, 0), dtype=np.float32), ())


SAMPLE_TEXT = "words"


@dataclass(frozen=True)
class SearchContext:
    """An index and the settings by which a search ranks it; each part is made on first use.

    `settings` already include what `tune` found.
    """

    cluster: Cluster
    info: IndexInfo
    mode: Mode
    settings: SearchSettings
    encoder: Encoder | None
    feedback: Feedback | None = None

    @cached_property
    def searched(self) -> list[SearchedField]:
        """Return the text fields of the lexical search: from settings, record, or all suitable ones."""
        if fields := self.settings.lexical_fields:
            return searched_fields(self.info, fields)
        names = self.info.record.lexical_fields
        if not names:
            names = word_fields(self.info, choose_text_fields(self.cluster, self.info))
        return [SearchedField(name) for name in names]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Return the names of the text fields of the lexical search."""
        return tuple(field.name for field in self.searched)

    @cached_property
    def max_clauses(self) -> int:
        """Return how many clauses a query of hybridr may have in this cluster."""
        return min(MAX_CLAUSES, max(1, clause_limit(self.cluster) - SPARE_CLAUSES))

    @cached_property
    def fusion(self) -> Fusion:
        """Return the fusion of a hybrid search; `SingleRetriever` for a single retriever."""
        hybrid = self.mode == HYBRID
        kind: type[Fusion] = (
            load_member(FUSIONS, chosen_fusion(self.settings, self.info)) if hybrid else SingleRetriever
        )
        scripts = Scripts(self.cluster, self.info.name) if kind.needs_scripts else None
        return kind(self.settings, self.cluster.version, scripts)

    @cached_property
    def words(self) -> LexicalRetriever:
        """Return the retriever for the words of a text, without the user's own query template."""
        return LexicalRetriever.over(self.info, self.searched, self.cluster.version)

    @cached_property
    def plain(self) -> PlainQuery:
        """Return the plain lexical query, which sets the scale of all other scores.

        The plain query searches the fields for words alone: no template, no vector, no signal.
        """

        def queries(texts: Sequence[str]) -> list[dict[str, Any]]:
            """Return the lexical query for each text."""
            if self.words.in_pieces:
                return word_queries(self.words, texts, self.analysis.of(texts))
            return [self.words.query(text, self.settings.depth) for text in texts]

        return PlainQuery(self.fields, queries)

    @cached_property
    def retrievers(self) -> dict[str, Retriever]:
        """Return the retrievers by name. Raises DataError for one that the index cannot serve."""
        retrievers: dict[str, Retriever] = {}
        for kind in retrievers_of(self.mode, self.settings):
            if obstacle := kind.obstacle(self.info.record):
                raise DataError(
                    f"'{self.info.name}' has no {kind.name} retriever: {obstacle}", hint="--mode lexical"
                )
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
        """Return the factors that scale cosines and word scores; defaults if the fusion needs none."""
        if not (self.encoder and self.fusion.needs_scales):
            return Scales()
        cosines = self.info.record.cosines
        scale = cosine_scale(self.encoder, cosines.whitened if cosines and query_whitening(self) else cosines)
        return Scales(0.0, scale.factor, scale.unrelated, self.gain)

    @cached_property
    def gain(self) -> float:
        """Return how much higher the index scores words than plain BM25: from its k1, else measured."""
        if (similarity := shared_similarity(self.info, self.fields)) is not None:
            plain_since = self.cluster.dialect.plain_scores
            return similarity.gain(old=plain_since is None or self.cluster.version < plain_since)
        return measure_gain(self.cluster, self.info, self.plain, self.analysis)

    @cached_property
    def analysis(self) -> Analysis:
        """Return the analysis of texts by the index's searched fields."""
        return Analysis(self.cluster, self.info, self.fields)

    @cached_property
    def signals(self) -> SignalSet:
        """Return the signals that this search uses."""
        if self.encoder is None or not self.fusion.takes_signals:
            return SignalSet({}, {})
        return choose_signals(
            Place(self.cluster, self.info, self.fields, self.encoder), self.settings.signals
        )

    @cached_property
    def boosts(self) -> Mapping[str, Weighted]:
        """Return the weighted clause of each term of the settings' boost formula, such as `recency(published,
        30d):0.1`; empty if the fusion takes no boosts.
        """
        return weighted_boosts(self.info, self.settings.boost) if self.fusion.takes_boosts else {}

    def boost_clauses(self, formula: str | None) -> Mapping[str, Weighted]:
        """Return the weighted clauses of a boost formula; None takes that of the settings, "" adds no boost.

        Raises SettingsError if the fusion supports no boosts, or a field cannot boost.
        """
        if formula is None:
            return self.boosts
        if formula and not self.fusion.takes_boosts:
            ranker = f"the fusion '{self.fusion.name}'" if self.mode == HYBRID else f"mode {self.mode}"
            raise SettingsError(f"{ranker} does not support boosts", hint="leave the boost out")
        return weighted_boosts(self.info, formula)

    @cached_property
    def template(self) -> Template | None:
        """Return the user's lexical query template, if any, scaled if a retriever sends it unchanged."""
        if self.settings.query_template is None:
            return None
        template = Template.read(self.settings.query_template)
        of_words = any(kind.of_words for kind in retrievers_of(self.mode, self.settings))
        if not of_words or self.fusion.rescores:
            return template
        cluster, info, plain = self.cluster, self.info, self.plain
        probes = chain(
            template_field_probes(cluster, info, plain, template), document_probes(cluster, info, plain)
        )
        return replace(template, scale=measure_template_scale(cluster, info, probes, template) or 1)

    @cached_property
    def own_queries(self) -> TemplateQueries | None:
        """Return the template's queries if they are ranked as a transparent deployment ranks them; else None.

        Raises SettingsError for a template that is never ranked, with the reason that
        `hybridr deploy --way transparent --explain` gives.
        """
        if not (self.template and self.fusion.rescores):
            return None
        shapes = Shapes(self.cluster, self.info, self.plain)
        queries = TemplateQueries(self.info, self.fields, self.analysis, shapes, template=self.template)
        if isinstance(sample := queries.parse_text(SAMPLE_TEXT), NotRanked):
            file = self.settings.query_template
            raise SettingsError(f"{file} is not ranked: {sample.why}", hint=UNCHANGED_TEMPLATE_HINT)
        return queries

    @cached_property
    def remarks(self) -> list[str]:
        """Return remarks on differences between the ranking and the settings."""
        remarks = []
        if self.mode != HYBRID and self.settings.boost:
            remarks.append(f"the boost is not used: mode {self.mode} ranks by one retriever")
        if self.fusion.scripts and (refused := self.fusion.scripts.refused()):
            unused = [name for name, signal in self.signals.members.items() if signal.needs_scripts]
            without = f" without {', '.join(unused)}" if unused else ""
            remarks.append(f"ranked in several requests{without}: {refused}")
        sample = self.own_queries.parse_text(SAMPLE_TEXT) if self.own_queries else None
        if isinstance(sample, ParsedQuery) and sample.required_match and self.settings.recall == "all":
            remarks.append(f"only what your query matches is found: {REASONS[sample.required_match]}")
        return remarks

    @cached_property
    def readers(self) -> dict[str, TextReader]:
        """Return for each retriever of a representation the function that encodes query texts for it."""
        record, settings = self.info.record, self.settings
        names = [name for name, retriever in self.retrievers.items() if retriever.reads == "representation"]
        return {name: load_member(REPRESENTATIONS, name).reader(record, settings) for name in names}

    def compile(
        self,
        texts: Sequence[str],
        depth: int,
        filter: dict[str, Any] | None = None,
        readings: Sequence[Reading] | None = None,
        *,
        boost: str | None = None,
        display: bool = False,
        explained: bool = False,
    ) -> list[CompiledQuery]:
        """Compile the query of each text, including the user's template.

        `readings` are the encoder's readings of the texts, if known; `boost` replaces the settings' boost
        formula. Raises DataError if the template's query for a text is not ranked.
        """
        boosts = self.boost_clauses(boost)
        if self.own_queries is None:
            filter = self.template.with_conditions(filter) if self.template else filter
            queries = self.compile_plain(texts, depth, filter, readings)
        else:
            parsed = []
            for text in texts:
                if isinstance(query := self.own_queries.parse_text(text), NotRanked):
                    raise DataError(f"'{text}' is not ranked: {query.why}", hint=UNCHANGED_TEMPLATE_HINT)
                parsed.append(query)
            plain_texts = [query.text for query in parsed]
            readings = readings if plain_texts == list(texts) else None  # those are of other texts
            queries = self.compile_plain(plain_texts, depth, filter, readings)
            queries = list(map(self.own_queries.with_template, texts, parsed, queries))
        return [replace(query, boosts=boosts, display=display, explained=explained) for query in queries]

    def compile_plain(
        self,
        texts: Sequence[str],
        depth: int,
        filter: dict[str, Any] | None = None,
        readings: Sequence[Reading] | None = None,
    ) -> list[CompiledQuery]:
        """Compile the query of each text from words and vector, with scales and signals, without template."""
        if readings is None and self.encoder is not None:
            lookup = self.analysis.begin(texts) if self.fusion.needs_scales else None
            readings = self.signals.read(self.encoder, texts)
            if lookup is not None:
                lookup.result()
        columns = [
            self.retriever_values(retriever, texts, readings) for retriever in self.retrievers.values()
        ]
        values = [dict(zip(self.retrievers, row, strict=True)) for row in zip(*columns, strict=True)]
        scales, analysed = [Scales()] * len(texts), [Analysed()] * len(texts)
        if self.fusion.needs_scales:
            analysed = self.analysis.of(texts)
            scales = [
                self.scales.of(words.idf_sum)._replace(by_retriever=spread_factors(self.retrievers, row))
                for words, row in zip(analysed, values, strict=True)
            ]
        signals: list[dict[str, Weighted]] = [{} for _ in texts]
        if self.signals.members and readings is not None:
            roots = [lexical_divisor(scale.idf_sum) for scale in scales]
            signals = self.signals.clauses_for(list(map(QueryReading, texts, analysed, readings, roots)))
            if self.fusion.scripts and self.fusion.scripts.refused():
                signals = [
                    {name: part for name, part in parts.items() if not part.scripted} for parts in signals
                ]
        represented = [member for member in self.retrievers.values() if member.reads == "representation"]
        max_clauses = self.max_clauses if represented or self.signals.members else MAX_CLAUSES
        if represented or max_clauses < MAX_CLAUSES:
            for number, (row, words, parts) in enumerate(zip(values, analysed, signals, strict=True)):
                used = sum(leaf_clause_count(member.query(row[member.name], 1)) for member in represented)
                signals[number] = cut_to_budget(parts, self.max_clauses - used - len(words.words))
        filter, window = self.info.scope.combined_filter(filter), rescore_window(self.info)
        plain = CompiledQuery(
            self.fusion, self.retrievers, {}, depth, filter, window=window, max_clauses=max_clauses
        )
        several_retrievers = self.fusion.scoring_clause and len(self.retrievers) > 1
        lexical = [member for member in self.retrievers.values() if isinstance(member, LexicalRetriever)]
        return [
            replace(
                plain,
                values=row,
                scales=scale,
                signals=parts,
                text=text,
                leaf_clauses=max((member.clause_count(len(words.words)) for member in lexical), default=0),
                # The vector of a part number or error code is near those of other parts or errors.
                only_words_find=several_retrievers
                and (self.settings.recall == "lexical" or (words.known and is_identifier(text))),
            )
            for text, row, words, scale, parts in zip(texts, values, analysed, scales, signals, strict=True)
        ]

    def retriever_values(
        self, retriever: Retriever, texts: Sequence[str], readings: Sequence[Reading] | None
    ) -> Sequence[Any]:
        """Return what a retriever needs for each text: the text, a query, a vector or a representation."""
        if self.feedback and retriever.of_words:
            return expand_queries(self.cluster, self.info, self.fields, texts)
        if isinstance(retriever, LexicalRetriever) and retriever.in_pieces:
            return word_queries(retriever, texts, self.analysis.of(texts))
        if retriever.reads == "text":
            return texts
        if retriever.reads == "representation":
            return self.readers[retriever.name](texts)
        assert readings is not None
        vectors = np.stack([reading.vector for reading in readings])
        return list(to_stored_values(whiten(vectors, query_whitening(self)), self.info.record.vectors))


def query_whitening(context: SearchContext) -> Whitening | None:
    """Return the measured correction of a search's query vectors; None if they are used unchanged."""
    is_used = context.encoder and context.fusion.needs_scales and context.settings.whitened
    return stored_whitening(context.info.record) if is_used else None


def idf_sums(context: SearchContext, texts: Sequence[str]) -> list[float]:
    """Return the idf sum of each text's terms in the searched fields, with the index's gain."""
    scales = Scales(gain=context.gain)
    return [scales.of(words.idf_sum).idf_sum for words in context.analysis.of(texts)]


def spread_factors(retrievers: Mapping[str, Retriever], values: Mapping[str, Any]) -> dict[str, float]:
    """Return the scale factor of each retriever that knows the spread of its scores for a query."""
    spreads = {name: retriever.spread_of(values[name]) for name, retriever in retrievers.items()}
    return {
        name: scale_factor(spread, MINILM_SPREAD) for name, spread in spreads.items() if spread is not None
    }


def is_wordless(context: SearchContext, text: str) -> bool:
    """Return whether a text, such as an emoji, has no letter, no digit and no word of the index.

    The vector of such a text is near those of documents without content.
    """
    return not any(map(str.isalnum, text)) and not context.analysis.of([text])[0].known


def is_identifier(text: str) -> bool:
    """Return whether a text is a single word of letters and digits, such as a part number or error code."""
    if len(text.split()) != 1:
        return False
    return {letter.isalpha() for letter in text if letter.isalnum()} == {True, False}
