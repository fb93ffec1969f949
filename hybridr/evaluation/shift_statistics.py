"""The statistics of domain shift. Vectors are `(n, dim)` as the encoder gave them; numpy and scipy only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from ..errors import DataError
from .adam import Adam

Vectors: TypeAlias = NDArray[np.floating]
Array: TypeAlias = NDArray[np.float64]

HAN_KANA = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{HAN_KANA}]|[^\W_{HAN_KANA}]+")
QUESTION_WORDS = frozenset("what when who how where why which".split())
YES_NO_WORDS = frozenset("is was are were do does did have has had should can could would am shall".split())
TRAIN_SHARE, STEPS, BATCH, LEARNING_RATE, CLAMP = 0.7, 500, 48, 5e-4, 5.0
LEAST_VECTORS = 10
QUERY_BLOCK = 256


def words_of(text: str) -> list[str]:
    """Split at what is neither letter nor digit, in lower case; Han and kana characters stand alone."""
    return WORD.findall(text.lower())


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """Count the words of all texts."""
    return Counter(word for text in texts for word in words_of(text))


def query_type(text: str) -> str:
    """Name one of 9 types by the first word: a question word, yes/no, or declarative (Yu et al. 2022).

    The lists are English: queries in other languages are declarative.
    """
    first = next(iter(words_of(text)), "")
    if first in QUESTION_WORDS:
        return first
    return "yes/no" if first in YES_NO_WORDS else "declarative"


def weighted_jaccard(left: Mapping[str, int], right: Mapping[str, int]) -> float:
    """Compare relative frequencies: sum of minima / sum of maxima; 1 equal, 0 disjoint (Ioffe 2010).

    Raises DataError when a side counts nothing.
    """
    totals = sum(left.values()), sum(right.values())
    if not all(totals):
        raise DataError("there are no words to compare")
    pairs = [(left.get(key, 0) / totals[0], right.get(key, 0) / totals[1]) for key in {*left, *right}]
    return sum(map(min, pairs)) / sum(map(max, pairs))


def domain_accuracy(groups: Sequence[tuple[Vectors, Vectors]], seed: int) -> list[float]:
    """Train one linear classifier of source against target and give its accuracy on unseen pairs, by group.

    A group is (source, target): documents, or queries. Global Domain-Acc of Xin et al. 2022 (MoDIR): equal
    numbers, 70/30 split, softmax(W e) without bias, logits clamped to [-5, 5], Adam 5e-4, 500 steps of 48
    of each group. 0.5 cannot be told apart, 1 fully. Raises DataError with fewer than 10 vectors of a side.
    """
    random = np.random.default_rng(seed)
    splits = [_split(*group, random) for group in groups]
    dim = groups[0][0].shape[1]
    weights = random.uniform(-1, 1, (2, dim)) / np.sqrt(dim)
    optimiser = Adam(weights, LEARNING_RATE)
    for _ in range(STEPS):
        gradient = np.zeros_like(weights)
        for (vectors, labels), _ in splits:
            chosen = random.integers(0, len(labels), BATCH)
            gradient += _gradient(weights, vectors[chosen], labels[chosen])
        optimiser.step(gradient)
    return [float(((vectors @ weights.T).argmax(axis=1) == labels).mean()) for _, (vectors, labels) in splits]


Marked: TypeAlias = tuple[Array, NDArray[np.int64]]


def _split(source: Vectors, target: Vectors, random: np.random.Generator) -> tuple[Marked, Marked]:
    size = min(len(source), len(target))
    if size < LEAST_VECTORS:
        raise DataError(f"needed at least {LEAST_VECTORS} vectors of source and target, found {size}")
    order = random.permutation(size)
    cut = int(TRAIN_SHARE * size)
    return _labelled(source, target, order[:cut]), _labelled(source, target, order[cut:])


def _labelled(source: Vectors, target: Vectors, rows: NDArray[np.int64]) -> Marked:
    vectors = np.concatenate([source[rows], target[rows]]).astype(np.float64)
    return vectors, np.repeat([0, 1], len(rows))


def _gradient(weights: Array, vectors: Array, labels: NDArray[np.int64]) -> Array:
    """Differentiate the mean cross-entropy of the clamped logits."""
    raw = vectors @ weights.T  # (batch, 2)
    logits = np.clip(raw, -CLAMP, CLAMP)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = odds / odds.sum(axis=1, keepdims=True) - np.eye(2)[labels]
    gradient: Array = ((error * (np.abs(raw) < CLAMP)).T @ vectors) / len(labels)
    return gradient


def knn_source(queries: Vectors, source: Vectors, target: Vectors, k: int = 100) -> float:
    """Give the mean share (0..1) of source documents among the k nearest of each target query.

    KNN-Source% of Xin et al. 2022 (MoDIR), by dot product, source and target cut to equal numbers; the value
    depends on that number. Raises DataError without queries or documents.
    """
    size = min(len(source), len(target))
    if not size or not len(queries):
        raise DataError("needed target queries, and documents of source and target")
    documents = np.concatenate([source[:size], target[:size]])
    k = min(k, len(documents))
    shares = []
    for start in range(0, len(queries), QUERY_BLOCK):
        scores = queries[start : start + QUERY_BLOCK] @ documents.T
        nearest = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        shares.append((nearest < size).mean(axis=1))
    return float(np.concatenate(shares).mean())


def alignment(left: Vectors, right: Vectors) -> float:
    """Give the mean squared distance (0..4) of positive pairs on the unit sphere (Wang and Isola 2020)."""
    return float(((unit(left) - unit(right)) ** 2).sum(axis=1).mean())


def uniformity(vectors: Vectors) -> float:
    """Give log mean exp(-2 d^2) over all pairs on the unit sphere (Wang and Isola 2020).

    0 when all are the same, towards -4 when they spread evenly. Raises DataError for fewer than 2 vectors.
    """
    if len(vectors) < 2:
        raise DataError("needed at least 2 vectors")
    return float(np.log(np.exp(-2 * pdist(unit(vectors), "sqeuclidean")).mean()))


def unit(vectors: Vectors) -> Array:
    """Scale to length 1; a zero vector stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float64)


class Plane(NamedTuple):
    """Source and target on two principal components, `(n, 2)`; `explained` is their share of variance."""

    source: Array
    target: Array
    explained: float


def principal_plane(source: Vectors, target: Vectors) -> Plane:
    """Project both on the two directions of largest joint variance (PCA, Pearson 1901)."""
    joint = np.concatenate([source, target]).astype(np.float64)
    joint -= joint.mean(axis=0)
    _, strengths, directions = np.linalg.svd(joint, full_matrices=False)
    directions = directions[:2]
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.sign(directions[np.arange(len(directions)), largest])[
        :, None
    ]  # svd leaves the sign open
    placed = joint @ directions.T
    total = float((strengths**2).sum())
    explained = float((strengths[:2] ** 2).sum()) / total if total else 1.0
    return Plane(placed[: len(source)], placed[len(source) :], explained)
