"""Significance tests and confidence intervals over values per query; interleaving of two rankings.

Arrays are `(queries, columns)`: a column is one system and measure, or the difference of two. Queries are the
unit that is flipped and resampled (Smucker et al. 2007; Sakai 2006). Team draft (Radlinski et al. 2008)
interleaves two rankings: in each round a coin says which picks first, and each picks its best document that
is not in the list yet. Both rankings are cut to the same length, so that neither gets a click for being
longer; the common beginning of both belongs to neither, since a click there tells nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln

Array: TypeAlias = NDArray[np.float64]

TIE = 1e-9
CONFIDENCE, RESAMPLES, SEED = 0.95, 10_000, 13
BLOCK = 4_000_000
"""Random numbers in memory at a time."""


@dataclass(frozen=True)
class Comparison:
    """One system against the baseline by one measure, paired by query.

    `low` and `high` bound the mean difference; `p_value` is of the two-sided t-test, `p_randomisation` of the
    sign-flip test; `_holm` values are corrected over the systems compared by the same measure.
    """

    system: str
    baseline: str
    measure: str
    difference: float
    low: float
    high: float
    p_value: float
    p_holm: float
    p_randomisation: float
    p_randomisation_holm: float
    wins: int
    ties: int
    losses: int


def compare_systems(
    per_query: Mapping[str, Mapping[str, Mapping[str, float]]], baseline: str, resamples: int = RESAMPLES
) -> list[Comparison]:
    """Compare every other system with the baseline by each measure; `per_query` is system -> measure -> query
    id -> value.
    """
    others = [name for name in per_query if name != baseline]
    pairs = [(name, measure) for name in others for measure in per_query[baseline]]
    if not pairs:
        return []
    differences = np.column_stack(
        [
            np.array(list(per_query[name][measure].values())) - list(per_query[baseline][measure].values())
            for name, measure in pairs
        ]
    )
    differences[np.abs(differences) < TIE] = 0.0
    low, high = interval(differences, resamples)
    t_values, flips = paired_t(differences), randomisation(differences, resamples, SEED)
    families = [measure for _, measure in pairs]
    t_holm, flips_holm = holm_by_family(t_values, families), holm_by_family(flips, families)
    return [
        Comparison(
            name,
            baseline,
            measure,
            float(differences[:, i].mean()),
            float(low[i]),
            float(high[i]),
            float(t_values[i]),
            float(t_holm[i]),
            float(flips[i]),
            float(flips_holm[i]),
            int((differences[:, i] > 0).sum()),
            int((differences[:, i] == 0).sum()),
            int((differences[:, i] < 0).sum()),
        )
        for i, (name, measure) in enumerate(pairs)
    ]


def paired_t(differences: Array) -> Array:
    """Return two-sided p-values `(columns,)` of the paired t-test; 1 without differences or for one query."""
    if len(differences) < 2:
        return np.ones(differences.shape[1])
    from scipy import stats  # imported here because it takes a second

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column of equal differences has no deviation
        p_values = stats.ttest_1samp(differences, 0.0, axis=0).pvalue
    return np.where(differences.any(axis=0), p_values, 1.0)


def randomisation(differences: Array, resamples: int, seed: int) -> Array:
    """Return two-sided p-values `(columns,)` of Fisher's randomisation test, which flips signs of differences
    at random.

    Exact if all sign patterns are no more than `resamples`, else (hits + 1) / (resamples + 1).
    """
    queries = len(differences)
    threshold = np.abs(differences.sum(axis=0)) - TIE
    if queries <= 30 and 2**queries <= resamples:
        patterns = (np.arange(2**queries)[:, None] >> np.arange(queries)) & 1
        hits = (np.abs((1.0 - 2.0 * patterns) @ differences) >= threshold).sum(axis=0)
        return np.asarray(hits / 2**queries)
    random = np.random.default_rng(seed)
    hits = np.zeros(differences.shape[1], dtype=np.int64)
    for size in _blocks(resamples, queries):
        signs = 1.0 - 2.0 * random.integers(0, 2, (size, queries), dtype=np.int8)
        hits += (np.abs(signs @ differences) >= threshold).sum(axis=0)
    return np.asarray((hits + 1) / (resamples + 1))


def holm(p_values: Array) -> Array:
    """Return p-values corrected by Holm's method (Holm 1979): the smallest times m, the next times m - 1,
    never falling.
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * factors))
    return corrected


