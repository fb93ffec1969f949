"""How well a linear classifier tells two domains apart by their vectors (Xin et al. 2022, MoDIR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ...encoders.contract import Vectors
from ...errors import DataError
from ..corpus import LEAST_QUERIES

Doubles: TypeAlias = NDArray[np.float64]
Marked: TypeAlias = tuple[Doubles, NDArray[np.int64]]

TRAIN_SHARE, FITTED_STEPS, BATCH, LEARNING_RATE, CLAMP = 0.7, 500, 48, 5e-4, 5.0


def domain_accuracy(groups: Sequence[tuple[Vectors, Vectors]], seed: int) -> list[float]:
    """Train one linear classifier of source against target and give its accuracy on unseen pairs, by group.

    A group is (source, target), vectors `(n, dim)` of documents, or of queries. Global Domain-Acc of MoDIR:
    equal numbers, 70/30 split, softmax(W e) without bias, logits clamped to [-5, 5], Adam 5e-4, 500 steps of
    48 of each group. .5 cannot be told apart, 1 fully. Raises DataError for fewer than 10 vectors of a side.
    """
    random = np.random.default_rng(seed)
    splits = [_split(*group, random) for group in groups]
    dim = groups[0][0].shape[1]
    weights = torch.nn.Parameter(torch.from_numpy(random.uniform(-1, 1, (2, dim)) / np.sqrt(dim)))
    optimiser = torch.optim.Adam([weights], lr=LEARNING_RATE)
    for _ in range(FITTED_STEPS):
        optimiser.zero_grad()
        for (vectors, labels), _ in splits:
            chosen = random.integers(0, len(labels), BATCH)
            logits = (torch.from_numpy(vectors[chosen]) @ weights.T).clamp(-CLAMP, CLAMP)
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[chosen]))
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    array = weights.detach().numpy()
    return [float(((vectors @ array.T).argmax(axis=1) == labels).mean()) for _, (vectors, labels) in splits]


def _split(source: Vectors, target: Vectors, random: np.random.Generator) -> tuple[Marked, Marked]:
    size = min(len(source), len(target))
    if size < LEAST_QUERIES:
        raise DataError(f"needed at least {LEAST_QUERIES} vectors of source and target, found {size}")
    order = random.permutation(size)
    cut = int(TRAIN_SHARE * size)
    return _labelled(source, target, order[:cut]), _labelled(source, target, order[cut:])


def _labelled(source: Vectors, target: Vectors, rows: NDArray[np.int64]) -> Marked:
    vectors = np.concatenate([source[rows], target[rows]]).astype(np.float64)
    return vectors, np.repeat([0, 1], len(rows))
