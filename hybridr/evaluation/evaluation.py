"""Evaluates systems on judged queries: runs, values per query, means, intervals and paired tests (`hybridr
evaluate`).

Measures follow trec_eval's rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ir_measures
import numpy as np

from ..errors import DataError, SettingsError
from ..files.formats import (
    SURROGATE,
    fits_word,
    is_encodable,
    qrels_file,
    read_qrels,
    read_queries,
    trec_order,
    write_run,
)
from ..files.local import child_path, is_file_name
from ..records import Progress, Qrels, Query, Run, silent
from .regression import MeanChange
from .significance import CONFIDENCE, RESAMPLES, Comparison, compare_systems, interval

MEASURES = ("nDCG@10", "R@100")
MIN_DEPTH, WHOLE_DEPTH = 100, 1000
Values = dict[str, dict[str, float]]
"""measure -> query id -> value."""


def parse_measure(name: str) -> Any:
    """Return the ir-measures measure of a name such as nDCG@10.

    Raises SettingsError for an unknown measure or one whose package is not installed.
    """
    hint = "such as nDCG@10, R@100, R@1000, RR@10, AP, Judged@10"
    try:
        measure = ir_measures.parse_measure(name.strip())
    except (NameError, ValueError, SyntaxError, TypeError, AttributeError) as error:
        raise SettingsError(f"unknown measure '{name}'", hint=hint) from error
    if not ir_measures.DefaultPipeline.supports(measure):  # type: ignore[no-untyped-call]
        raise SettingsError(f"measure '{name}' cannot be computed here", hint=hint)
    return measure


def needed_depth(measures: Sequence[Any]) -> int:
    """Return how many results the measures need: the largest cutoff (1000 if none), at least 100."""
    cutoffs: list[int] = [measure.params.get("cutoff", WHOLE_DEPTH) for measure in measures]
    return max(MIN_DEPTH, *cutoffs)


def query_values(run: Run, qrels: Qrels, measures: Sequence[Any], queries: Sequence[str]) -> Values:
    """Return measure -> query id -> value of a run; a query without results gets 0 (`trec_eval -c`).

    Every measure sees the ranking that trec_eval makes of the scores (`trec_order`), since the packages
    beneath ir-measures break ties in three different ways.
    """
    values = {str(measure): dict.fromkeys(queries, 0.0) for measure in measures}
    judgements = {query: qrels[query] for query in queries}
    rankings = {query: tie_free_scores(run[query]) for query in queries if run.get(query)}
    for metric in ir_measures.iter_calc(list(measures), judgements, rankings):
        values[str(metric.measure)][metric.query_id] = float(metric.value)
    return values


def tie_free_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """Return document -> whole number without ties, in the order of the scores by trec_eval's rules."""
    order = trec_order(scores)
    return {doc_id: float(len(order) - place) for place, (doc_id, _) in enumerate(order)}


def checked_qrels(qrels: Qrels) -> Qrels:
    """Return qrels with grades below 0 raised to 0 (judged, not relevant). Raises DataError for fractions."""
    for query_id, grades in qrels.items():
        for doc_id, grade in grades.items():
            if not isinstance(grade, Integral):
                raise DataError(
                    f"query '{query_id}' gives document '{doc_id}' the grade {grade!r}, not a whole number"
                )
    return {
        query: {doc: max(0, int(grade)) for doc, grade in grades.items()} for query, grades in qrels.items()
    }


SHOWN_DOCUMENTS, MAX_CHANGED_QUERIES = 10, 20  # documents of a query, queries


class System(Protocol):
    """Anything that ranks documents for queries, such as a Search."""

    def run(self, queries: Iterable[Query], k: int = 100) -> Run:
        """Return query id -> document id -> score for the `k` best documents of each query."""


class RankedDocument(NamedTuple):
    """A document in a top list with its grade; None if nobody judged it."""

    doc_id: str
    score: float
    grade: int | None


