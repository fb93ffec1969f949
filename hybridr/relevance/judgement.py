"""What judged queries say about variants: each is measured, one chosen, its gain estimated honestly.

A variant is a way to join the legs; its scores come from one retrieval a leg. From few queries it is chosen
with a pull toward the default, and a weight together with the weights near it, since neighbours differ by
chance more than by worth; the mean of the likely weights is taken, not the likeliest, since the peak of a
few queries wanders. Without pull and neighbours a few queries choose noise: benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..cluster.record import Record
from ..errors import SettingsError
from ..evaluation.evaluation import parse_measure, values_of
from ..evaluation.significance import interval
from ..families import member_of, names_of
from ..records import Qrels, Run
from ..search.fusions import FAMILY, CandidateLists, Fusion, Scales, Scores
from ..search.settings import SearchSettings
from .evidence import Asked

PULL = 5.0
FOLDS, REPEATS, SPLIT_SEED = 10, 5, 13
"""A measure, `(queries, variants)`."""


class Landscape(NamedTuple):
    """How variants lie to each other: distances from the default `(variants,)`, how much each one's
    neighbours count `(variants, variants)`, rows that sum to 1, and where each lies among them `(variants,)`.

    Neighbours are of one kind, and what has none is a kind of its own.
    """

    distances: NDArray[np.float64]
    nearness: NDArray[np.float64]
    positions: NDArray[np.float64]

    @classmethod
    def alone(cls, distances: NDArray[np.float64]) -> Landscape:
        """Give variants none of which says anything of another."""
        return cls(distances, np.eye(len(distances)), np.zeros(len(distances)))

    @property
    def default(self) -> int:
        """Give the position of the default."""
        return int(np.argmin(self.distances))


def choose(values: NDArray[np.float64], landscape: Landscape) -> int:
    """Give the middle of the likeliest kind.

    A variant is as likely as e to n times the mean among its neighbours, less `PULL` / n times its distance.
    """
    smooth = landscape.nearness @ values.mean(axis=0)
    worth = len(values) * smooth - PULL * landscape.distances
    likely, same = np.exp(worth - worth.max()), landscape.nearness > 0
    kind = np.flatnonzero(same[np.argmax(same @ likely / same.sum(axis=1))])
    middle = np.average(landscape.positions[kind], weights=likely[kind])
    return int(kind[np.argmin(np.abs(landscape.positions[kind] - middle))])


def held_out_gains(values: NDArray[np.float64], landscape: Landscape) -> NDArray[np.float64]:
    """Estimate what choosing gains over the default on queries that had no part in the choice, `(queries,)`.

    Nested cross-validation: each fold is judged by the choice of the others, five times over, averaged.
    """
    random = np.random.default_rng(SPLIT_SEED)
    gains = np.zeros(len(values))
    for _ in range(REPEATS):
        for fold in folds(len(values), random):
            kept_rows = np.setdiff1d(np.arange(len(values)), fold)
            chosen = choose(values[kept_rows], landscape)
            gains[fold] += values[fold, chosen] - values[fold, landscape.default]
    return gains / REPEATS


def folds(count: int, random: np.random.Generator) -> Sequence[NDArray[np.int64]]:
    """Split the positions of `count` queries at random into at most ten folds."""
    return np.array_split(random.permutation(count), min(FOLDS, count))


ANOTHER_TECHNIQUE = 0.5  # farther from the default than any weight
ADDITION = 0.05  # other signals
STEEPNESS = 1.5  # of the way to another weight
NEIGHBOURHOOD = 0.15  # of weights: the deviation of a bell
DEFAULTS = SearchSettings()
ZERO: NDArray[np.float64] = np.zeros(())
ANY = (99, 0, 0)  # what a fusion computes here is the same for every version
Sides: TypeAlias = Mapping[str, NDArray[np.float64]]
"""By leg what it adds to the score of each candidate, at full weight, `(n,)`; NaN: in no list."""


def distance(same_technique: bool, weight: float) -> float:
    """Tell how far technique and weight are from the default."""
    away = STEEPNESS * (weight - DEFAULTS.dense_weight) ** 2
    return away if same_technique else ANOTHER_TECHNIQUE + away


class Candidate(Protocol):
    """What is chosen among: settings that differ from the default, and how far they are from it."""

    @property
    def settings(self) -> dict[str, Any]:
        """Give what is written down."""

    @property
    def distance(self) -> float:
        """Tell how far from the default, at least 0."""

    @property
    def is_default(self) -> bool:
        """Tell whether this is the default."""


class Variant(NamedTuple):
    """Search settings that differ from the default, and how far they are from it, at least 0."""

    settings: dict[str, Any]
    distance: float

    @property
    def is_default(self) -> bool:
        """Tell whether this is the default."""
        return self.distance == 0

    @property
    def technique(self) -> str:
        """Name how scores are brought to one scale."""
        return str(self.settings.get("normalization", self.settings["fusion"]))

    @property
    def kind(self) -> str:
        """Name all but the weight, for people."""
        if "signals" not in self.settings:
            return self.technique
        return f"{self.technique}, signals {' '.join(self.settings['signals'])}"

    def __str__(self) -> str:
        """Name the variant for people."""
        return f"{self.kind}, dense weight {self.settings['dense_weight']:g}"


def variants(
    version: tuple[int, int, int],
    record: Record,
    fusions: Sequence[str] | None = None,
    *,
    signals: Sequence[tuple[str, ...]] = (),
) -> list[Variant]:
    """List what is tried of these fusions (None: all) on an index with this record, the default among it.

    Every grid is tried with the usual signals, and with each of `signals` where the fusion takes any.
    """
    chosen = [member_of(FAMILY, name) for name in fusions or names_of(FAMILY)]
    members = sorted(chosen, key=lambda name: name.turn)
    grids = [grid for member in members for grid in member.grids]
    default = grids[0].name
    more: list[dict[str, Any]] = [{}, *({"signals": name} for name in signals)]
    variants = [
        Variant(
            grid.settings | added | {"dense_weight": weight},
            distance(grid.name == default, weight) + (ADDITION if added else 0.0),
        )
        for added in more
        for grid in grids
        for weight in grid.weights
    ]
    return [variant for variant in variants if is_possible(variant, record, version)]


def other_signals(usual: Sequence[str], others: Sequence[str]) -> list[tuple[str, ...]]:
    """List what is tried instead of the usual signals: none, all but one, each of the others besides."""
    fewer = [tuple(name for name in usual if name != left_out) for left_out in usual]
    more = [(*names, name) for name in others for names in (usual, *fewer)]
    return list(dict.fromkeys([*(names or ("none",) for names in [(), *fewer] if usual), *map(tuple, more)]))


def is_possible(variant: Variant, record: Record, version: tuple[int, int, int]) -> bool:
    """Tell whether a search of an index with this record can carry a variant out on a cluster."""
    try:
        fusion = fusion_of(variant, version)
    except SettingsError:
        return False
    return fusion.takes_signals or "signals" not in variant.settings


def fusion_of(variant: Variant, version: tuple[int, int, int] = ANY) -> Fusion:
    """Make the fusion of a variant. Raises SettingsError for what this version cannot do."""
    settings = SearchSettings(**variant.settings)
    fusion: Fusion = member_of(FAMILY, settings.fusion)(settings, version)
    return fusion


def landscape(tried: Sequence[Variant]) -> Landscape:
    """Say how variants lie to each other: by weight within a kind, not at all between two."""
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    kinds = np.array([variant.kind for variant in tried])
    bell = np.exp(-0.5 * ((weights[:, None] - weights) / NEIGHBOURHOOD) ** 2)
    near = np.where(kinds[:, None] == kinds, bell, 0.0)
    distances = np.array([variant.distance for variant in tried])
    return Landscape(distances, near / near.sum(axis=1, keepdims=True), weights)


def scores_of(variant: Variant, answer: Asked, dense_scale: float) -> dict[str, float]:
    """Score the candidates of one query as a search with these settings would; see `score_all`."""
    [row] = score_all([variant], answer, dense_scale)
    return {doc: score for doc, score in zip(answer.candidates, row.tolist(), strict=True) if score == score}


def score_all(tried: Sequence[Variant], answers: Asked, dense_scale: float) -> NDArray[np.float64]:
    """Score the candidates of one query by every variant, `(variants, n)`; NaN for what it does not find."""
    answers = answers._replace(legs=answers.legs._replace(scales=Scales(answers.idf_sum, dense_scale)))
    cached: dict[str, tuple[CandidateLists, Sides | None]] = {}
    rows = []
    for variant in tried:
        if variant.kind not in cached:
            legs = legs_for(variant, answers)
            cached[variant.kind] = legs, sides_of(variant, legs, answers)
        legs, sides = cached[variant.kind]
        rows.append(row_of(variant, legs, sides, answers))
    return np.array(rows)


def legs_for(variant: Variant, answer: Asked) -> CandidateLists:
    """Give what all legs, and the signals of a variant, say of the candidates."""
    chosen = variant.settings.get("signals", answer.usual)
    return answer.legs._replace(
        signals={name: signal for name, signal in answer.legs.signals.items() if name in chosen}
    )


def row_of(variant: Variant, legs: CandidateLists, sides: Sides | None, answer: Asked) -> NDArray[np.float64]:
    """Score the candidates by a variant, `(n,)`: by the sum of its sides, else one weight at a time."""
    if sides is None:
        scores = fusion_of(variant).scores(cut_legs(legs, DEFAULTS.depth))
        return np.array([scores.get(doc, np.nan) for doc in answer.candidates])
    shares = SearchSettings(**variant.settings).shares
    row: NDArray[np.float64] = sum((shares[name] * side for name, side in sides.items()), ZERO)
    return row


def sides_of(variant: Variant, legs: CandidateLists, answer: Asked) -> Sides | None:
    """Bring all legs to one scale, as the variant does, with lists no longer than a search's."""
    sides = fusion_of(variant).sides(cut_legs(legs, DEFAULTS.depth))
    if sides is None:
        return None
    return {
        name: np.array([side.get(doc, np.nan) for doc in answer.candidates]) for name, side in sides.items()
    }


