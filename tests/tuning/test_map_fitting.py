"""Fitting a query map to a teacher, without a cluster."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.tuning.map_fitting import (
    MapExamples,
    divergence,
    learn_matrix,
    query_batches,
    slope,
    softmax,
    spread,
)
from hybridr.tuning.settings import MapSettings


def some_examples(seed: int = 0, *, queries: int = 60, dim: int = 8) -> MapExamples:
    """The teacher ranks by the first half of the values only, so there is something to learn."""
    random = np.random.default_rng(seed)
    asked, vectors = (random.normal(size=(n, dim)) for n in (queries, 200))
    asked, vectors = (
        (some / np.linalg.norm(some, axis=1, keepdims=True)).astype(np.float32) for some in (asked, vectors)
    )
    rows = random.integers(0, 200, (queries, 12))
    there = np.ones(rows.shape, dtype=bool)
    there[::3, 9:] = False
    half = dim // 2
    wanted = np.einsum("bcd,bd->bc", vectors[rows][:, :, :half], asked[:, :half])
    return MapExamples(asked, vectors, rows, there, softmax(wanted / 0.1, there))


def test_the_gradient_is_that_of_the_divergence() -> None:
    examples = some_examples(queries=7)
    matrix = (0.1 * np.random.default_rng(1).normal(size=(8, 8))).astype(np.float32)
    found = slope(examples, np.arange(7), matrix, 0.5)
    for i, j in ((0, 0), (2, 5), (7, 3)):
        step = np.zeros((8, 8), dtype=np.float32)
        step[i, j] = 1e-2
        ends = [divergence(examples, matrix + sign * step, 0.5) for sign in (1, -1)]
        assert found[i, j] == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=0.02, abs=1e-4)


def test_fitting_comes_nearer_to_the_teacher_and_repeats_itself() -> None:
    examples, unseen = some_examples(), some_examples(seed=5)
    settings = MapSettings(steps=150, learning_rate=0.01, ridge=0.01)
    matrix = learn_matrix(examples, settings)
    nothing = np.zeros_like(matrix)
    assert divergence(examples, matrix, 0.05) < 0.7 * divergence(examples, nothing, 0.05)
    assert divergence(unseen, matrix, 0.05) < 0.8 * divergence(unseen, nothing, 0.05)
    assert np.array_equal(learn_matrix(examples, settings), matrix)
    assert not np.array_equal(learn_matrix(examples, settings.model_copy(update={"seed": 1})), matrix)
    tied = learn_matrix(examples, settings.model_copy(update={"ridge": 10.0}))
    assert np.linalg.norm(tied) < 0.3 * np.linalg.norm(matrix)


def test_every_query_comes_once_before_any_comes_again() -> None:
    seen = list(query_batches(10, MapSettings(steps=4, batch_size=5)))
    assert sorted(np.concatenate(seen[:2])) == sorted(np.concatenate(seen[2:])) == list(range(10))
    assert [len(batch) for batch in query_batches(3, MapSettings(steps=2, batch_size=48))] == [3, 3]


def test_shares_and_spread_leave_out_what_is_not_there() -> None:
    there = np.array([[True, True, False]])
    scores = np.array([[1.0, 1.0, 50.0]], dtype=np.float32)
    assert softmax(scores, there).tolist() == [[0.5, 0.5, 0.0]]
    assert spread(scores, there) == 0.0
    assert spread(np.array([[0.0, 2.0, 9.0]], dtype=np.float32), there) == 1.0