class Difference(NamedTuple):
    """A query for which two systems differ, with the values and the top lists of both."""

    query: Query
    values: tuple[float, float]
    tops: tuple[list[RankedDocument], list[RankedDocument]]


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation: means and intervals per system and measure, values per query, and runs.

    `comparisons` are against `baseline`; `remarks` say what a system could not do.
    `without_relevant` counts the queries without a relevant document, which get 0 as with trec_eval.
    `changes` are against an earlier evaluation, if one was given.
    """

    queries: int
    baseline: str
    systems: dict[str, dict[str, float]]
    intervals: dict[str, dict[str, tuple[float, float]]]
    comparisons: list[Comparison]
    per_query: dict[str, Values] = field(repr=False)
    runs: dict[str, Run] = field(repr=False)
    topics: tuple[Query, ...] = field(repr=False)
    qrels: Qrels = field(repr=False)
    remarks: tuple[str, ...] = ()
    without_relevant: int = 0
    changes: tuple[MeanChange, ...] = ()

    @property
    def falls(self) -> list[MeanChange]:
        """Return the changes against the earlier evaluation that are worse than allowed."""
        return [change for change in self.changes if change.failure]

    @property
    def measures(self) -> list[str]:
        """Return the names of the measures, the leading one first."""
        return list(self.systems[self.baseline])

    def table(self, *, bounds: bool = False) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows of the means, with the leading measure's change and its p-value after Holm.

        With `bounds` every mean is a text with its interval: `0.6826 [0.6371, 0.7266]`.
        """
        lead = self.measures[0]
        versus = {c.system: c for c in self.comparisons if c.measure == lead}
        rows = []
        for name, means in self.systems.items():
            change = f"{versus[name].difference:+.4f} (p {versus[name].p_holm:.2g})" if name in versus else ""
            cells: list[Any] = list(means.values())
            if bounds:
                bounded = zip(cells, self.intervals[name].values(), strict=True)
                cells = [f"{mean:.4f} [{low:.4f}, {high:.4f}]" for mean, (low, high) in bounded]
            rows.append([name, *cells, change])
        return ["system", *self.measures, f"{lead} against {self.baseline}"], rows

    def comparison_table(self) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows of the comparisons with the baseline: p-values of both tests after Holm."""
        share = f"{CONFIDENCE:.0%} interval"
        columns = ["system", "measure", "difference", share, "p (t)", "p (randomisation)", "wins/ties/losses"]
        rows = [
            [
                c.system,
                c.measure,
                f"{c.difference:+.4f}",
                f"[{c.low:+.4f}, {c.high:+.4f}]",
                f"{c.p_holm:.2g}",
                f"{c.p_randomisation_holm:.2g}",
                f"{c.wins}/{c.ties}/{c.losses}",
            ]
            for c in self.comparisons
        ]
        return columns, rows

    @property
    def pair(self) -> tuple[str, str]:
        """Return the names of the baseline and of the best other system."""
        others = [name for name in self.systems if name != self.baseline]
        best = max(others, key=lambda name: self.systems[name][self.measures[0]], default=self.baseline)
        return self.baseline, best

    def differences(self) -> list[Difference]:
        """Return the queries where the systems of `pair` differ most by the leading measure, in order."""
        first, second = (self.per_query[name][self.measures[0]] for name in self.pair)
        changed = [query for query in self.topics if first[query.query_id] != second[query.query_id]]
        changed.sort(key=lambda query: -abs(first[query.query_id] - second[query.query_id]))
        differences = []
        for query in changed[:MAX_CHANGED_QUERIES]:
            grades, tops = self.qrels[query.query_id], []
            for system in self.pair:
                order = trec_order(self.runs[system].get(query.query_id, {}))[:SHOWN_DOCUMENTS]
                tops.append([RankedDocument(doc_id, score, grades.get(doc_id)) for doc_id, score in order])
            values = first[query.query_id], second[query.query_id]
            differences.append(Difference(query, values, (tops[0], tops[1])))
        return differences

    def to_json(self) -> dict[str, Any]:
        """Return everything except the runs' scores as JSON-compatible values."""
        return {
            "queries": self.queries,
            "without_relevant": self.without_relevant,
            "baseline": self.baseline,
            "systems": self.systems,
            "intervals": self.intervals,
            "comparisons": [vars(comparison) for comparison in self.comparisons],
            "per_query": self.per_query,
            "remarks": list(self.remarks),
            "changes": [vars(change) for change in self.changes],
        }

    def write_runs(self, folder: Path) -> dict[str, str]:
        """Write a TREC run file per system, without `unwritable` documents; return system -> path."""
        for name in self.runs:
            if not is_file_name(name):
                raise SettingsError(f"the system name '{name}' cannot be a file name")
        for name, run in self.runs.items():
            write_run(child_path(folder, f"{name}.trec"), run, name)
        return {name: str(child_path(folder, f"{name}.trec")) for name in self.runs}

    def unwritable(self) -> set[str]:
        """Return the ids of documents that no run file can hold, because they contain blanks."""
        lists = chain.from_iterable(run.values() for run in self.runs.values())
        return {doc_id for doc_id in chain.from_iterable(lists) if not fits_word(doc_id)}


