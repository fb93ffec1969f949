"""Agreement of two rankings of one query, measured without any judgements."""

from __future__ import annotations

from collections.abc import Sequence

PERSISTENCE = 0.9  # the chance that a reader who saw a hit looks at the next one


def overlap(a: Sequence[str], b: Sequence[str], depth: int) -> float:
    """Return the share of the first `depth` hits that two rankings have in common, 0 to 1.

    It is a share of the longer of both lists; two that find nothing agree.

    >>> overlap(["a", "b", "c"], ["c", "a", "d"], 3)
    0.6666666666666666
    """
    first, second = set(a[:depth]), set(b[:depth])
    longest = max(len(first), len(second))
    return len(first & second) / longest if longest else 1.0


def rank_biased_overlap(a: Sequence[str], b: Sequence[str], persistence: float = PERSISTENCE) -> float:
    """Return the rank-biased overlap of two rankings, 0 to 1, in which agreement at the top counts most.

    What lies below the longer list is taken to agree as the lists do at their end (Webber et al. 2010,
    section 4.3, for lists of one length). Two that find nothing agree.

    >>> rank_biased_overlap(["a", "b"], ["a", "b"])
    1.0
    """
    depth = max(len(a), len(b))
    if not depth:
        return 1.0
    shared = [len({*a[:rank]} & {*b[:rank]}) / rank for rank in range(1, depth + 1)]
    weights = [persistence**rank for rank in range(depth)]
    seen = sum(share * weight for share, weight in zip(shared, weights, strict=True))
    return (1 - persistence) * seen + shared[-1] * persistence**depth
