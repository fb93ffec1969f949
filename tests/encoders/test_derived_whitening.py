"""Whitened queries: strong directions of an index count less, and the documents keep their vectors."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from hybridr.encoders.contract import unit_length
from hybridr.encoders.derived import LEVEL, SHARE_OF_MEAN, Whitening

DIM = 24


def documents(strength: float = 6.0) -> np.ndarray:
    """Make vectors with a mean and three directions that are stronger than the others."""
    spreads = np.array([strength, strength / 2, strength / 3, *[1.0] * (DIM - 3)])
    vectors = np.random.default_rng(3).normal(size=(400, DIM)) * spreads
    return (vectors + np.eye(DIM)[5] * 4).astype(np.float32)


def test_strong_directions_count_as_the_eighth() -> None:
    vectors = unit_length(documents())
    whitening = Whitening.fit(documents())
    assert whitening.rows.shape == (LEVEL - 1, DIM)
    assert np.allclose(whitening.mean, SHARE_OF_MEAN * vectors.mean(axis=0), atol=1e-6)
    left = vectors - whitening.mean
    after = left - (left @ whitening.rows.T) @ whitening.rows
    spreads = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False)
    even = np.linalg.svd(after - after.mean(axis=0), compute_uv=False)
    assert even[:LEVEL] == pytest.approx([spreads[LEVEL - 1]] * LEVEL, rel=1e-3)
    assert even[LEVEL:] == pytest.approx(spreads[LEVEL:], rel=1e-3), "weaker ones stay"
    assert np.allclose(whitening.apply(vectors), unit_length(after), atol=1e-6)


def test_its_text_says_the_same() -> None:
    whitening = Whitening.fit(documents())
    again = Whitening.from_text(whitening.text, DIM)
    queries = documents()[:20]
    assert np.allclose(np.linalg.norm(again.apply(queries), axis=1), 1, atol=1e-5)
    assert (again.apply(queries) * whitening.apply(queries)).sum(axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    "text", ["", "no base 64!", "AAAA", base64.b64encode(np.full(DIM, np.nan, "<f2").tobytes()).decode()]
)
def test_a_text_that_says_nothing_is_no_whitening(text: str) -> None:
    assert Whitening.from_text(text, DIM) is None
    assert Whitening.from_text(text, 0) is None


def test_too_few_directions_are_not_whitened() -> None:
    assert Whitening.fit(documents()[:, : LEVEL - 1]) is None
    assert Whitening.fit(np.tile(documents()[:3], (20, 1))) is None
