"""Topics and systems in, runs, per-query values, means and paired tests out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ir_measures
import numpy as np
from scipy import stats

from .errors import DataError, SettingsError
from .formats import write_run
from .progress import Progress, silent
from .records import Qrels, Query, Run

MEASURES = ("nDCG@10", "R@100")
DEPTH = 100


class System(Protocol):
    """Anything that ranks documents for queries, such as a Search."""

    def run(self, queries: Iterable[Query], k: int = 100) -> Run:
        """Give document scores per query."""


@dataclass(frozen=True)
class Comparison:
    """One system against the baseline, paired by query: two-sided t-test, wins, ties and losses."""

    system: str
    baseline: str
    measure: str
    difference: float
    p_value: float
    wins: int
    ties: int
    losses: int


@dataclass(frozen=True)
class Evaluation:
    """Means per system and measure, the values behind them, and the runs."""

    queries: int
    systems: dict[str, dict[str, float]]
    comparisons: list[Comparison]
    per_query: dict[str, dict[str, dict[str, float]]] = field(repr=False)
    runs: dict[str, Run] = field(repr=False)

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Give the columns and rows of the table of means; the first system is the baseline."""
        measures = list(next(iter(self.systems.values())))
        rows = []
        for name, means in self.systems.items():
            row: list[Any] = [name, *(means[measure] for measure in measures)]
            versus = [c for c in self.comparisons if c.system == name and c.measure == measures[0]]
            row += [f"{c.difference:+.4f} (p {c.p_value:.2g})" for c in versus] or [""]
            rows.append(row)
        baseline = next(iter(self.systems))
        return ["system", *measures, f"{measures[0]} against {baseline}"], rows

    def to_json(self) -> dict[str, Any]:
        """Give everything but the runs' scores as JSON values."""
        return {
            "queries": self.queries,
            "systems": self.systems,
            "comparisons": [vars(comparison) for comparison in self.comparisons],
            "per_query": self.per_query,
        }

    def write_runs(self, folder: Path) -> dict[str, str]:
        """Write one TREC run per system and give the paths by system."""
        for name, run in self.runs.items():
            write_run(folder / f"{name}.trec", run, name)
        return {name: str(folder / f"{name}.trec") for name in self.runs}


def evaluate(
    systems: Mapping[str, System | Run],
    queries: Sequence[Query],
    qrels: Qrels,
    measures: Sequence[str] = MEASURES,
    *,
    progress: Progress = silent,
) -> Evaluation:
    """Measure every system on the judged queries; the first is the baseline of the paired tests.

    `measures` are spelled as in ir-measures, computed by trec_eval's rules; a query without results counts
    as 0. Raises SettingsError for an unknown measure, DataError when no document of the qrels is found.
    """
    if not systems:
        raise SettingsError("no system to evaluate")
    parsed = [parse_measure(name) for name in measures]
    runs: dict[str, Run] = {}
    progress("evaluate", 0, len(systems))
    for name, system in systems.items():
        runs[name] = dict(system) if isinstance(system, Mapping) else system.run(queries, DEPTH)
        progress("evaluate", len(runs), len(systems))
    check_overlap(runs, qrels)
    judged = [query.query_id for query in queries if query.query_id in qrels]
    per_query = {name: values_of(run, qrels, parsed, judged) for name, run in runs.items()}
    means = {
        name: {measure: float(np.mean(list(values.values()))) for measure, values in found.items()}
        for name, found in per_query.items()
    }
    return Evaluation(len(judged), means, comparisons(per_query), per_query, runs)


def parse_measure(name: str) -> Any:
    """Read a measure such as nDCG@10. Raises SettingsError."""
    try:
        return ir_measures.parse_measure(name)
    except (NameError, ValueError, SyntaxError) as error:
        raise SettingsError(f"unknown measure '{name}'", hint="such as nDCG@10, R@100, RR@10, AP") from error


def check_overlap(runs: Mapping[str, Run], qrels: Qrels) -> None:
    """Refuse to report zeros that come from qrels of another collection."""
    judged = {doc for grades in qrels.values() for doc in grades}
    if not any(doc in judged for run in runs.values() for scores in run.values() for doc in scores):
        raise DataError(
            "no judged document was found by any system: do index and qrels belong together?",
            hint="hybridr load FOLDER --index NAME   loads the collection that the qrels judge",
        )


def values_of(
    run: Run, qrels: Qrels, measures: Sequence[Any], queries: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Compute measure -> query id -> value; a query without results gets 0."""
    values = {str(measure): dict.fromkeys(queries, 0.0) for measure in measures}
    judged = {query: qrels[query] for query in queries}
    for metric in ir_measures.iter_calc(list(measures), judged, run):
        values[str(metric.measure)][metric.query_id] = float(metric.value)
    return values


def comparisons(per_query: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Comparison]:
    """Compare every system with the first, measure by measure."""
    baseline, *others = per_query
    return [
        compare(name, baseline, measure, per_query[name][measure], per_query[baseline][measure])
        for name in others
        for measure in per_query[baseline]
    ]


def compare(
    system: str, baseline: str, measure: str, ours: Mapping[str, float], theirs: Mapping[str, float]
) -> Comparison:
    """Test the paired differences; p is 1 when there are none, or only one query."""
    differences = np.array([ours[query] - theirs[query] for query in theirs])
    testable = len(differences) > 1 and differences.any()
    p_value = float(stats.ttest_1samp(differences, 0.0).pvalue) if testable else 1.0
    ties = int(np.sum(np.abs(differences) < 1e-9))
    wins = int(np.sum(differences >= 1e-9))
    losses = len(differences) - wins - ties
    return Comparison(system, baseline, measure, float(differences.mean()), p_value, wins, ties, losses)
