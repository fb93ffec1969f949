"""Vectors of tokens as doc values: both forms, and the sums of largest cosines."""

from __future__ import annotations

import base64
from typing import get_args

import numpy as np
import pytest

from hybridr.cluster.token_field import TOKENS_FIELD, TokenState, TokenValues, max_sims, tokens_value

DRAWN = np.random.default_rng(1)


def drawn(tokens: int, dim: int) -> np.ndarray:
    """Draw vectors of length 1."""
    found = DRAWN.standard_normal((tokens, dim)).astype(np.float32)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


def held(vectors: np.ndarray, values: TokenValues) -> bytes:
    return base64.b64decode(tokens_value(vectors, values)[TOKENS_FIELD])


@pytest.mark.parametrize("dim", [32, 100])
@pytest.mark.parametrize("values", get_args(TokenValues))
def test_scores_are_sums_of_largest_cosines(values: TokenValues, dim: int) -> None:
    state = TokenState(encoder="a" * 64, values=values, dim=dim)
    query, documents = drawn(7, dim), [drawn(tokens, dim) for tokens in (70, 1, 33)]
    kept = [held(one, values) for one in documents]
    assert [len(one) for one in kept] == [len(one) * state.bytes_a_token for one in documents]
    found = max_sims(query, [kept[0], b"", kept[1], kept[2][:-1] + b"##", kept[2]], state)
    assert list(np.isnan(found)) == [False, True, False, True, False], "no vectors, and no number of them"
    expected = [(query @ one.T).max(axis=1).sum() for one in documents]
    tolerance = 0.05 if values == "byte" else 1e-5
    np.testing.assert_allclose(found[[0, 2, 4]], expected, atol=tolerance)
    assert np.isnan(max_sims(query, [b"", b""], state)).all()
    assert not len(max_sims(query, [], state))
