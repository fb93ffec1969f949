"""Measures by trec_eval's rules: what a run is worth, query by query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import ir_measures

from ..errors import DataError, SettingsError
from ..files.formats import ranked
from ..records import Qrels, Run

MEASURES = ("nDCG@10", "R@100")
LEAST_DEPTH, WHOLE_DEPTH = 100, 1000
Values = dict[str, dict[str, float]]
"""measure -> query id -> value."""


def parse_measure(name: str) -> Any:
    """Read a measure such as nDCG@10. Raises SettingsError, also for one whose package is not installed."""
    hint = "such as nDCG@10, R@100, R@1000, RR@10, AP, Judged@10"
    try:
        measure = ir_measures.parse_measure(name.strip())
    except (NameError, ValueError, SyntaxError, TypeError, AttributeError) as error:
        raise SettingsError(f"unknown measure '{name}'", hint=hint) from error
    if not ir_measures.DefaultPipeline.supports(measure):  # type: ignore[no-untyped-call]
        raise SettingsError(f"measure '{name}' cannot be computed here", hint=hint)
    return measure


def needed_depth(measures: Sequence[Any]) -> int:
    """Tell how many results the measures look at: the largest cutoff, 1000 without one, at least 100."""
    cutoffs: list[int] = [measure.params.get("cutoff", WHOLE_DEPTH) for measure in measures]
    return max(LEAST_DEPTH, *cutoffs)


def values_of(run: Run, qrels: Qrels, measures: Sequence[Any], queries: Sequence[str]) -> Values:
    """Compute measure -> query id -> value; a query without results gets 0 (`trec_eval -c`).

    Every measure sees the ranking that trec_eval makes of the scores (see `formats.ranked`); the packages
    beneath ir-measures break ties in three different ways.
    """
    values = {str(measure): dict.fromkeys(queries, 0.0) for measure in measures}
    judged = {query: qrels[query] for query in queries}
    placed = {query: places(run[query]) for query in queries if run.get(query)}
    for metric in ir_measures.iter_calc(list(measures), judged, placed):
        values[str(metric.measure)][metric.query_id] = float(metric.value)
    return values


def places(scores: Mapping[str, float]) -> dict[str, float]:
    """Replace scores by whole numbers without ties that rank the same."""
    order = ranked(scores)
    return {doc_id: float(len(order) - place) for place, (doc_id, _) in enumerate(order)}


def checked_qrels(qrels: Qrels) -> Qrels:
    """Give qrels with grades below 0 raised to 0: judged, not relevant. Raises DataError for fractions."""
    for query_id, grades in qrels.items():
        for doc_id, grade in grades.items():
            if not isinstance(grade, Integral):
                raise DataError(
                    f"query '{query_id}' gives document '{doc_id}' the grade {grade!r}: needed a whole number"
                )
    return {
        query: {doc: max(0, int(grade)) for doc, grade in grades.items()} for query, grades in qrels.items()
    }
