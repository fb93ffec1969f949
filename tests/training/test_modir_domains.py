"""Domain accuracy at both ends of its scale."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.errors import DataError
from hybridr.training.objectives.modir import domain_accuracy


def normal(seed: int, count: int, shift: float = 0.0, dim: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, 1, (count, dim))


def test_domain_accuracy_at_both_ends() -> None:
    same, far = normal(1, 400), normal(2, 400, shift=3.0)
    assert domain_accuracy([(same, same)], 13) == [0.5], "the same texts cannot be told apart"
    (drawn_alike,) = domain_accuracy([(same, normal(3, 400))], 13)
    assert drawn_alike == pytest.approx(0.5, abs=0.1)
    apart = np.concatenate([normal(4, 300, 3.0, 8), normal(4, 300, 0.0, 8)], axis=1)
    other = np.concatenate([normal(5, 300, 0.0, 8), normal(5, 300, 3.0, 8)], axis=1)
    assert domain_accuracy([(apart, other)], 13)[0] > 0.98
    found = domain_accuracy([(same, far[:200]), (same[:50], same[:50])], 7)
    assert (found, found[1]) == (domain_accuracy([(same, far[:200]), (same[:50], same[:50])], 7), 0.5)
    with pytest.raises(DataError, match="at least 10 vectors of source and target, found 3"):
        domain_accuracy([(same, far[:3])], 1)
