"""Finds out how to join the legs of one index, and writes it into the index's record.

With judged queries: technique and weight, from one retrieval per leg, and only if queries that had no part
in the choice gain too. Without: the default stays, since no label-free rule for the weight held up (design
notes, findings.md). In both cases a query map of a fixed small dose is fitted, and vetoed where it does harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..cluster import Cluster, IndexInfo
from ..completion import CompletedSearch
from ..destinations import record_event, resolve
from ..encoder import Encoder
from ..errors import DataError
from ..evaluation import judged_queries
from ..folders import data_folder
from ..formats import read_query_log
from ..known_encoders import encoder_for, remember_map
from ..label_free import Comparison, objections
from ..map_fitting import fit_query_map
from ..measures import checked_qrels, parse_measure, values_of
from ..progress import Progress, silent
from ..query_map import MappedEncoder, QueryMap
from ..records import Qrels, Query
from ..retrieval import Search
from ..settings import EvaluateSettings, MapSettings, SearchSettings, TuneSettings
from ..significance import interval
from .choice import Values, choose, held_out_gains
from .harm import compare_maps
from .variants import DEPTH, Asked, Variant, ask, landscape, scores_of, variants

LEAST_JUDGED = 10


@dataclass(frozen=True)
class Point:
    """One variant with its mean over the judged queries."""

    variant: Variant
    mean: float


@dataclass(frozen=True)
class Choice:
    """What judged queries say. `gain` is over the default, on queries that had no part in the choice.

    `low` and `high` bound it (95 %); `applied` is False where it is not above zero.
    """

    queries: int
    measure: str
    default: float
    chosen: Variant
    gain: float
    low: float
    high: float
    applied: bool
    curve: tuple[Point, ...] = field(repr=False)

    @property
    def settings(self) -> dict[str, Any] | None:
        """Give the settings to be written down; None for the default."""
        return dict(self.chosen.settings) if self.applied else None


@dataclass(frozen=True)
class Map:
    """The fitted query map: where it lies, what was compared, and why it is not applied, if so."""

    fingerprint: str
    strength: float
    folder: Path | None
    rows: tuple[Comparison, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Tuning:
    """What `tune` found: `choice` for searches, `pipeline` for what `deploy` stores in the cluster."""

    index: str
    choice: Choice | None
    pipeline: Choice | None
    map: Map | None
    skipped_map: str | None

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON values."""
        found = asdict(self)
        if self.map and self.map.folder:
            found["map"]["folder"] = str(self.map.folder)
        return found


def tune(
    cluster: Cluster,
    name: str,
    judged: tuple[Sequence[Query], Qrels] | None = None,
    *,
    encoder: Path | None = None,
    settings: TuneSettings | None = None,
    map_settings: MapSettings | None = None,
    progress: Progress = silent,
) -> Tuning:
    """Tune the search of an index with vectors, and write what was found into its record.

    `judged` are queries with judgements. Nothing is written with `dry_run`. Raises DataError for fewer than
    10 judged queries or without vectors, FingerprintMismatch for another encoder.
    """
    settings = settings or TuneSettings()
    info = resolve(cluster, name)
    model = encoder_for(cluster, info, encoder, progress=progress)
    untuned = SearchSettings(tuned=False, depth=DEPTH)
    search = CompletedSearch(cluster, info.name, model, settings=untuned)
    choice: Choice | None = None
    pipeline: Choice | None = None
    if judged:
        choice, pipeline = choose_variants(search, *judged, settings.measure, progress)
    fitted, skipped = fitted_map(search, model, settings, map_settings or MapSettings(), judged, progress)
    found = Tuning(info.name, choice, pipeline, fitted, skipped)
    if not settings.dry_run:
        write_tuning(cluster, info, found)
    return found


def choose_variants(
    search: CompletedSearch, queries: Sequence[Query], qrels: Qrels, measure: str, progress: Progress
) -> tuple[Choice, Choice]:
    """Choose what ranks the judged queries best: among all that a search can do, and among pipelines."""
    qrels = checked_qrels(qrels)
    queries = judged_queries(queries, qrels)
    if len(queries) < LEAST_JUDGED:
        raise DataError(
            f"{len(queries)} judged queries; {LEAST_JUDGED} are needed to tell anything",
            hint="leave the judgements away: the default is kept",
        )
    asked, version = ask(search, queries, progress), search.cluster.version
    pipelines = variants(version, absolute=False)
    everything = variants(version, absolute=True) if search.fusion == "absolute" else pipelines
    of_all, of_pipelines = (
        chosen_among(tried, measured(asked, tried, qrels, measure, search.dense_scale), measure)
        for tried in (everything, pipelines)
    )
    return of_all, of_pipelines