def evaluate(
    systems: Mapping[str, System | Run],
    queries: Sequence[Query],
    qrels: Qrels,
    measures: Sequence[str] = MEASURES,
    *,
    baseline: str | None = None,
    resamples: int = RESAMPLES,
    progress: Progress = silent,
) -> Evaluation:
    """Measure every system on the judged queries, and test each against `baseline` (default: the first).

    `measures` are spelled as in ir-measures and computed by trec_eval's rules; a query without results counts
    as 0, grades below 0 as 0. Intervals and the randomisation test draw `resamples` times. Raises
    SettingsError for an unknown measure or baseline, DataError for bad grades, repeated ids, queries without
    text, and qrels that share nothing with a run.
    """
    if not systems:
        raise SettingsError("no system to evaluate")
    if baseline is not None and baseline not in systems:
        raise SettingsError(f"the baseline '{baseline}' is not among the systems {', '.join(systems)}")
    baseline = baseline or next(iter(systems))
    parsed = [parse_measure(name) for name in dict.fromkeys(measures)]
    if not parsed:
        raise SettingsError("no measure", hint="such as nDCG@10")
    qrels = checked_qrels(qrels)
    with_judgements = judged_queries(queries, qrels)
    runs: dict[str, Run] = {}
    progress("evaluate", 0, len(systems))
    for name, system in systems.items():
        if isinstance(system, Mapping):
            runs[name] = dict(system)
        elif empty := [query.query_id for query in with_judgements if not query.text.strip()]:
            raise DataError(f"query '{empty[0]}' has no text for '{name}' to search with")
        else:
            runs[name] = system.run(with_judgements, needed_depth(parsed))
        progress("evaluate", len(runs), len(systems))
    require_encodable_ids(qrels)
    for run in runs.values():
        require_encodable_ids(run)
    require_overlap(runs, qrels)
    ids = [query.query_id for query in with_judgements]
    per_query = {name: query_values(run, qrels, parsed, ids) for name, run in runs.items()}
    empty_count = count_without_relevant(with_judgements, qrels)
    return Evaluation(
        len(with_judgements),
        baseline,
        {
            name: {measure: float(np.mean(list(of_query.values()))) for measure, of_query in values.items()}
            for name, values in per_query.items()
        },
        intervals(per_query, resamples),
        compare_systems(per_query, baseline, resamples),
        per_query,
        runs,
        tuple(with_judgements),
        qrels,
        unanswered_remarks(empty_count, len(with_judgements)),
        empty_count,
    )


def count_without_relevant(queries: Sequence[Query], qrels: Qrels) -> int:
    """Count the judged queries without a relevant document."""
    return sum(not any(grade > 0 for grade in qrels[query.query_id].values()) for query in queries)


