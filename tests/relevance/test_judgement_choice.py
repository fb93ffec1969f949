"""The choice among variants, with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.cluster.record import Record
from hybridr.relevance.judgement import Landscape, choose, held_out_gains, landscape, variants

VERSION, COSINE = (3, 6, 0), Record(similarity="cosine")
ALONE = Landscape.alone(np.array([0.0, 0.09, 0.25]))


def test_few_queries_stay_near_the_default() -> None:
    better = np.array([[0.5, 0.5, 0.54]])
    assert choose(np.repeat(better, 10, axis=0), ALONE) == 0
    assert choose(np.repeat(better, 100, axis=0), ALONE) == 2


def test_held_out_gains_are_those_of_the_better_variant() -> None:
    random = np.random.default_rng(1)
    noise = random.normal(0, 0.05, (200, 3))
    gains = held_out_gains(noise + np.array([0.4, 0.4, 0.5]), ALONE)
    assert gains.mean() == pytest.approx(0.1, abs=0.02)


def test_held_out_gains_of_noise_are_not_above_zero() -> None:
    """The best of many by chance gains on its own queries, and nothing on others."""
    found, free = [], Landscape.alone(np.zeros(30))
    for seed in range(20):
        values = np.random.default_rng(seed).normal(0.5, 0.3, (40, 30))
        chosen = choose(values, free)
        found.append(
            (values.mean(axis=0)[chosen] - values.mean(axis=0)[0], held_out_gains(values, free).mean())
        )
    seen, unseen = np.mean(found, axis=0)
    assert seen > 0.05
    assert abs(unseen) < 0.03


def test_a_lone_peak_does_not_win_over_a_hill() -> None:
    tried = variants(VERSION, COSINE)
    lying = landscape(tried)
    assert lying.nearness.sum(axis=1) == pytest.approx(1.0)
    assert tried[lying.default].is_default
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    hill = np.where([variant.technique == "absolute" for variant in tried], 0.5 - (weights - 0.7) ** 2, 0.2)
    hill[next(i for i, variant in enumerate(tried) if str(variant) == "absolute, dense weight 0.1")] += 0.4
    chosen = tried[choose(np.repeat(hill[None], 1000, axis=0), lying)]
    assert chosen.settings["dense_weight"] == pytest.approx(0.7, abs=0.051)


def test_the_mean_of_what_is_likely_is_taken_where_the_peak_is_chance() -> None:
    tried = variants(VERSION, COSINE)
    lying = landscape(tried)
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    rising = np.where([variant.technique == "absolute" for variant in tried], 0.4 + 0.1 * weights, 0.2)
    few, many = (tried[choose(np.repeat(rising[None], n, axis=0), lying)] for n in (100, 10_000))
    assert 0.5 < few.settings["dense_weight"] < 0.9
    assert many.settings["dense_weight"] == pytest.approx(0.95)
