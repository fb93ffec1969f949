"""Statistics of domain shift on hand-computed values, and the ends of their scales."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hybridr.errors import DataError
from hybridr.evaluation.adam import Adam
from hybridr.evaluation.shift_statistics import (
    alignment,
    domain_accuracy,
    knn_source,
    principal_plane,
    query_type,
    uniformity,
    unit,
    weighted_jaccard,
    word_counts,
    words_of,
)


def normal(seed: int, count: int, shift: float = 0.0, dim: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, 1, (count, dim))


def test_words() -> None:
    assert words_of("Don't STOP_it, café 42") == ["don", "t", "stop", "it", "café", "42"]
    assert words_of("hybrid检索v2") == ["hybrid", "检", "索", "v2"]
    assert word_counts(["a b", "b"]) == {"a": 1, "b": 2}


def test_weighted_jaccard_by_hand() -> None:
    # shares 3/4 1/4 0 and 1/4 1/4 2/4: minima 1/4 + 1/4, maxima 3/4 + 1/4 + 2/4
    assert weighted_jaccard({"a": 3, "b": 1}, {"a": 1, "b": 1, "c": 2}) == pytest.approx((2 / 4) / (6 / 4))
    assert weighted_jaccard({"a": 2, "b": 4}, {"a": 1, "b": 2}) == pytest.approx(1.0)
    assert weighted_jaccard({"a": 2}, {"b": 1}) == 0.0
    with pytest.raises(DataError, match="no words to compare"):
        weighted_jaccard({}, {"a": 1})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("What is it?", "what"),
        ("which one", "which"),
        ("Is it so", "yes/no"),
        ("shall we", "yes/no"),
        ("effects of statins", "declarative"),
        ("", "declarative"),
        ("whatever works", "declarative"),
        ("怎么办", "declarative"),
    ],
)
def test_query_types(text: str, kind: str) -> None:
    assert query_type(text) == kind


def test_domain_accuracy_at_both_ends() -> None:
    same, far = normal(1, 400), normal(2, 400, shift=3.0)
    assert domain_accuracy([(same, same)], 13) == [0.5], "the same texts cannot be told apart"
    (drawn_alike,) = domain_accuracy([(same, normal(3, 400))], 13)
    assert drawn_alike == pytest.approx(0.5, abs=0.1)
    apart = np.concatenate([normal(4, 300, 3.0, 8), normal(4, 300, 0.0, 8)], axis=1)
    other = np.concatenate([normal(5, 300, 0.0, 8), normal(5, 300, 3.0, 8)], axis=1)
    assert domain_accuracy([(apart, other)], 13)[0] > 0.98
    found = domain_accuracy([(same, far[:200]), (same[:50], same[:50])], 7)
    assert found == domain_accuracy([(same, far[:200]), (same[:50], same[:50])], 7)
    assert found[1] == 0.5
    with pytest.raises(DataError, match="at least 10 vectors of source and target, found 3"):
        domain_accuracy([(same, far[:3])], 1)


def test_adam_equals_torchs() -> None:
    torch = pytest.importorskip("torch")
    start, gradients = normal(1, 2, dim=3), [normal(seed, 2, dim=3) for seed in range(5)]
    parameter = torch.nn.Parameter(torch.tensor(start))
    theirs, ours = torch.optim.Adam([parameter], lr=5e-4), Adam(start, 5e-4)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        theirs.step()
        ours.step(gradient)
    assert ours.weights == pytest.approx(parameter.detach().numpy(), abs=1e-12)


def test_classifier_gradient_equals_torchs() -> None:
    torch = pytest.importorskip("torch")
    from hybridr.evaluation.shift_statistics import _gradient

    weights, vectors, labels = normal(1, 2, dim=4), 3 * normal(2, 20, dim=4), np.arange(20) % 2
    parameter = torch.nn.Parameter(torch.tensor(weights))
    logits = (torch.tensor(vectors) @ parameter.T).clamp(-5, 5)
    torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).backward()
    assert _gradient(weights, vectors, labels) == pytest.approx(parameter.grad.numpy(), abs=1e-12)


def test_knn_source_by_hand() -> None:
    source, target = np.array([[1.0, 0], [0.9, 0]]), np.array([[0.8, 0], [0, 1.0], [5, 5]])
    # the third target is cut off: equal numbers; the query's three nearest are s, s, t
    assert knn_source(np.array([[1.0, 0]]), source, target, 3) == pytest.approx(2 / 3)
    assert knn_source(np.array([[1.0, 0], [0, 1.0]]), source, target, 1) == pytest.approx(1 / 2)
    assert knn_source(np.array([[1.0, 0]]), source, target, 100) == pytest.approx(1 / 2)
    with pytest.raises(DataError, match="needed target queries"):
        knn_source(np.zeros((0, 2)), source, target)


def test_alignment_and_uniformity_by_hand() -> None:
    left, right = np.array([[2.0, 0], [0, 1]]), np.array([[1.0, 0], [3, 0]])
    assert alignment(left, right) == pytest.approx((0 + 2) / 2)
    assert uniformity(left) == pytest.approx(-4.0), "one pair at squared distance 2"
    three = np.array([[1.0, 0], [0, 1], [1, 0]])
    assert uniformity(three) == pytest.approx(math.log((1 + 2 * math.exp(-4)) / 3))
    assert uniformity(np.ones((5, 3))) == pytest.approx(0.0)
    assert unit(np.zeros((1, 2))).tolist() == [[0.0, 0.0]]
    with pytest.raises(DataError, match="at least 2"):
        uniformity(np.ones((1, 3)))


def test_plane_by_hand() -> None:
    source, target = np.array([[3.0, 0, 0], [-3, 0, 0]]), np.array([[0, 1.0, 0], [0, -1, 0]])
    plane = principal_plane(source, target)
    assert plane.source == pytest.approx(np.array([[3.0, 0], [-3, 0]]))
    assert plane.target == pytest.approx(np.array([[0, 1.0], [0, -1]]))
    assert plane.explained == pytest.approx(1.0)
