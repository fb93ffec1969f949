"""What judged queries say about variants: each is measured, one chosen, its gain estimated honestly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..evaluation.measures import parse_measure, values_of
from ..evaluation.significance import interval
from ..records import Qrels
from .bm25_scores import Bm25Variant
from .choice import Landscape, choose, held_out_gains
from .evidence import Asked
from .variants import Variant

Tried: TypeAlias = Variant | Bm25Variant


@dataclass(frozen=True)
class Point:
    """One variant with its mean over the judged queries."""

    variant: Tried
    mean: float


@dataclass(frozen=True)
class Choice:
    """What judged queries say. `gain` is over the default, on queries that had no part in the choice.

    `low` and `high` bound it (95 %); `applied` is False where `low` is not above zero: the default stays.
    """

    queries: int
    measure: str
    default: float
    chosen: Tried
    gain: float
    low: float
    high: float
    applied: bool
    curve: tuple[Point, ...] = field(repr=False)

    @property
    def settings(self) -> dict[str, Any] | None:
        """Give the settings to be written down; None for the default."""
        return dict(self.chosen.settings) if self.applied else None

    @property
    def best(self) -> Tried:
        """Give what is in force: the chosen one, else the default."""
        default = next(point.variant for point in self.curve if point.variant.is_default)
        return self.chosen if self.applied else default


def chosen_among(
    tried: Sequence[Tried], lying: Landscape, values: NDArray[np.float64], measure: str
) -> Choice:
    """Choose by values `(queries, variants)`, less a pull toward the default."""
    means, default = values.mean(axis=0), lying.default
    chosen, gains = choose(values, lying), held_out_gains(values, lying)
    low, high = interval(gains[:, None])
    return Choice(
        len(values),
        measure,
        float(means[default]),
        tried[chosen],
        float(gains.mean()),
        float(low[0]),
        float(high[0]),
        bool(chosen != default and low[0] > 0),
        tuple(Point(variant, float(mean)) for variant, mean in zip(tried, means, strict=True)),
    )


def measured(
    asked: Sequence[Asked], qrels: Qrels, measure: str, score: Callable[[Asked], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Measure every row that `score` gives of a query's candidates, `(rows, n)`, on every query.

    NaN is the score of what a row does not find. The answer is `(queries, rows)`.
    """
    parsed, ids = parse_measure(measure), [one.query.query_id for one in asked]
    documents, scores = [one.candidates for one in asked], [score(one) for one in asked]
    looked_at = parsed.params.get("cutoff")
    columns = []
    for row in range(len(scores[0])):
        run = {
            query_id: best_of(found, rows[row], looked_at)
            for query_id, found, rows in zip(ids, documents, scores, strict=True)
        }
        [values] = values_of(run, qrels, [parsed], ids).values()
        columns.append(list(values.values()))
    return np.array(columns).T


def best_of(documents: Sequence[str], row: NDArray[np.float64], count: int | None) -> dict[str, float]:
    """Give what a row found, or its best `count` with their ties in trec_eval's single precision."""
    found, single = ~np.isnan(row), row.astype(np.float32)
    if count and found.sum() > count:
        found &= single >= np.partition(single[found], -count)[-count]
    return {documents[int(place)]: float(row[place]) for place in np.flatnonzero(found)}
