"""What can be said about a change of ranking without labels: the statistics, and their paired comparison.

The gate of `adapt`, `tune` and `benchmarks/label_free.py` share them. How well each one predicts the true
change of nDCG@10 was measured: benchmarks/README.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .probes import gain

TOP, LEXICAL_TOP = 10, 20
OVERLAP_LOSS = 0.02  # of the dense top 10 in the BM25 top 20, and significant
KEPT_LEAST = 0.85  # share of the fused top 10 that must stay
RANKING_LOSS = 0.05  # nDCG@10 on the probes; less than this they cannot tell
SIGNIFICANT = 0.05
Ranking: TypeAlias = Sequence[str]
"""Document ids of one query, best first."""

Values: TypeAlias = NDArray[np.float64]
"""One value per query, `(queries,)`."""


@dataclass(frozen=True)
class Rankings:
    """What one system finds for a list of queries: by words, by vectors, and fused."""

    lexical: Sequence[Ranking]
    dense: Sequence[Ranking]
    fused: Sequence[Ranking]

    def of(self, queries: Iterable[int]) -> Rankings:
        """Give the rankings of some queries, by their positions."""
        chosen = list(queries)
        return Rankings(*([lists[i] for i in chosen] for lists in (self.lexical, self.dense, self.fused)))


@dataclass(frozen=True)
class Comparison:
    """One statistic before and after, means over queries, with a paired t-test."""

    name: str
    old: float
    new: float
    p: float
    queries: int


def own_document(rankings: Sequence[Ranking], answers: Sequence[str]) -> Values:
    """Give nDCG@10 of each query's own document, for queries that were made from documents."""
    return np.array(
        [gain(list(found[:TOP]), answer) for found, answer in zip(rankings, answers, strict=True)]
    )


def lexical_overlap(rankings: Sequence[Ranking], lexical: Sequence[Ranking]) -> Values:
    """Give the share of each top 10 that is in the BM25 top 20."""
    pairs = zip(rankings, lexical, strict=True)
    return np.array([len(set(words[:LEXICAL_TOP]).intersection(found[:TOP])) / TOP for found, words in pairs])


def kept_share(old: Sequence[Ranking], new: Sequence[Ranking]) -> Values:
    """Give the share of each old top 10 that is in the new one."""
    pairs = zip(old, new, strict=True)
    return np.array(
        [
            len(set(first[:TOP]).intersection(then[:TOP])) / max(1, min(TOP, len(first)))
            for first, then in pairs
        ]
    )


def compare_own_documents(old: Rankings, new: Rankings, answers: Sequence[str]) -> list[Comparison]:
    """Compare how high each query's own document stands, dense and fused."""
    return [
        compared(f"{name} nDCG@10, own document", own_document(before, answers), own_document(after, answers))
        for name, before, after in (("dense", old.dense, new.dense), ("hybrid", old.fused, new.fused))
    ]


def compare_overlap(old: Rankings, new: Rankings) -> Comparison:
    """Compare the share of the dense top 10 that is in the BM25 top 20."""
    sides = (lexical_overlap(side.dense, side.lexical) for side in (old, new))
    return compared("dense top 10 in BM25 top 20", *sides)


def compare_kept(old: Rankings, new: Rankings) -> Comparison:
    """Compare the fused top 10 of the old system with itself (1) and with the new one's."""
    kept = kept_share(old.fused, new.fused)
    return Comparison("hybrid top 10 kept", 1.0, float(kept.mean()), 1.0, len(kept))


def compared(name: str, old: Values, new: Values) -> Comparison:
    """Average two aligned lists of per-query values and test their difference."""
    same = len(old) < 2 or bool(np.allclose(old, new))
    p = 1.0 if same else float(stats.ttest_rel(new, old).pvalue)
    return Comparison(name, float(old.mean()), float(new.mean()), 1.0 if np.isnan(p) else p, len(old))


def objections(rows: Sequence[Comparison]) -> list[str]:
    """Say what speaks against a new encoder: rows of own documents first, then overlap and what is kept."""
    *known, overlap, kept = rows
    found = [
        f"{row.name} falls from {row.old:.3f} to {row.new:.3f}; {RANKING_LOSS:g} is a disaster"
        for row in known
        if row.old - row.new > RANKING_LOSS and row.p < SIGNIFICANT
    ]
    if overlap.old - overlap.new > OVERLAP_LOSS and overlap.p < SIGNIFICANT:
        found.append(f"{overlap.name} falls from {overlap.old:.3f} to {overlap.new:.3f}")
    if kept.new < KEPT_LEAST:
        found.append(f"only {kept.new:.0%} of the hybrid top 10 stays; {KEPT_LEAST:.0%} is needed")
    return found
