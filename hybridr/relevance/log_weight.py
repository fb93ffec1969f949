"""Chooses the weight of vectors from a query log without judgements, by how each retriever scores the other's
best hit.

If the best hit by vectors scores low by words, while the best hit by words is near by vectors, words get more
weight, and vice versa. The rule was fitted to twelve collections with two encoders; results elsewhere:
docs/measured/ranking.md#by-a-query-log.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..encoders.contract import Encoder
from ..errors import DataError
from ..indexing.recipe import TextRecipe
from ..records import Progress, Query, silent
from ..search.search import Search
from .answering import some_texts
from .judgement import ask

LEAST_LOGGED, MOST_LOGGED = 100, 500
SLOPE, OFFSET = 23.0, 0.68
STEADY = 130
"""So many queries tell half of it: their witness wavers by chance."""
FARTHEST = 1.1
"""Of the logarithm of vectors over words: a weight of .25 to .75."""


@dataclass(frozen=True)
class LogWeight:
    """A weight of vectors, 0 to 1, and the number of queries it was chosen by.

    `support` is the logarithm of how high words score the vectors' best hits over how high vectors score
    those of the words.
    """

    queries: int
    support: float
    dense_weight: float


def weigh_by_log(
    search: Search, encoder: Encoder, texts: Sequence[str], progress: Progress = silent
) -> LogWeight:
    """Return the weight of vectors for an index, chosen by at most 500 queries without judgements.

    Raises DataError for fewer than 100 queries with hits.
    """
    texts = texts[:: -(-len(texts) // MOST_LOGGED)] if texts else ()
    answers = ask(search, [Query(str(number), text) for number, text in enumerate(texts)], progress)
    recipe = TextRecipe.of(search.info.record, encoder)
    documents = some_texts(search.cluster, search.info, recipe)
    means = recipe.compared(texts, documents).mean(axis=1) if documents else np.zeros(len(texts))
    by_words, by_vectors = [], []
    for answer, mean in zip(answers, means, strict=True):
        words, dense = answer.lists.scores["lexical"], answer.lists.scores["dense"]
        nearness = {doc: 2 * score - 1 - mean for doc, score in dense.items()}
        if not words or max(nearness.values(), default=0.0) <= 0:
            continue
        best_word, nearest = max(words, key=words.__getitem__), max(nearness, key=nearness.__getitem__)
        by_words.append(words.get(nearest, 0.0) / words[best_word])
        by_vectors.append(nearness.get(best_word, 0.0) / nearness[nearest])
    if len(by_words) < LEAST_LOGGED:
        raise DataError(
            f"{len(by_words)} queries of the log find anything; {LEAST_LOGGED} are needed to tell a weight",
            hint="leave the log away: the default is kept",
        )
    support = math.log(max(np.mean(by_words), 0.01) / max(np.mean(by_vectors), 0.01))
    share = len(by_words) / (len(by_words) + STEADY)
    odds = math.exp(float(np.clip(share * (SLOPE * support + OFFSET), -FARTHEST, FARTHEST)))
    return LogWeight(len(by_words), round(support, 4), round(odds / (1 + odds), 2))
