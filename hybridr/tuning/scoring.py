"""Scores of candidates as a variant would rank them, computed from one retrieval per leg.

Another k1 and b, feedback and shorter lists change the order of the candidates; what a search with them would
find besides is not seen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..calibration import absolute_weights
from ..completion import Legs, Scores
from ..feedback import ROCCHIO_DOCUMENTS, ROCCHIO_WEIGHT
from ..fusion import fuse
from ..similarity import Postings, Similarity
from .evidence import Asked
from .variants import Variant

UNSEEN = 0.5  # the engine score of a document without a vector


def scores_of(
    variant: Variant, asked: Asked, dense_scale: float, similarity: Similarity | None = None
) -> dict[str, float]:
    """Fuse the candidates of one query as a search with these settings would.

    Another `similarity` than the index's (None) needs `asked.words`, rm3 `expanded`, rocchio `cosines`.
    """
    legs = asked.legs if similarity is None else reworded(asked, asked.words, similarity)
    if variant.feedback == "rm3":
        legs = reworded(asked, asked.expanded, similarity or asked.similarity)
    if variant.feedback == "rocchio":
        first = fused(variant, legs, asked.idf_sum, dense_scale)
        best = sorted(first, key=lambda doc: -first[doc])[:ROCCHIO_DOCUMENTS]
        legs = turned(asked, legs, best)
    return fused(variant, legs, asked.idf_sum, dense_scale)


def fused(variant: Variant, legs: Legs, idf_sum: float, dense_scale: float) -> dict[str, float]:
    """Join two legs, lists no longer than the variant's depth."""
    weight = variant.settings["dense_weight"]
    lists = [first(scores, variant.depth) for scores in legs.listed]
    if variant.settings["fusion"] == "pipeline":
        weights = [1 - weight, weight]
        return fuse(lists, normalization=variant.settings["normalization"], weights=weights)
    lexical, dense = absolute_weights(weight, idf_sum, dense_scale)
    return {
        doc: lexical * legs.lexical.get(doc, 0.0) + dense * legs.dense.get(doc, UNSEEN)
        for doc in dict.fromkeys([*lists[0], *lists[1]])
    }


def reworded(asked: Asked, words: Postings | None, similarity: Similarity) -> Legs:
    """Score the candidates' words anew, and list them in that order."""
    if words is None:
        raise ValueError("the words of the candidates were not looked up")
    documents = asked.candidates
    scores = words.scores(similarity, len(documents)).tolist()
    lexical = {doc: score for doc, score in zip(documents, scores, strict=True) if score > 0}
    return asked.legs._replace(listed=(best_first(lexical), asked.legs.listed[1]), lexical=lexical)


def turned(asked: Asked, legs: Legs, best: Sequence[str]) -> Legs:
    """Score the candidates by the query vector moved toward the best ones, as `feedback.rocchio` moves it."""
    if asked.cosines is None:
        raise ValueError("the vectors of the candidates were not compared")
    documents = asked.candidates
    own = np.array([2 * asked.legs.dense.get(doc, UNSEEN) - 1 for doc in documents])  # cosines, (n,)
    chosen = [place for place, doc in enumerate(documents) if doc in best and doc in asked.legs.dense]
    if not chosen:
        return legs
    near = asked.cosines[chosen].astype(np.float64)
    squared = 1 + 2 * ROCCHIO_WEIGHT * own[chosen].mean() + ROCCHIO_WEIGHT**2 * near[:, chosen].mean()
    cosines = (own + ROCCHIO_WEIGHT * near.mean(axis=0)) / np.sqrt(squared)
    scores = dict(zip(documents, ((1 + cosines) / 2).tolist(), strict=True))
    dense = {doc: score for doc, score in scores.items() if doc in asked.legs.dense}
    return legs._replace(listed=(legs.listed[0], best_first(dense)), dense=dense)


def best_first(scores: Scores) -> dict[str, float]:
    """List the candidates of a leg."""
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def first(scores: Mapping[str, float], count: int) -> dict[str, float]:
    """Keep the first of a list."""
    return dict(list(scores.items())[:count]) if count < len(scores) else dict(scores)