def unanswered_remarks(empty: int, queries: int) -> tuple[str, ...]:
    """Return the remark about judged queries without a relevant document, if there are any."""
    if not empty:
        return ()
    remark = (
        f"{empty:,} of {queries:,} judged queries have no relevant document: they count as 0 in every mean"
    )
    share = queries / max(queries - empty, 1)
    return (f"{remark}, as with trec_eval; without them each mean is {share:.2f} times as large",)


def judged_queries(queries: Sequence[Query], qrels: Qrels) -> list[Query]:
    """Return the queries that the qrels judge. Raises DataError if none is left or an id is repeated."""
    with_judgements = [query for query in queries if query.query_id in qrels]
    ids: set[str] = set()
    for query in with_judgements:
        if query.query_id in ids:
            raise DataError(f"query id '{query.query_id}' occurs twice")
        ids.add(query.query_id)
    if not with_judgements:
        examples = ", ".join(
            f"'{query_id}'" for query_id in [*(q.query_id for q in queries[:1]), *list(qrels)[:1]]
        )
        raise DataError(f"no query is judged: do queries and qrels belong together? ids such as {examples}")
    return with_judgements


def require_encodable_ids(values: Mapping[str, Mapping[str, float]]) -> None:
    """Raise DataError for an id with a lone surrogate, at which the measuring package would crash."""
    for name in chain(values, *values.values()):
        if not name.isascii() and not is_encodable({"id": name}):
            raise DataError(f"the id {name!a} {SURROGATE}")


def require_overlap(runs: Mapping[str, Run], qrels: Qrels) -> None:
    """Raise DataError if a run or all runs share no query or document with the qrels."""
    for name, run in runs.items():
        if run and not run.keys() & qrels.keys():
            raise DataError(
                f"no query of the run '{name}' is judged: it has ids such as '{next(iter(run))}', "
                f"the qrels '{next(iter(qrels))}'",
                hint="give the qrels of this run's queries (--split, --qrels)",
            )
    documents = {doc for grades in qrels.values() for doc in grades}
    if not any(doc in documents for run in runs.values() for scores in run.values() for doc in scores):
        raise DataError(
            "no judged document was found by any system: do index and qrels belong together?",
            hint="hybridr load FOLDER --index NAME   loads the collection that the qrels judge",
        )


def intervals(per_query: Mapping[str, Values], resamples: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Return system -> measure -> (low, high), the confidence interval of each mean.

    All systems must have the same queries in the same order.
    """
    pairs = [(name, measure) for name, values in per_query.items() for measure in values]
    columns = [list(per_query[name][measure].values()) for name, measure in pairs]
    lows, highs = interval(np.column_stack(columns), resamples)
    bounds: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in per_query}
    for (name, measure), low, high in zip(pairs, lows, highs, strict=True):
        bounds[name][measure] = (float(low), float(high))
    return bounds


class JudgedQueries(NamedTuple):
    """Source of queries and judgements: a split of a BEIR folder, or with `qrels` another qrels file.

    Without the folder queries have no text, which is enough to measure runs.
    """

    beir: Path | None = None
    split: str = "test"
    qrels: Path | None = None

    def read(self, *, with_texts: bool = False) -> tuple[list[Query], Qrels]:
        """Read queries and qrels. Raises SettingsError if judgements, or needed texts, are missing, DataError
        with file and line for malformed content.
        """
        if self.qrels is None and self.beir is None:
            raise SettingsError("no judgements", hint="--qrels FILE, or --beir FOLDER")
        if with_texts and self.beir is None:
            raise SettingsError("judgements without queries", hint="--beir FOLDER has the queries' texts")
        judgements = read_qrels(self.qrels or qrels_file(self.beir or Path(), self.split))
        if self.beir is None:
            return [Query(name, "") for name in judgements], judgements
        return read_queries(self.beir, judgements), judgements

    def read_if_given(self) -> tuple[list[Query], Qrels] | None:
        """Read queries with texts and qrels; None if neither folder nor file was named."""
        return self.read(with_texts=True) if self.beir or self.qrels else None
