"""The absolute fusion: true scores of both legs, added up by one rescoring request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...cluster.record import IndexInfo
from ...encoding.contract import Encoder

LEXICAL_SCALE = 4.0
MINILM_SPREAD = 0.1952
"""Of the packaged encoder, by `spread_of`."""
LARGEST = 8.0  # a model of another language may see no difference between these texts
QUESTIONS = (
    "how do vaccines work",
    "capital of Portugal",
    "sort a list of numbers in Python",
    "symptoms of iron deficiency",
    "how to change a bicycle tyre",
    "what causes earthquakes",
    "interest rate on savings accounts",
    "recipe for tomato soup",
    "who wrote Hamlet",
    "speed of sound in water",
)
STATEMENTS = (
    "A vaccine shows the immune system a harmless part of a germ, so that it recognises the germ later.",
    "Lisbon lies at the mouth of the Tagus and has been the capital of Portugal since the 13th century.",
    "The built-in function sorted returns a new list with the items in ascending order.",
    "Too little iron makes people tired and pale, and short of breath when they climb stairs.",
    "Lever the tyre off the rim, take out the tube, put in a new one and pump it up.",
    "Rocks on both sides of a fault slip suddenly and send waves through the ground.",
    "Banks pay savers a yearly share of the balance, which changes with the central bank's rate.",
    "Fry onions and garlic, add ripe tomatoes and stock, cook for half an hour and blend.",
    "The tragedy of the Danish prince was written by William Shakespeare about 1600.",
    "Sound travels more than four times faster in water than in air, about 1,480 metres per second.",
)
WINDOW = 3  # times the depth: what is scored again, of both legs' candidates and what comes close
LARGEST_WINDOW = 10_000  # index.max_rescore_window's default


def spread_of(encoder: Encoder) -> float:
    """Give the standard deviation of the cosines between fixed questions and statements, English ones."""
    return float((encoder.encode_queries(QUESTIONS) @ encoder.encode_documents(STATEMENTS).T).std())


def dense_scale(encoder: Encoder) -> float:
    """Give the factor that brings an encoder's cosines to the spread of the packaged one's, at most 8."""
    spread = spread_of(encoder)
    return min(MINILM_SPREAD / spread, LARGEST) if spread > 0 else LARGEST


def absolute_weights(dense_weight: float, idf_sum: float, scale: float) -> tuple[float, float]:
    """Give what BM25 and an engine's cosine score, (1 + cosine) / 2, are multiplied by before they are added.

    The sum is (1 - w) BM25 / (4 root of the idf sum) + w (1 + cosine). A query without known terms has no
    lexical part.
    """
    root = LEXICAL_SCALE * math.sqrt(idf_sum)
    return (1 - dense_weight) / root if root else 0.0, 2 * dense_weight * scale


def absolute_query(
    lexical: dict[str, Any],
    leg: dict[str, Any],
    dense: Callable[[float], dict[str, Any]],
    scored: dict[str, Any],
    weights: tuple[float, float],
    window: int,
) -> dict[str, Any]:
    """Rank by `weights[0]` x BM25 + `weights[1]` x dense score, both true for every candidate, in one search.

    The candidates come from both legs: `leg`, which is `lexical` with name and filter, and `dense`, which
    builds the k-NN query of a boost. The best `window` of each shard are scored again, where a document of
    one leg only gets its score of the other by `scored`, the script that `dense_script` builds. No pipeline
    is needed: pages, filters and aggregations stay as usual.
    """
    boost = weights[1] / weights[0] if weights[0] else 1.0
    either = {"bool": {"should": [lexical, {"match_all": {"boost": 0.0}}]}}
    script = {"script_score": {"query": either, "script": scored}}
    return {
        "query": {"bool": {"should": [leg, dense(boost)]}},
        "rescore": {
            "window_size": window,
            "query": {"query_weight": 0.0, "rescore_query_weight": 1.0, "rescore_query": script},
        },
    }


def dense_script(vector: Sequence[float], field: str, weights: tuple[float, float]) -> dict[str, Any]:
    """Add the exact cosine as an engine score, 0 to 1 and .5 without a vector, to the score of the query."""
    return {
        "source": (
            f"params.lexical * _score + (doc['{field}'].size() == 0 ? params.dense / 2.0 : "
            f"params.dense * (1.0 + cosineSimilarity(params.vector, doc['{field}'])) / 2.0)"
        ),
        "params": {"lexical": weights[0], "dense": weights[1], "vector": list(vector)},
    }


def true_dense_score(score: float, lexical: float | None, body: dict[str, Any]) -> float | None:
    """Solve the absolute fusion for the dense score, which the engine does not name on its own."""
    params = body["rescore"]["query"]["rescore_query"]["script_score"]["script"]["params"]
    rest = score - params["lexical"] * (lexical or 0.0)
    return rest / params["dense"] if params["dense"] else None


def absolute_obstacle(info: IndexInfo, feedback: str | None) -> str | None:
    """Say why BM25 and cosines of this index cannot be added up; None where they can."""
    if info.record.passages is not None:
        return "its documents have several vectors (--passages)"
    if info.record.similarity != "cosine":
        return "its encoder compares by inner product"
    return "rm3 changes the scale of BM25" if feedback == "rm3" else None
