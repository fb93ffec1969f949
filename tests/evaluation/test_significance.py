"""Tests of significance against scipy's and against hand-computed values."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import stats

from hybridr.evaluation.significance import (
    bootstrap,
    compare_systems,
    holm,
    holm_by_family,
    interval,
    paired_t,
    randomisation,
)


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)[:, None]


def test_paired_t_equals_scipys() -> None:
    ours, theirs = np.random.default_rng(1).random((2, 30, 3))
    expected = [stats.ttest_rel(ours[:, i], theirs[:, i]).pvalue for i in range(3)]
    assert paired_t(ours - theirs) == pytest.approx(expected)
    assert paired_t(column(0, 0, 0))[0] == 1.0
    assert paired_t(column(0.3))[0] == 1.0
    assert paired_t(column(0.3, 0.3, 0.3))[0] == pytest.approx(0.0, abs=1e-12)


def test_randomisation_is_exact_for_few_queries() -> None:
    # sums of +-1 +-2 +-3: only the two patterns of equal signs reach 6
    assert randomisation(column(1, 2, 3), 10_000, 0)[0] == 2 / 8
    # 1 + 2 - 3 = 0: every pattern does
    assert randomisation(column(1, 2, -3), 10_000, 0)[0] == 1.0
    assert randomisation(column(0.1, 0.2, 0.3), 10_000, 0)[0] == 2 / 8, "rounding must not hide a hit"


def test_randomisation_equals_scipys_within_chance() -> None:
    random = np.random.default_rng(2)
    differences = np.column_stack([random.normal(shift, 1, 40) for shift in (0.0, 0.2, 0.4)])
    for i, found in enumerate(randomisation(differences, 20_000, 7)):
        sample = (differences[:, i], np.zeros(40))
        expected = stats.permutation_test(
            sample,
            lambda a, b, axis: np.mean(a - b, axis=axis),
            permutation_type="samples",
            n_resamples=20_000,
            vectorized=True,
            rng=np.random.default_rng(3),
        ).pvalue
        assert found == pytest.approx(expected, abs=0.015)


def test_randomisation_is_repeatable_and_never_zero() -> None:
    assert randomisation(np.full((100, 1), 0.5), 999, 1)[0] == 1 / 1000
    shaky = np.random.default_rng(5).normal(0.1, 1, (50, 1))
    assert randomisation(shaky, 1000, 1) == randomisation(shaky, 1000, 1)
    assert randomisation(np.zeros((50, 1)), 1000, 1)[0] == 1.0


def test_randomisation_holds_its_level() -> None:
    """Without a difference, five percent of the p-values are below .05."""
    differences = np.random.default_rng(8).normal(0, 1, (40, 400))
    assert (randomisation(differences, 2000, 3) < 0.05).mean() == pytest.approx(0.05, abs=0.03)
    assert (paired_t(differences) < 0.05).mean() == pytest.approx(0.05, abs=0.03)


def test_holm_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    assert holm(np.array([0.6, 0.9])) == pytest.approx([1.0, 1.0])
    assert holm_by_family(np.array([0.01, 0.01, 0.03]), ["a", "b", "a"]) == pytest.approx([0.02, 0.01, 0.03])


def test_intervals() -> None:
    values = np.random.default_rng(4).normal(0.5, 0.1, (200, 2))
    low, high = interval(values)
    for i in range(2):
        expected = stats.t.interval(0.95, 199, values[:, i].mean(), stats.sem(values[:, i]))
        assert (low[i], high[i]) == pytest.approx(expected, abs=0.002)
    assert interval(column(0.4)) == (pytest.approx([0.4]), pytest.approx([0.4]))


def test_bootstrap_draws_queries_with_replacement() -> None:
    means = bootstrap(column(0.0, 1.0), 4000, 1)
    shares = [float((means == value).mean()) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_compare_by_hand() -> None:
    per_query = {
        "old": {"m": {"1": 0.4, "2": 0.5, "3": 0.4, "4": 0.3}},
        "new": {"m": {"1": 0.5, "2": 0.7, "3": 0.4, "4": 0.2}},
        "same": {"m": {"1": 0.4, "2": 0.5, "3": 0.4, "4": 0.3}},
    }
    new, same = compare_systems(per_query, "old")
    assert (new.system, new.baseline, new.measure) == ("new", "old", "m")
    assert new.difference == pytest.approx(0.05)
    assert (new.wins, new.ties, new.losses) == (2, 1, 1)
    assert new.p_value == pytest.approx(stats.ttest_rel([0.5, 0.7, 0.4, 0.2], [0.4, 0.5, 0.4, 0.3]).pvalue)
    assert new.p_holm == pytest.approx(2 * new.p_value)
    # |+-.1 +-.2 +-.1| >= .2: all signs of .1 and .1 with .2: sums .4 .2 .2 0 and their negatives
    assert (new.p_randomisation, new.p_randomisation_holm) == (pytest.approx(6 / 8), 1.0)
    assert (same.p_value, same.wins, same.ties, same.losses) == (1.0, 0, 4, 0)
    assert compare_systems({"old": per_query["old"]}, "old") == []


def test_thousands_of_queries_take_seconds() -> None:
    differences = np.random.default_rng(0).normal(0, 1, (7000, 18))
    started = time.process_time()
    randomisation(differences, 10_000, 1)
    bootstrap(differences, 10_000, 1)
    assert time.process_time() - started < 20
