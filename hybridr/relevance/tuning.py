"""Finds out how to join the legs of one index, and writes it into the index's record.

With judged queries: technique, weight and signals, from one retrieval per leg, and only where the interval of
the gain, on queries that had no part in the choice, lies above zero. Without: the default stays, since no
label-free rule for the weight held up (design notes, findings.md). All of it can be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.destinations import is_destination, record_event, resolve, resolve_whole
from ..cluster.record import IndexInfo
from ..cluster.record_parts import Tuned
from ..encoders.contract import Encoder
from ..errors import DataError
from ..evaluation.evaluation import checked_qrels, judged_queries, without_relevant
from ..indexing.terms.provision import Provision, provide_term_table
from ..records import Progress, Qrels, Query, silent
from ..search.encoders import encoder_for
from ..search.search import Search
from ..search.settings import SearchSettings
from .answering import Calibration, calibrate
from .chains import choose_chain
from .evidence import DEPTH, ask
from .judgement import Choice, choice_of, other_signals, variants
from .rehearsal import without_memory
from .settings import LEAST_JUDGED, TuneSettings


@dataclass(frozen=True)
class TuneResult:
    """What `tune` found: `choice` for searches, `pipeline` for what `deploy` stores in the cluster.

    `chain` is of the re-rankers that were asked for, behind searches. `term_table` is what became of the
    table for soft terms, and `answers` of what scores mean; None in a dry run. Judged queries
    `without_relevant` documents count as 0 in every mean.
    """

    index: str
    choice: Choice | None
    pipeline: Choice | None
    term_table: Provision | None = None
    chain: Choice | None = None
    answers: Calibration | None = None
    without_relevant: int = 0

    @property
    def in_use(self) -> list[str]:
        """Name what of it searches use from now on, unless it was a dry run; empty: the defaults."""
        choices = {"search": self.choice, "re-ranking": self.chain, "deployed pipeline": self.pipeline}
        return [f"{name}: {choice.chosen}" for name, choice in choices.items() if choice and choice.applied]

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON values."""
        own = {name: getattr(self, name) for name in ("term_table", "answers")}
        return asdict(self) | {name: value.to_json() if value else None for name, value in own.items()}


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
    """Tune the search of an index with vectors, and write what was found into its record.

    One made before there were term tables gets one first, so that soft terms are tuned too.
    `judged` are queries with judgements; of `search` count the query template, and the re-rankers whose
    weights and depths are to be found. Nothing is written with `dry_run`, and through an alias that shows a
    part of the index only so: Raises ClusterError. Raises DataError for fewer than 10 judged queries or
    without vectors, FingerprintMismatch for another encoder, SettingsError for what this index cannot do.
    """
    settings, search_settings = settings or TuneSettings(), search or SearchSettings()
    info = resolve(cluster, name) if settings.dry_run else resolve_whole(cluster, name)
    if encoder is None or isinstance(encoder, Path):
        encoder = encoder_for(cluster, info, encoder, progress=progress)
    table = None
    if is_destination(info) and not (settings.dry_run or info.scope):  # a table is made of all documents
        table = provide_term_table(cluster, info.name, encoder, progress=progress)
        info = cluster.index_info(info.name)
    tuning = TuneResult(info.name, None, None, table)
    if judgements:
        choice, pipeline, chain = choices(
            cluster, info, encoder, judgements, settings, search_settings, progress
        )
        empty = without_relevant(judged_queries(*judgements), judgements[1])
        tuning = replace(tuning, choice=choice, pipeline=pipeline, chain=chain, without_relevant=empty)
    if not settings.dry_run:
        write_tuning(cluster, info, tuning)
    if table is None:
        return tuning
    search = without_chain(search_settings)
    calibration = calibrate(
        cluster, info.name, encoder, search=search, judgements=judgements, progress=progress
    )
    return replace(tuning, answers=calibration)


def without_chain(settings: SearchSettings) -> SearchSettings:
    """Leave out the re-rankers that were tried: searches take those that were found."""
    return SearchSettings(
        **{name: getattr(settings, name) for name in settings.model_fields_set - {"rerank"}}
    )