def cut_legs(legs: CandidateLists, depth: int) -> CandidateLists:
    """Cut the lists of all legs; true scores of documents in none are left out."""
    if max(map(len, legs.listed.values())) <= depth:
        return legs
    listed = {name: first(scores, depth) for name, scores in legs.listed.items()}
    documents = set().union(*listed.values())
    true = {
        name: {doc: score for doc, score in scores.items() if doc in documents}
        for name, scores in legs.scores.items()
    }
    return legs._replace(listed=listed, scores=true)


def first(scores: Scores, count: int) -> Scores:
    """Keep the first of a list."""
    return dict(list(scores.items())[:count]) if count < len(scores) else scores


@dataclass(frozen=True)
class Point:
    """One variant with its mean over the judged queries."""

    variant: Candidate
    mean: float


@dataclass(frozen=True)
class Choice:
    """What judged queries say. `gain` is over the default, on queries that had no part in the choice.

    `low` and `high` bound it (95 %); `applied` is False where `low` is not above zero: the default stays.
    """

    queries: int
    measure: str
    default: float
    chosen: Candidate
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
    def best(self) -> Candidate:
        """Give what is in force: the chosen one, else the default."""
        default = next(point.variant for point in self.curve if point.variant.is_default)
        return self.chosen if self.applied else default


