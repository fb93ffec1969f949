"""Score normalisation and combination exactly as OpenSearch computes them.

Sources: OpenSearch docs, normalization-processor and score-ranker-processor; corner cases read in the
neural-search code and tried on nodes: the floor 0.001, 1.0 for a list whose scores are all equal, raw
scores where a z-score is undefined, missing documents that count as 0 in the arithmetic mean only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .errors import SettingsError

FLOOR = 0.001
Scores = Mapping[str, float]
"""document id -> score of one list."""


def min_max(scores: Scores) -> dict[str, float]:
    """Scale to 0..1; the lowest becomes 0.001, and 1.0 is given to all when all are equal."""
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    if low == high:
        return dict.fromkeys(scores, 1.0)
    return {doc: (score - low) / (high - low) or FLOOR for doc, score in scores.items()}


def l2(scores: Scores) -> dict[str, float]:
    """Divide by the Euclidean length of the list; a list of zeros gives 0.001."""
    length = math.sqrt(sum(score * score for score in scores.values()))
    return {doc: score / length if length else FLOOR for doc, score in scores.items()}


def z_score(scores: Scores) -> dict[str, float]:
    """Standardise by mean and sample deviation (n - 1); values <= 0 become 0.001.

    A score equal to the mean gets the raw maximum of the list, as the server does.
    """
    if not scores:
        return {}
    values = np.asarray(list(scores.values()), dtype=np.float32).astype(np.float64)
    mean, deviation = float(values.mean()), float(values.std(ddof=min(1, len(values) - 1)))
    low, high = float(values.min()), float(values.max())

    def standardised(score: float) -> float:
        if score == mean:
            return high
        if deviation == 0:
            return low
        standard = (score - mean) / deviation
        return standard if standard > 0 else FLOOR

    return {doc: standardised(score) for doc, score in scores.items()}


def arithmetic_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted mean over all lists; a missing document (0) counts as 0."""
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def geometric_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted geometric mean over the lists that hold the document."""
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if value > 0]
    total = sum(weight for _, weight in pairs)
    return math.exp(sum(weight * math.log(value) for value, weight in pairs) / total) if total else 0.0


def harmonic_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted harmonic mean over the lists that hold the document."""
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if value > 0]
    denominator = sum(weight / value for value, weight in pairs)
    return sum(weight for _, weight in pairs) / denominator if denominator else 0.0


def rrf(lists: Sequence[Scores], weights: Sequence[float], rank_constant: int = 60) -> dict[str, float]:
    """Sum weight / (rank_constant + rank), ranks from 1 (Cormack et al. 2009)."""
    fused: dict[str, float] = {}
    for scores, weight in zip(lists, weights, strict=True):
        for rank, doc in enumerate(ranking(scores), 1):
            fused[doc] = fused.get(doc, 0.0) + weight / (rank_constant + rank)
    return fused


NORMALIZATIONS: dict[str, Callable[[Scores], dict[str, float]]] = {
    "min_max": min_max, "l2": l2, "z_score": z_score,
}  # fmt: skip
COMBINATIONS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "arithmetic_mean": arithmetic_mean, "geometric_mean": geometric_mean, "harmonic_mean": harmonic_mean,
}  # fmt: skip


def fuse(
    lists: Sequence[Scores],
    *,
    normalization: str = "min_max",
    combination: str = "arithmetic_mean",
    weights: Sequence[float] | None = None,
    rank_constant: int = 60,
) -> dict[str, float]:
    """Fuse the lists of several retrievers into one score per document.

    `normalization` is min_max, l2, z_score or rrf (which ignores `combination`); `weights` sum to 1, None
    weighs all lists alike. Raises SettingsError for an unknown or unsupported pair.
    """
    weights = weights or [1 / len(lists)] * len(lists)
    check_technique(normalization, combination, weights, len(lists))
    if normalization == "rrf":
        return rrf(lists, weights, rank_constant)
    scaled = [NORMALIZATIONS[normalization](scores) for scores in lists]
    documents = dict.fromkeys(doc for scores in lists for doc in scores)
    mean = COMBINATIONS[combination]
    return {doc: mean([scores.get(doc, 0.0) for scores in scaled], weights) for doc in documents}


def check_technique(normalization: str, combination: str, weights: Sequence[float], legs: int) -> None:
    """Raise SettingsError for what the server would refuse, or silently compute otherwise."""
    if normalization != "rrf" and normalization not in NORMALIZATIONS:
        raise SettingsError(f"unknown normalization '{normalization}': min_max, l2, z_score or rrf")
    if combination not in COMBINATIONS:
        raise SettingsError(f"unknown combination '{combination}': {', '.join(COMBINATIONS)}")
    if normalization == "z_score" and combination != "arithmetic_mean":
        raise SettingsError("z_score can only be combined by arithmetic_mean")
    if len(weights) != legs:
        raise SettingsError(f"{len(weights)} weights for {legs} lists")
    if min(weights) < 0 or abs(sum(weights) - 1) > 0.01:
        raise SettingsError(f"weights must be at least 0 and sum to 1, got {list(weights)}")


def ranking(scores: Scores) -> list[str]:
    """Order documents by score, best first; ties keep the order of the list."""
    return sorted(scores, key=lambda doc: -scores[doc])
