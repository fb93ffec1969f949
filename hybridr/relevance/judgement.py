"""Chooses among variants of a ranking by judged queries, and estimates the gain without bias.

A variant is a way to combine the retrievers; its scores come from one retrieval by each. With few queries the
choice is pulled toward the default, and a weight is judged together with neighbouring weights, since these
differ mostly by chance; the mean of the likely weights is taken, because the peak of few queries wanders.
Without these two rules, few queries would choose by chance: benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingsError
from ..evaluation.evaluation import parse_measure, query_values
from ..evaluation.significance import bounded_mean
from ..families import load_member, member_names
from ..records import Progress, Qrels, Query, Run, silent
from ..search.context import idf_sums
from ..search.fusions import FAMILY, CandidateLists, Fusion, Scales
from ..search.rerankers import FAMILY as RERANKERS
from ..search.search import Search
from ..search.settings import SearchSettings

DEPTH = 100
QUERIES_AT_ONCE = 32
PULL = 5.0
FOLDS, REPEATS, SPLIT_SEED = 10, 5, 13


class QueryCandidates(NamedTuple):
    """A judged query with its candidate lists and the idf sum of its terms.

    `usual` are the signals in `lists` that a search uses by default.
    """

    query: Query
    lists: CandidateLists
    idf_sum: float
    usual: tuple[str, ...] = ()


def fetch_candidates(
    search: Search, queries: Sequence[Query], progress: Progress = silent
) -> list[QueryCandidates]:
    """Return what each retriever finds for each query, with the exact scores of all retrievers."""
    answers: list[QueryCandidates] = []
    progress("ask", 0, len(queries))
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        batch = queries[start : start + QUERIES_AT_ONCE]
        texts = [query.text for query in batch]
        triples = zip(batch, search.candidates(texts), idf_sums(search.context, texts), strict=True)
        answers += [QueryCandidates(*answer, usual=search.signals.usual) for answer in triples]
        progress("ask", len(answers), len(queries))
    return answers


class Landscape(NamedTuple):
    """The geometry of variants: distances from the default `(variants,)`, weights of neighbours `(variants,
    variants)` in rows that sum to 1, and positions `(variants,)`.

    Neighbours are of one kind; a variant without neighbours is the only one of its kind.
    """

    distances: NDArray[np.float64]
    nearness: NDArray[np.float64]
    positions: NDArray[np.float64]

    @property
    def default(self) -> int:
        """Return the index of the default variant."""
        return int(np.argmin(self.distances))


def choose(values: NDArray[np.float64], landscape: Landscape) -> int:
    """Return the index of the variant in the middle of the likeliest kind.

    A variant's likelihood is e to the power of n times the smoothed mean of its values, minus `PULL` times
    its distance from the default.
    """
    smooth = landscape.nearness @ values.mean(axis=0)
    log_likelihood = len(values) * smooth - PULL * landscape.distances
    likelihood, same_kind = np.exp(log_likelihood - log_likelihood.max()), landscape.nearness > 0
    members = np.flatnonzero(same_kind[np.argmax(same_kind @ likelihood / same_kind.sum(axis=1))])
    middle = np.average(landscape.positions[members], weights=likelihood[members])
    return int(members[np.argmin(np.abs(landscape.positions[members] - middle))])


def held_out_gains(values: NDArray[np.float64], landscape: Landscape) -> NDArray[np.float64]:
    """Return the gain of the chosen variant over the default on queries that had no part in the choice,
    `(queries,)`.

    Nested cross-validation: each fold is judged by the choice of the others, repeated five times and
    averaged.
    """
    random = np.random.default_rng(SPLIT_SEED)
    gains = np.zeros(len(values))
    for _ in range(REPEATS):
        for fold in np.array_split(random.permutation(len(values)), min(FOLDS, len(values))):
            other_rows = np.setdiff1d(np.arange(len(values)), fold)
            best = choose(values[other_rows], landscape)
            gains[fold] += values[fold, best] - values[fold, landscape.default]
    return gains / REPEATS


ANOTHER_TECHNIQUE = 0.5  # distance from the default, farther than any weight
ADDITION = 0.05  # distance for other signals, or for a re-ranker
STEEPNESS = 1.5  # factor of the squared difference of two weights
NEIGHBOURHOOD = 0.15  # standard deviation of the bell curve over weights
USUAL_WEIGHT = 0.5  # of a re-ranker's score
DEFAULTS = SearchSettings()
ANY = (99, 0, 0)  # what a fusion computes here is the same for every version


class Variant(NamedTuple):
    """Search settings that differ from the default, and their distance from it, 0 for the default itself."""

    settings: dict[str, Any]
    distance: float

    @property
    def technique(self) -> str:
        """Return how scores are normalised."""
        return str(self.settings.get("normalization", self.settings["fusion"]))

    @property
    def kind(self) -> str:
        """Return a name for all settings but the weight."""
        if "signals" not in self.settings:
            return self.technique
        return f"{self.technique}, signals {' '.join(self.settings['signals'])}"

    def __str__(self) -> str:
        """Return a name for people."""
        return f"{self.kind}, dense weight {self.settings['dense_weight']:g}"


class Step(NamedTuple):
    """One re-ranker of a chain: the weight of its score, and how many hits it looks at."""

    name: str
    weight: float
    depth: int

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings in the re-ranker's own names."""
        weight, depth = load_member(RERANKERS, self.name).tuned_by
        return {weight: self.weight, depth: self.depth}

    def __str__(self) -> str:
        """Return a name for people."""
        return f"{self.name} of {self.depth}, weight {self.weight:g}"