def chosen_among(
    tried: Sequence[Candidate], lying: Landscape, values: NDArray[np.float64], measure: str
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


def choice_of(
    tried: Sequence[Variant], answers: Sequence[Asked], qrels: Qrels, measure: str, dense_scale: float
) -> Choice:
    """Measure variants on all queries, and choose among them."""
    values = measured(answers, qrels, measure, partial(score_all, tried, dense_scale=dense_scale))
    return chosen_among(tried, landscape(tried), values, measure)


def measured(
    answers: Sequence[Asked], qrels: Qrels, measure: str, score: Callable[[Asked], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Measure every row that `score` gives of a query's candidates, `(rows, n)`, on every query.

    NaN is the score of what a row does not find. The answer is `(queries, rows)`.
    """
    parsed, ids = parse_measure(measure), [answer.query.query_id for answer in answers]
    documents, scores = [answer.candidates for answer in answers], [score(answer) for answer in answers]
    looked_at = parsed.params.get("cutoff")
    runs = (
        {
            query_id: best_of(ranking, rows[row], looked_at)
            for query_id, ranking, rows in zip(ids, documents, scores, strict=True)
        }
        for row in range(len(scores[0]))
    )
    return measured_runs(runs, qrels, parsed, ids)


def measured_runs(runs: Iterable[Run], qrels: Qrels, parsed: Any, ids: Sequence[str]) -> NDArray[np.float64]:
    """Measure each run on every query, `(queries, runs)`."""
    measured_by = (values_of(run, qrels, [parsed], ids)[str(parsed)] for run in runs)
    return np.array([[values[doc_id] for doc_id in ids] for values in measured_by]).T


def best_of(documents: Sequence[str], row: NDArray[np.float64], count: int | None) -> dict[str, float]:
    """Give what a row found, or its best `count` with their ties in trec_eval's single precision."""
    has_value, single = ~np.isnan(row), row.astype(np.float32)
    if count and has_value.sum() > count:
        has_value &= single >= np.partition(single[has_value], -count)[-count]
    return {documents[int(place)]: float(row[place]) for place in np.flatnonzero(has_value)}