def holm_by_family(p_values: Array, families: Sequence[str]) -> Array:
    """Return p-values corrected by Holm's method within each family."""
    labels, corrected = np.array(families), np.empty(len(p_values))
    for family in dict.fromkeys(families):
        corrected[labels == family] = holm(p_values[labels == family])
    return corrected


def interval(values: Array, resamples: int = RESAMPLES) -> tuple[Array, Array]:
    """Return bounds of the 95 % confidence interval of every column's mean, by the percentile bootstrap over
    queries.
    """
    if len(values) < 2:
        return values.mean(axis=0), values.mean(axis=0)
    means = bootstrap(values, resamples, SEED)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high


@dataclass(frozen=True)
class BoundedMean:
    """The mean of a value over queries, with the bounds of its 95 % interval."""

    mean: float
    low: float
    high: float


def bounded_mean(values: Sequence[float] | Array) -> BoundedMean:
    """Return the mean of values per query with the bounds of its 95 % interval."""
    column = np.asarray(values)[:, None]
    (low,), (high,) = interval(column)
    return BoundedMean(float(column.mean()), float(low), float(high))


def bootstrap(values: Array, resamples: int, seed: int) -> Array:
    """Return the means `(resamples, columns)` of samples of the queries with replacement."""
    queries = len(values)
    random = np.random.default_rng(seed)
    means = []
    for size in _blocks(resamples, queries):
        samples = random.integers(0, queries, (size, queries)) + queries * np.arange(size)[:, None]
        counts = np.bincount(samples.ravel(), minlength=size * queries).reshape(size, queries)
        means.append(counts @ values / queries)
    return np.concatenate(means)


def _blocks(resamples: int, queries: int) -> Iterator[int]:
    """Yield sizes that sum to `resamples`, each small enough for the memory (`BLOCK` random numbers)."""
    rows = max(1, BLOCK // queries)
    for start in range(0, resamples, rows):
        yield min(rows, resamples - start)


Team: TypeAlias = Literal["a", "b", ""]
PSEUDO = 10
"""Wins and losses before any query: a better ranking is expected to win about .4 to .6 of the queries."""
ALPHA = 0.05


class InterleavedDocument(NamedTuple):
    """A document of an interleaved list, and which ranking picked it ("" if it is in the common
    beginning).
    """

    doc_id: str
    team: Team


class Preferences(NamedTuple):
    """Numbers of queries for which people clicked more documents of `b` (wins) or of `a` (losses)."""

    wins: int
    losses: int

    @property
    def evidence(self) -> float:
        """Return the Bayes factor for one ranking being better, against neither being better.

        2^(w+l) B(w+10, l+10) / B(10, 10). Without a true difference, the chance that it ever reaches
        1 / alpha is at most alpha, however often one looks (Ville 1939).
        """
        decided = self.wins + self.losses
        log = (
            decided * math.log(2) + betaln(self.wins + PSEUDO, self.losses + PSEUDO) - betaln(PSEUDO, PSEUDO)
        )
        return math.exp(min(log, 700.0))

    @property
    def better(self) -> Team:
        """Return the ranking that is better at a level of 5 %; "" if that is not decided yet."""
        if self.evidence < 1 / ALPHA:
            return ""
        return "b" if self.wins > self.losses else "a"


def team_draft(a: Sequence[str], b: Sequence[str], random: Random) -> list[InterleavedDocument]:
    """Return the interleaved list of two rankings, as long as the shorter one."""
    length = min(len(a), len(b))
    first, second = a[:length], b[:length]
    common = next((place for place in range(length) if first[place] != second[place]), length)
    picks = [InterleavedDocument(doc_id, "") for doc_id in first[:common]]
    used_ids = set(first[:common])
    while len(picks) < length:
        sides: list[tuple[Team, Sequence[str]]] = [("a", first), ("b", second)]
        random.shuffle(sides)
        for team, ranking in sides[: length - len(picks)]:
            doc_id = next(doc_id for doc_id in ranking if doc_id not in used_ids)
            used_ids.add(doc_id)
            picks.append(InterleavedDocument(doc_id, team))
    return picks


def preferred_team(teams: Collection[Team]) -> Team:
    """Return the ranking with more clicked documents, given the team of each clicked one; "" if they tie."""
    a, b = (sum(team == side for team in teams) for side in ("a", "b"))
    return "a" if a > b else "b" if b > a else ""


def count_preferences(preferences: Collection[Team]) -> Preferences:
    """Return the number of queries for which each ranking was preferred."""
    a, b = (sum(team == side for team in preferences) for side in ("a", "b"))
    return Preferences(b, a)