class Chain(NamedTuple):
    """Re-rankers that follow each other; an empty chain is the default."""

    steps: tuple[Step, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings as an index's record stores them."""
        own_settings = dict(chain(*(step.settings.items() for step in self.steps)))
        return {"rerank": [step.name for step in self.steps], "rerank_settings": own_settings}

    @property
    def distance(self) -> float:
        """Return the distance from an empty chain, which is the default."""
        return sum(ADDITION + (step.weight - USUAL_WEIGHT) ** 2 for step in self.steps)

    def __str__(self) -> str:
        """Return a name for people."""
        return "; then ".join(map(str, self.steps)) or "no re-ranker"


Candidate: TypeAlias = "Variant | Chain"
"""A candidate of a choice."""


def variants(
    version: tuple[int, int, int],
    fusions: Sequence[str] | None = None,
    *,
    signals: Sequence[tuple[str, ...]] = (),
) -> list[Variant]:
    """Return the variants to try of these fusions (None: all), including the default.

    Every grid is tried with the usual signals, and with each of `signals` if the fusion uses signals.
    """
    kinds = [load_member(FAMILY, name) for name in fusions or member_names(FAMILY)]
    members = sorted(kinds, key=lambda fusion: fusion.turn)
    grids = [grid for member in members for grid in member.grids]
    default = grids[0].name
    additions: list[dict[str, Any]] = [{}, *({"signals": name} for name in signals)]
    possible = []
    for added, grid in product(additions, grids):
        for weight in grid.weights:
            gap = STEEPNESS * (weight - DEFAULTS.dense_weight) ** 2
            gap += (0.0 if grid.name == default else ANOTHER_TECHNIQUE) + (ADDITION if added else 0.0)
            variant = Variant(grid.settings | added | {"dense_weight": weight}, gap)
            try:
                fusion = variant_fusion(variant, version)
            except SettingsError:
                continue
            if fusion.takes_signals or not added:
                possible.append(variant)
    return possible


def other_signals(usual: Sequence[str], others: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the sets of signals to try: none, the usual ones but one, and each other signal added."""
    fewer = [tuple(name for name in usual if name != left_out) for left_out in usual]
    more = [(*names, name) for name in others for names in (usual, *fewer)]
    return list(dict.fromkeys([*(names or ("none",) for names in [(), *fewer] if usual), *map(tuple, more)]))


def variant_fusion(variant: Variant, version: tuple[int, int, int] = ANY) -> Fusion:
    """Return the fusion of a variant. Raises SettingsError if this version cannot run it."""
    settings = SearchSettings(**variant.settings)
    fusion: Fusion = load_member(FAMILY, settings.fusion)(settings, version)
    return fusion


def weight_landscape(tried: Sequence[Variant]) -> Landscape:
    """Return the landscape of variants: neighbours by weight within a kind, none of other kinds."""
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    kinds = np.array([variant.kind for variant in tried])
    bell = np.exp(-0.5 * ((weights[:, None] - weights) / NEIGHBOURHOOD) ** 2)
    near = np.where(kinds[:, None] == kinds, bell, 0.0)
    distances = np.array([variant.distance for variant in tried])
    return Landscape(distances, near / near.sum(axis=1, keepdims=True), weights)


def score_all(
    tried: Sequence[Variant], candidates: QueryCandidates, dense_scale: float
) -> NDArray[np.float64]:
    """Return a query's scores by every variant, `(variants, n)`; NaN for a document that it does not find."""
    candidates = candidates._replace(
        lists=candidates.lists._replace(scales=Scales(candidates.idf_sum, dense_scale))
    )
    documents = candidates.lists.documents
    cached: dict[str, tuple[CandidateLists, dict[str, NDArray[np.float64]] | None]] = {}
    rows = []
    for variant in tried:
        if variant.kind not in cached:
            names = variant.settings.get("signals", candidates.usual)
            signals = {name: signal for name, signal in candidates.lists.signals.items() if name in names}
            lists = cut_lists(candidates.lists._replace(signals=signals), DEFAULTS.depth)
            sides = None  # what each retriever adds at full weight, on one scale; None: one weight at a time
            if (by_retriever := variant_fusion(variant).sides(lists)) is not None:
                sides = {
                    name: np.array([side.get(doc, np.nan) for doc in documents])
                    for name, side in by_retriever.items()
                }
            cached[variant.kind] = lists, sides
        lists, sides = cached[variant.kind]
        if sides is None:
            scores = variant_fusion(variant).scores(lists)
            rows.append(np.array([scores.get(doc, np.nan) for doc in documents]))
        else:
            shares = SearchSettings(**variant.settings).shares
            rows.append(np.sum([shares[name] * side for name, side in sides.items()], axis=0))
    return np.array(rows)


def cut_lists(lists: CandidateLists, depth: int) -> CandidateLists:
    """Return candidate lists cut to a depth; scores of documents in no list are dropped."""
    if max(map(len, lists.listed.values())) <= depth:
        return lists
    listed = {name: dict(list(scores.items())[:depth]) for name, scores in lists.listed.items()}
    documents = set().union(*listed.values())
    true_scores = {
        name: {doc: score for doc, score in scores.items() if doc in documents}
        for name, scores in lists.scores.items()
    }
    return lists._replace(listed=listed, scores=true_scores)


@dataclass(frozen=True)
class Point:
    """A variant with its mean over the judged queries."""

    variant: Candidate
    mean: float


@dataclass(frozen=True)
class Choice:
    """The variant chosen by judged queries. `gain` over the default is measured on queries that had no part
    in the choice.

    `low` and `high` are its 95 % interval; `applied` is False if `low` is not above zero, and the default
    stays.
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
        """Return the settings to store; None for the default."""
        return dict(self.chosen.settings) if self.applied else None

    @property
    def best(self) -> Candidate:
        """Return the variant that searches use: the chosen one if applied, else the default."""
        default = next(point.variant for point in self.curve if not point.variant.distance)
        return self.chosen if self.applied else default


def choose_variant(
    tried: Sequence[Candidate], geometry: Landscape, values: NDArray[np.float64], measure: str
) -> Choice:
    """Return the choice among variants by their values `(queries, variants)`."""
    means, default = values.mean(axis=0), geometry.default
    best_index = choose(values, geometry)
    gain = bounded_mean(held_out_gains(values, geometry))
    return Choice(
        len(values),
        measure,
        float(means[default]),
        tried[best_index],
        gain.mean,
        gain.low,
        gain.high,
        bool(best_index != default and gain.low > 0),
        tuple(Point(variant, float(mean)) for variant, mean in zip(tried, means, strict=True)),
    )


def measure_scores(
    answers: Sequence[QueryCandidates],
    qrels: Qrels,
    measure: str,
    score: Callable[[QueryCandidates], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the measure of each query for every row of scores that `score` gives, `(queries, rows)`.

    `score` returns `(rows, n)` scores of a query's candidates; NaN marks what a row does not find.
    """
    parsed, ids = parse_measure(measure), [answer.query.query_id for answer in answers]
    documents, scores = [answer.lists.documents for answer in answers], [score(answer) for answer in answers]
    cutoff = parsed.params.get("cutoff")
    runs = (
        {
            query_id: best_scores(ranking, rows[row], cutoff)
            for query_id, ranking, rows in zip(ids, documents, scores, strict=True)
        }
        for row in range(len(scores[0]))
    )
    return measure_runs(runs, qrels, parsed, ids)


def measure_runs(runs: Iterable[Run], qrels: Qrels, parsed: Any, ids: Sequence[str]) -> NDArray[np.float64]:
    """Return the measure of each query in each run, `(queries, runs)`."""
    values_by_run = (query_values(run, qrels, [parsed], ids)[str(parsed)] for run in runs)
    return np.array([[values[query_id] for query_id in ids] for values in values_by_run]).T


def best_scores(documents: Sequence[str], row: NDArray[np.float64], count: int | None) -> dict[str, float]:
    """Return a row's scores by document, or its best `count` (ties by trec_eval's single precision)."""
    has_value, single = ~np.isnan(row), row.astype(np.float32)
    if count and has_value.sum() > count:
        has_value &= single >= np.partition(single[has_value], -count)[-count]
    return {documents[int(place)]: float(row[place]) for place in np.flatnonzero(has_value)}
