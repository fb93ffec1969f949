"""Tunes how the retrievers of an index are combined, and writes the result into the index's record.

With judged queries: normalisation, weight and signals, from one retrieval each, applied only if the interval
of the gain, on queries that had no part in the choice, lies above zero. With a query log alone: the weight of
vectors, by how each retriever scores the other's best hit. If the best hit by vectors scores low by words,
while the best hit by words is near by vectors, words get more weight, and vice versa. The rule was fitted to
twelve collections with two encoders; results elsewhere: docs/measured/ranking.md#by-a-query-log.

All of it can be undone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import compress, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.connection import Cluster
from ..cluster.destinations import is_destination, resolve, write_record
from ..cluster.record import IndexInfo
from ..cluster.record_parts import Tuned
from ..encoders.contract import Encoder
from ..errors import DataError, SettingsError, quantity
from ..evaluation.evaluation import checked_qrels, count_without_relevant, judged_queries, parse_measure
from ..families import load_member
from ..files.formats import read_query_log
from ..indexing.recipe import TextRecipe
from ..indexing.terms.fitting import Provision, provide_term_table
from ..records import Progress, Qrels, Query, silent
from ..search.checks import encoder_for
from ..search.context import query_whitening
from ..search.rerankers import FAMILY
from ..search.search import Search
from ..search.settings import SearchSettings
from .answering import Calibration, calibrate, measure_missing_cosines, sample_texts
from .judgement import (
    DEPTH,
    QUERIES_AT_ONCE,
    Chain,
    Choice,
    Landscape,
    Step,
    choose_variant,
    fetch_candidates,
    measure_runs,
    measure_scores,
    other_signals,
    score_all,
    variant_fusion,
    variants,
    weight_landscape,
)
from .learning import replace_values, without_memory
from .settings import MIN_JUDGED, TuneSettings

MIN_LOGGED, MAX_LOGGED = 100, 500
SLOPE, OFFSET = 23.0, 0.68
HALF_EVIDENCE = 130
"""Number of queries at which a log's evidence counts half, because it varies by chance."""
MAX_LOG_ODDS = 1.1
"""Largest change of the logarithm of the ratio of vectors to words: weights from .25 to .75."""


@dataclass(frozen=True)
class LogWeight:
    """A weight of vectors, 0 to 1, and the number of queries it was chosen by.

    `support` is the logarithm of how high words score the vectors' best hits over how high vectors score
    those of the words.
    """

    queries: int
    support: float
    dense_weight: float


