"""Vectors of tokens as doc values, and the sums of largest cosines."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.cluster.retrievers.dense import to_stored_values
from hybridr.cluster.token_field import max_sims

DRAWN = np.random.default_rng(1)


def drawn(tokens: int, dim: int) -> np.ndarray:
    """Draw vectors of length 1."""
    found = DRAWN.standard_normal((tokens, dim)).astype(np.float32)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


def held(vectors: np.ndarray) -> bytes:
    return to_stored_values(vectors, "byte").tobytes()


@pytest.mark.parametrize("dim", [32, 100])
def test_scores_are_sums_of_largest_cosines(dim: int) -> None:
    query, documents = drawn(7, dim), [drawn(tokens, dim) for tokens in (70, 1, 33)]
    kept = [held(one) for one in documents]
    assert [len(one) for one in kept] == [len(one) * dim for one in documents]
    found = max_sims(query, [kept[0], b"", kept[1], kept[2][:-1] + b"##", kept[2]])
    assert list(np.isnan(found)) == [False, True, False, True, False], "no vectors, and no number of them"
    expected = [(query @ one.T).max(axis=1).sum() for one in documents]
    np.testing.assert_allclose(found[[0, 2, 4]], expected, atol=0.05)
    assert np.isnan(max_sims(query, [b"", b""])).all()
    assert not len(max_sims(query, []))
