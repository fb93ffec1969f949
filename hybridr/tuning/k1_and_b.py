"""k1 and b of BM25: which ones are tried, whether an index can be judged, and the requests that change them.

They are settings of the index, which OpenSearch changes only while it is closed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cluster.connection import Cluster, path_of
from ..cluster.similarities import Similarity
from ..errors import ClusterError
from ..search.search import Search
from .evidence import Asked, Bm25Variant, similarity_obstacle
from .judgement import Landscape

K1, B = (0.4, 0.8, 1.2, 1.6, 2.0, 2.4), (0.0, 0.25, 0.5, 0.75, 1.0)
SPAN = 2.0  # of k1: as much as 1 of b
PULLED = 0.5  # what a step over the whole span counts; a weight of 0 or 1 counts half of it
NEIGHBOURHOOD = 0.25  # the deviation of a bell
CLOSE, MOST_OFF = 1e-3, 0.01
OPENING_S = 60.0


def bm25_variants(now: Similarity) -> list[Bm25Variant]:
    """List what is tried, first what the index has."""
    others = [Similarity(k1, b) for k1 in K1 for b in B if (k1, b) != now]
    return [Bm25Variant(one, PULLED * apart_by(one, now) ** 2) for one in [now, *others]]


def apart_by(one: Similarity, other: Similarity) -> float:
    """Tell how far two similarities are from each other."""
    return float(np.hypot((one.k1 - other.k1) / SPAN, one.b - other.b))


def bm25_landscape(tried: Sequence[Bm25Variant]) -> Landscape:
    """Say how they lie to each other."""
    away = np.array([[apart_by(one.similarity, other.similarity) for other in tried] for one in tried])
    near = np.exp(-0.5 * (away / NEIGHBOURHOOD) ** 2)
    distances = np.array([one.distance for one in tried])
    return Landscape(distances, near / near.sum(axis=1, keepdims=True))


def bm25_obstacle(search: Search, asked: Sequence[Asked]) -> str | None:
    """Say why other k1 and b cannot be judged; None where the formula gives the server's scores."""
    if len(search.lexical_fields) > 1:
        named = ", ".join(search.lexical_fields)
        return f"{named} are searched as one, and k1 and b are judged where one field is searched"
    if why := similarity_obstacle(search.info, search.lexical_fields):
        return why
    off = np.concatenate([errors_of(one) for one in asked]) > CLOSE
    if off.sum() <= MOST_OFF * len(off):
        return None
    return f"{off.mean():.0%} of its BM25 scores are not what the formula gives (synonyms, boosts?)"


def errors_of(asked: Asked) -> np.ndarray:
    """Give how far the formula is from the server's lexical scores, in shares of these, where it has any."""
    documents = asked.candidates
    told = np.array([asked.legs.scores["lexical"].get(doc, 0.0) for doc in documents])
    assert asked.words is not None
    found = asked.words.scores(asked.similarity, len(documents))
    larger = np.maximum(found, told)
    off: np.ndarray = np.abs(found - told)[larger > 0] / larger[larger > 0]
    return off


def change_requests(index: str, similarity: Similarity) -> list[dict[str, Any]]:
    """Give the requests that change an index's k1 and b: close, set, open."""
    default = {"type": "BM25", **similarity._asdict()}
    return [
        {"method": "POST", "path": path_of(index, "_close")},
        {"method": "PUT", "path": path_of(index, "_settings"), "body": {"index.similarity.default": default}},
        {"method": "POST", "path": path_of(index, "_open")},
    ]


def change_similarity(cluster: Cluster, index: str, similarity: Similarity) -> float:
    """Change k1 and b, and give the seconds that nobody could search or write.

    The index is opened again whatever happens in between. Raises ClusterError.
    """
    close, change, reopen = change_requests(index, similarity)
    started = time.monotonic()
    try:
        cluster.request(**close)
        cluster.request(**change)
    finally:
        try:
            cluster.request(**reopen, patience_s=OPENING_S)
        except ClusterError as error:
            raise ClusterError(
                f"'{index}' may still be closed: {error.message}", hint=f"POST {reopen['path']}   opens it"
            ) from error
    cluster.wait_until_usable(index)
    return time.monotonic() - started