def chosen_among(tried: Sequence[Variant], values: Values, measure: str) -> Choice:
    """Choose by values `(queries, variants)`, less a pull toward the default."""
    lying, means = landscape(tried), values.mean(axis=0)
    chosen, gains, default = choose(values, lying), held_out_gains(values, lying), lying.default
    low, high = interval(gains[:, None], EvaluateSettings())
    return Choice(
        len(values), measure, float(means[default]), tried[chosen], float(gains.mean()), float(low[0]),
        float(high[0]), bool(chosen != default and gains.mean() > 0),
        tuple(Point(variant, float(mean)) for variant, mean in zip(tried, means, strict=True)),
    )  # fmt: skip


def measured(
    asked: Sequence[Asked], tried: Sequence[Variant], qrels: Qrels, measure: str, dense_scale: float
) -> Values:
    """Measure every variant on every query, `(queries, variants)`."""
    parsed, ids = parse_measure(measure), [one.query.query_id for one in asked]
    columns = []
    for variant in tried:
        run = {one.query.query_id: scores_of(variant, one, dense_scale) for one in asked}
        [values] = values_of(run, qrels, [parsed], ids).values()
        columns.append(list(values.values()))
    return np.array(columns).T


def fitted_map(
    search: CompletedSearch,
    encoder: Encoder,
    settings: TuneSettings,
    map_settings: MapSettings,
    judged: tuple[Sequence[Query], Qrels] | None,
    progress: Progress,
) -> tuple[Map | None, str | None]:
    """Fit the query map and look for harm; with the reason where there is none."""
    if not settings.fit_map:
        return None, "not asked for"
    try:
        fitted = fit_query_map(search.cluster, search.info.name, encoder, map_settings, progress=progress)
    except DataError as error:
        return None, error.message
    log = read_query_log(settings.queries)
    rows = compare_maps(search, MappedEncoder(encoder, fitted), log, map_settings.seed, progress)
    reasons = objections(rows)
    if judged:
        reasons += judged_veto(search, fitted, *judged, settings.measure)
    folder = None if settings.dry_run or reasons else saved(fitted, settings.out)
    return Map(fitted.fingerprint, fitted.strength, folder, tuple(rows), tuple(reasons)), None


def judged_veto(
    search: CompletedSearch, fitted: QueryMap, queries: Sequence[Query], qrels: Qrels, measure: str
) -> list[str]:
    """Object to a map with which the judged queries rank worse."""
    assert search.encoder is not None
    queries, parsed = judged_queries(queries, checked_qrels(qrels)), parse_measure(measure)
    ids, means = [query.query_id for query in queries], []
    for model in (search.encoder, MappedEncoder(search.encoder, fitted)):
        plain = Search(search.cluster, search.info.name, model, settings=SearchSettings(tuned=False))
        [values] = values_of(plain.run(queries, DEPTH), qrels, [parsed], ids).values()
        means.append(float(np.mean(list(values.values()))))
    old, new = means
    return [f"{measure} of the judged queries falls from {old:.4f} to {new:.4f}"] if new < old else []


def saved(fitted: QueryMap, out: Path | None) -> Path:
    """Write the map, by default under its fingerprint, and remember where."""
    folder = fitted.save(out or data_folder() / "query-maps" / fitted.fingerprint[:16])
    remember_map(fitted.fingerprint, folder)
    return folder


def write_tuning(cluster: Cluster, info: IndexInfo, found: Tuning) -> None:
    """Write what a search takes up by itself into the index's record."""
    applied = found.map if found.map and not found.map.reasons else None
    record = {
        "search": found.choice.settings if found.choice else None,
        "pipeline": found.pipeline.settings if found.pipeline else None,
        "query_map": {"fingerprint": applied.fingerprint, "strength": applied.strength} if applied else None,
    }
    details = {**record, "query_map": bool(applied)}
    record_event(cluster, info.name, "tuned", {"tuning": record}, details=details)