def choices(
    cluster: Cluster,
    info: IndexInfo,
    encoder: Encoder,
    judgements: tuple[Sequence[Query], Qrels],
    settings: TuneSettings,
    search_settings: SearchSettings,
    progress: Progress,
) -> tuple[Choice, Choice, Choice | None]:
    """Choose how legs are joined, and then what re-ranks their best hits, where that was asked for."""
    own: dict[str, Any] = {
        name: getattr(search_settings, name) for name in ("query_template", "lexical_fields")
    }
    untuned = SearchSettings(tuned=False, depth=DEPTH, signals=("all",), **own)
    asking = Search(cluster, info, encoder, settings=untuned)
    usable = enough_judged(*judgements)
    choice, pipeline = choose_by(asking, *usable, settings, progress)
    if not search_settings.chain:
        return choice, pipeline, None
    own |= {"tuned": False, "rerank_settings": search_settings.rerank_settings, **(choice.settings or {})}
    hybrid = without_memory(Search(cluster, info, encoder, settings=SearchSettings(**own)))
    if not hybrid.opened.joining.true_scores:
        return choice, pipeline, None
    return choice, pipeline, choose_chain(hybrid, search_settings.chain, usable, settings.measure, progress)


def enough_judged(queries: Sequence[Query], qrels: Qrels) -> tuple[list[Query], Qrels]:
    """Give the judged queries with their grades. Raises DataError for fewer than 10."""
    qrels = checked_qrels(qrels)
    with_judgements = judged_queries(queries, qrels)
    if len(with_judgements) < LEAST_JUDGED:
        raise DataError(
            f"{len(with_judgements)} judged queries; {LEAST_JUDGED} are needed to tell anything",
            hint="leave the judgements away: the default is kept",
        )
    return with_judgements, qrels


def choose_by(
    search: Search,
    queries: Sequence[Query],
    qrels: Qrels,
    settings: TuneSettings,
    progress: Progress,
) -> tuple[Choice, Choice]:
    """Choose what ranks the judged queries best, of searches and of stored pipelines."""
    answers = ask(search, queries, progress)
    version, record, scale = search.cluster.version, search.info.record, search.dense_scale
    signals = other_signals(search.signals.usual, search.signals.others)
    everything = variants(version, record, signals=signals)
    pipelines = variants(version, record, ["pipeline"])
    of_all, of_pipelines = (
        choice_of(tried, answers, qrels, settings.measure, scale) for tried in (everything, pipelines)
    )
    return of_all, of_pipelines


def write_tuning(cluster: Cluster, info: IndexInfo, tuning: TuneResult) -> None:
    """Write what a search takes up by itself into the index's record."""
    record = Tuned(
        search=tuning.choice.settings if tuning.choice else None,
        pipeline=tuning.pipeline.settings if tuning.pipeline else None,
        **({"chain": chain} if (chain := tuning.chain and tuning.chain.settings) else {}),
    )
    record_event(cluster, info.name, "tuned", record.model_dump(exclude_unset=True), tuning=record)


@dataclass(frozen=True)
class Reset:
    """What was, or in a dry run would be, taken back; `tuned` None where there was nothing."""

    index: str
    tuned: Tuned | None

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON values."""
        return {**vars(self), "tuned": self.tuned.model_dump(exclude_unset=True) if self.tuned else None}


def reset_tuning(cluster: Cluster, name: str, *, dry_run: bool = False) -> Reset:
    """Have searches of an index rank by the defaults again.

    A stored pipeline keeps its weights until it is deployed anew. Raises NotFound, and ClusterError when the
    name shows a part of the index.
    """
    info = resolve_whole(cluster, name)
    tuned = info.record.tuning
    if tuned is None or tuned == Tuned():
        return Reset(info.name, None)
    if not dry_run:
        record_event(cluster, info.name, "untuned", tuned.model_dump(exclude_unset=True), tuning=None)
    return Reset(info.name, tuned)