def weigh_by_log(
    search: Search, encoder: Encoder, texts: Sequence[str], progress: Progress = silent
) -> LogWeight:
    """Return the weight of vectors for an index, chosen by at most 500 queries without judgements.

    Raises DataError for fewer than 100 queries with hits.
    """
    texts = texts[:: -(-len(texts) // MAX_LOGGED)] if texts else ()
    answers = fetch_candidates(
        search, [Query(str(number), text) for number, text in enumerate(texts)], progress
    )
    recipe = TextRecipe.of(search.info.record, encoder)
    documents = list(sample_texts(search.cluster, search.info, recipe))
    means = recipe.compared(texts, documents).mean(axis=1) if documents else np.zeros(len(texts))
    by_words, by_vectors = [], []
    for answer, mean in zip(answers, means, strict=True):
        words, dense = answer.lists.scores["lexical"], answer.lists.scores["dense"]
        nearness = {doc: 2 * score - 1 - mean for doc, score in dense.items()}
        if not words or max(nearness.values(), default=0.0) <= 0:
            continue
        best_word, nearest = max(words, key=words.__getitem__), max(nearness, key=nearness.__getitem__)
        by_words.append(words.get(nearest, 0.0) / words[best_word])
        by_vectors.append(nearness.get(best_word, 0.0) / nearness[nearest])
    if len(by_words) < MIN_LOGGED:
        raise DataError(
            f"{quantity(len(by_words), 'query')} of the log found something; "
            f"{MIN_LOGGED} are needed to choose a weight",
            hint="leave the log out: the default weight stays",
        )
    # support = log(words' score of the vectors' best hit / vectors' score of the words' best hit)
    support = math.log(max(np.mean(by_words), 0.01) / max(np.mean(by_vectors), 0.01))
    share = len(by_words) / (len(by_words) + HALF_EVIDENCE)
    odds = math.exp(float(np.clip(share * (SLOPE * support + OFFSET), -MAX_LOG_ODDS, MAX_LOG_ODDS)))
    return LogWeight(len(by_words), round(support, 4), round(odds / (1 + odds), 2))


WEIGHTS, DEPTHS = (0.25, 0.5, 1.0), (10, 20, 50)
MAX_DEPTH = max(DEPTHS)


@dataclass(frozen=True)
class TuneResult:
    """Result of `tune`: `choice` for searches, `pipeline` for pipelines that `deploy` stores in the cluster.

    `chain` is the choice of re-rankers, if any were named. `by_log` is what a query log chose without
    judgements; with neither, `stored` is what an earlier `tune` chose, which stays. `term_table` and
    `answers` are the results for term table and calibration; None in a dry run. Judged queries
    `without_relevant` documents count as 0 in every mean.
    """

    index: str
    choice: Choice | None
    pipeline: Choice | None
    term_table: Provision | None = None
    chain: Choice | None = None
    answers: Calibration | None = None
    without_relevant: int = 0
    by_log: LogWeight | None = None
    stored: Tuned | None = None

    @property
    def settings(self) -> dict[str, Any] | None:
        """Return the settings that searches use from now on; None for the defaults."""
        if self.by_log is not None:
            return {"fusion": "absolute", "dense_weight": self.by_log.dense_weight}
        return self.choice.settings if self.choice else None

    @property
    def record(self) -> Tuned:
        """Return what the index's record stores of the choices."""
        chain_settings = self.chain.settings if self.chain else None
        return Tuned(
            search=self.settings,
            pipeline=self.pipeline.settings if self.pipeline else None,
            **({"chain": chain_settings} if chain_settings else {}),
        )

    @property
    def in_use(self) -> list[str]:
        """Return lines on what searches use from now on (unless it was a dry run); empty for the defaults."""
        if self.stored is not None:
            parts = {"search": "search", "chain": "re-ranking", "pipeline": "deployed pipeline"}
            return [f"{name}: as before" for part, name in parts.items() if getattr(self.stored, part)]
        choices = {"search": self.choice, "re-ranking": self.chain, "deployed pipeline": self.pipeline}
        by_log = [f"search: dense weight {self.by_log.dense_weight:g}"] if self.by_log else []
        return by_log + [
            f"{name}: {choice.chosen}" for name, choice in choices.items() if choice and choice.applied
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        parts = {name: getattr(self, name) for name in ("term_table", "answers")}
        own_values = {name: value.to_json() if value else None for name, value in parts.items()}
        stored = self.stored.model_dump(exclude_unset=True) if self.stored else None
        return asdict(self) | own_values | {"stored": stored}


def tune(
    cluster: Cluster,
    name: str,
    judgements: tuple[Sequence[Query], Qrels] | None = None,
    *,
    encoder: Path | Encoder | None = None,
    settings: TuneSettings | None = None,
    search: SearchSettings | None = None,
    progress: Progress = silent,
) -> TuneResult:
    """Tune the search of an index with vectors, and write the result into its record.

    An index without a term table gets one first, so that soft terms are tuned too. `judgements` are queries
    with judgements; of `search` only the query template and the re-rankers count, whose weights and depths
    are chosen. Nothing is written with `dry_run`; a filtered alias allows only that. Raises
    ClusterError; DataError for fewer than 10 judged queries, without vectors, or if another command tuned the
    index meanwhile; FingerprintMismatch for another encoder, SettingsError for what this index cannot do.
    """
    settings, search_settings = settings or TuneSettings(), search or SearchSettings()
    info = resolve(cluster, name, whole_index=not settings.dry_run)
    encoder = encoder_for(info, encoder, progress=progress)
    table = None
    if is_destination(info) and not (settings.dry_run or info.scope):  # a table needs all documents
        table = provide_term_table(cluster, info.name, encoder, progress=progress)
        info = cluster.index_info(info.name)
        if (cosines := measure_missing_cosines(cluster, info, encoder, progress)) is not None:
            info = write_record(cluster, info.name, cosines=cosines)
    tuning = TuneResult(info.name, None, None, table)
    texts = read_query_log(settings.query_log)
    if judgements and texts:
        raise SettingsError(
            "a query log and judgements are both given; a log chooses the weight only without judgements",
            hint="leave out --query-log or the judgements",
        )
    if texts:
        others_off = {"tuned": False, "whitened": False, "signals": ("none",)}
        untuned = lexical_settings(search_settings) | others_off
        untuned_search = Search(cluster, info, encoder, settings=SearchSettings(depth=DEPTH, **untuned))
        tuning = replace(tuning, by_log=weigh_by_log(untuned_search, encoder, texts, progress))
    if judgements:
        choice, pipeline, chain = choose_all(
            cluster, info, encoder, judgements, settings, search_settings, progress
        )
        empty = count_without_relevant(judged_queries(*judgements), judgements[1])
        tuning = replace(tuning, choice=choice, pipeline=pipeline, chain=chain, without_relevant=empty)
    if not (texts or judgements):
        tuning = replace(tuning, stored=info.record.tuning)
    elif not settings.dry_run:
        record = tuning.record
        replace_values(cluster, info, "tuned", record.model_dump(exclude_unset=True), tuning=record)
    if table is None:
        return tuning
    search = without_chain(search_settings)
    calibration = calibrate(
        cluster, info.name, encoder, search=search, judgements=judgements, progress=progress
    )
    return replace(tuning, answers=calibration)


def lexical_settings(settings: SearchSettings) -> dict[str, Any]:
    """Return the settings of the lexical retriever."""
    return {name: getattr(settings, name) for name in ("query_template", "lexical_fields")}


def without_chain(settings: SearchSettings) -> SearchSettings:
    """Return the settings without the re-rankers that were tried, so that searches use the ones found."""
    return SearchSettings(
        **{name: getattr(settings, name) for name in settings.model_fields_set - {"rerank"}}
    )


def choose_all(
    cluster: Cluster,
    info: IndexInfo,
    encoder: Encoder,
    judgements: tuple[Sequence[Query], Qrels],
    settings: TuneSettings,
    search_settings: SearchSettings,
    progress: Progress,
) -> tuple[Choice, Choice, Choice | None]:
    """Return the choices of fusion for searches, of the stored pipeline, and of re-rankers if any are named.

    Raises DataError for fewer than 10 judged queries.
    """
    base = lexical_settings(search_settings)
    untuned = SearchSettings(tuned=False, depth=DEPTH, signals=("all",), **base)
    full_search = Search(cluster, info, encoder, settings=untuned)
    qrels = checked_qrels(judgements[1])
    queries = judged_queries(judgements[0], qrels)
    if len(queries) < MIN_JUDGED:
        raise DataError(
            f"{len(queries)} judged queries; at least {MIN_JUDGED} are needed",
            hint="leave the judgements out: the defaults stay",
        )
    answers = plain = fetch_candidates(full_search, queries, progress)
    if query_whitening(full_search.context):
        unwhitened = untuned.model_copy(update={"whitened": False})
        plain = fetch_candidates(Search(cluster, info, encoder, settings=unwhitened), queries, progress)
    version, scale = cluster.version, full_search.dense_scale
    signals = other_signals(full_search.signals.usual, full_search.signals.others)
    outcomes = []
    for candidates in (variants(version, signals=signals), variants(version, ["pipeline"])):
        values = np.zeros((len(answers), len(candidates)))
        scaled = np.array([variant_fusion(variant).needs_scales for variant in candidates])
        for mask, lists in ((scaled, answers), (~scaled, plain)):  # pipelines use unchanged vectors
            score = partial(score_all, list(compress(candidates, mask)), dense_scale=scale)
            if mask.any():
                values[:, mask] = measure_scores(lists, qrels, settings.measure, score)
        outcomes.append(choose_variant(candidates, weight_landscape(candidates), values, settings.measure))
    choice, pipeline = outcomes
    if not search_settings.chain:
        return choice, pipeline, None
    base |= {"tuned": False, "rerank_settings": search_settings.rerank_settings, **(choice.settings or {})}
    hybrid = without_memory(Search(cluster, info, encoder, settings=SearchSettings(**base)))
    if not hybrid.context.fusion.scoring_clause:
        return choice, pipeline, None
    chain = choose_chain(hybrid, search_settings.chain, (queries, qrels), settings.measure, progress)
    return choice, pipeline, chain


class HitGains(NamedTuple):
    """A query's hits `(n,)`, their scores, and what each re-ranker adds at weight 1 (NaN if nothing)."""

    documents: list[str]
    scores: NDArray[np.float64]
    added: dict[str, NDArray[np.float64]]


def possible_chains(names: Sequence[str]) -> list[Chain]:
    """Return the chains to try: each re-ranker, in this order, left out or at one weight and depth.

    The empty chain comes first. `n` re-rankers have 10^n chains: 3 weights times 3 depths, or none.
    """
    choices = [
        [None, *(Step(name, weight, depth) for weight, depth in product(WEIGHTS, DEPTHS))] for name in names
    ]
    return [Chain(tuple(step for step in steps if step)) for steps in product(*choices)]


def choose_chain(
    search: Search,
    names: Sequence[str],
    judgements: tuple[Sequence[Query], Qrels],
    measure: str,
    progress: Progress = silent,
) -> Choice:
    """Return the chain of re-rankers that ranks judged queries best; the empty chain if no gain is shown.

    Raises SettingsError for a re-ranker without a weight, or that cannot order hits of this index.
    """
    queries, qrels = judgements
    chains, settings = possible_chains(names), search.settings.rerank_settings
    progress("re-rank", 0, len(queries))
    gains_by_query: list[HitGains] = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        texts = [query.text for query in queries[start : start + QUERIES_AT_ONCE]]
        gains_by_query += reranker_gains(search, names, settings, texts)
        progress("re-rank", len(gains_by_query), len(queries))
    ids = [query.query_id for query in queries]
    runs = (
        {
            query_id: ordered_by_chain(gains, chain)
            for query_id, gains in zip(ids, gains_by_query, strict=True)
        }
        for chain in chains
    )
    values = measure_runs(runs, qrels, parse_measure(measure), ids)
    distances = np.array([chain.distance for chain in chains])
    without_neighbours = Landscape(distances, np.eye(len(chains)), np.zeros(len(chains)))
    return choose_variant(chains, without_neighbours, values, measure)


def reranker_gains(
    search: Search, names: Sequence[str], user_settings: Mapping[str, Any], texts: Sequence[str]
) -> list[HitGains]:
    """Return the best hits of every query with the gain by each re-ranker, as if it were the only one.

    A gain is the score after re-ranking less the one before; NaN for a hit that the re-ranker did not score.
    """
    questions, lists = search.first_stage_hits(texts, MAX_DEPTH)
    gains_by_query = [
        HitGains([hit.doc_id for hit in hits], np.array([hit.score for hit in hits]), {}) for hits in lists
    ]
    for name in names:
        fields = load_member(FAMILY, name).own_settings.model_fields
        settings = {key: value for key, value in user_settings.items() if key in fields}
        settings |= Step(name, 1.0, MAX_DEPTH).settings
        reordered = search.reranked(name, **settings).reordering.reorder(questions, lists, time_limited=False)
        for gains, hits in zip(gains_by_query, reordered, strict=True):
            hit_of = {hit.doc_id: hit for hit in hits}
            matched = [hit_of[doc] for doc in gains.documents]
            scores = [hit.score if hit.scores.get(name) is not None else np.nan for hit in matched]
            gains.added[name] = np.array(scores) - gains.scores
    return gains_by_query


def ordered_by_chain(gains: HitGains, chain: Chain) -> dict[str, float]:
    """Return a query's hits in the order by a chain of re-rankers: document -> -rank."""
    order, scores = np.arange(len(gains.documents)), gains.scores.copy()
    for step in chain.steps:
        first = order[: step.depth]
        raw = gains.added[step.name][first]
        lowest = np.nanmin(raw) if not np.isnan(raw).all() else 0.0
        scores[first] += step.weight * np.nan_to_num(raw - lowest)
        order = np.concatenate([first[np.argsort(-scores[first], kind="stable")], order[step.depth :]])
    return {gains.documents[place]: -float(rank) for rank, place in enumerate(order)}


@dataclass(frozen=True)
class Reset:
    """Result (or preview in a dry run) of undoing; `tuned` is None if there was nothing."""

    index: str
    tuned: Tuned | None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**vars(self), "tuned": self.tuned.model_dump(exclude_unset=True) if self.tuned else None}


def reset_tuning(cluster: Cluster, name: str, *, dry_run: bool = False) -> Reset:
    """Delete what was tuned, so that searches of an index use the defaults.

    A stored pipeline keeps its weights until it is deployed again. Raises NotFound, and ClusterError for a
    filtered alias.
    """
    info = resolve(cluster, name, whole_index=True)
    tuned = info.record.tuning
    if tuned is None or tuned == Tuned():
        return Reset(info.name, None)
    if not dry_run:
        replace_values(cluster, info, "untuned", tuned.model_dump(exclude_unset=True), tuning=None)
    return Reset(info.name, tuned)
