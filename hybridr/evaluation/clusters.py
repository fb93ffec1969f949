"""Clusters of vectors: k-means, by scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from ..errors import DataError, extra

RESTARTS, ITERATIONS = 5, 500
FITTED = 256  # vectors per cluster that centres are fitted to; every vector takes its nearest


def cluster(vectors: NDArray[Any], count: int, seed: int) -> NDArray[np.int64]:
    """Give each vector `(n, dim)` the number of its cluster, 0..count-1; plain L2 k-means as in COCO-DR.

    A cluster may stay empty. Raises DataError for fewer vectors than clusters, or when all fall into one.
    """
    with extra("train", "clusters of queries"):
        from sklearn.cluster import KMeans
    if len(vectors) < count:
        raise DataError(
            f"{len(vectors)} queries cannot make {count} clusters",
            hint="--method-settings clusters=N lowers their number",
        )
    drawn = default_rng([seed, 7]).permutation(len(vectors))[: FITTED * count]
    means = KMeans(count, n_init=RESTARTS, max_iter=ITERATIONS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer different vectors than clusters: some stay empty
        groups: NDArray[np.int64] = means.fit(vectors[np.sort(drawn)]).predict(vectors).astype(np.int64)
    if len(np.unique(groups)) < 2:
        raise DataError(
            "all queries fall into one cluster: there is nothing to weigh against each other",
            hint="train without --method, or with queries that differ",
        )
    return groups
