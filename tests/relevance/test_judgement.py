"""What judged queries decide: nothing without evidence."""

from __future__ import annotations

import numpy as np

from hybridr.cluster.record import Record
from hybridr.relevance.judgement import chosen_among, landscape, variants

TRIED = variants((3, 6, 0), Record(similarity="cosine"), ["absolute"])
DEFAULT = next(i for i, one in enumerate(TRIED) if one.is_default)


def values_with(gain: float, spread: float) -> np.ndarray:
    """Thirty queries whose gain rises with the words' weight, with a spread of its own a query."""
    random = np.random.default_rng(7)
    weights = np.array([one.settings["dense_weight"] for one in TRIED])
    drawn = random.normal(size=(30, 1))
    slopes = gain + spread * (drawn - drawn.mean()) / drawn.std()
    return 0.5 + slopes * (weights[DEFAULT] - weights)


def test_a_gain_whose_interval_reaches_zero_is_not_applied() -> None:
    choice = chosen_among(TRIED, landscape(TRIED), values_with(0.45, 1.4), "nDCG@10")
    assert choice.gain > 0
    assert choice.low <= 0
    assert not choice.chosen.is_default
    assert not choice.applied
    assert choice.settings is None
    assert choice.best.is_default


def test_a_gain_above_zero_is_applied() -> None:
    choice = chosen_among(TRIED, landscape(TRIED), values_with(0.5, 0.1), "nDCG@10")
    assert choice.low > 0
    assert choice.applied
    assert choice.settings == choice.chosen.settings
