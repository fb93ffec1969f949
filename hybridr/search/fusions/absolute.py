"""The absolute fusion: true scores of both legs, added up by one rescoring request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from ...cluster.legs.dense import DenseLeg, as_numbers
from ...cluster.record import Record
from ...encoding.contract import Encoder
from ...encoding.query_map import MappedEncoder
from ...errors import DownloadError
from ...files.remembered import remember_spread, spread_known
from . import Fusion, Grid, Legs, Question, Scores

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
UNSEEN = 0.5  # the engine score of a document without a vector
TWENTIETHS = [i / 20 for i in range(1, 20)]


class Absolute(Fusion):
    """Adds BM25 by the idf of the query's terms to cosines by the spread of the encoder's."""

    name = "absolute"
    help = "by their true scores"
    one_request = True
    needs_scales = True
    grids = (Grid("absolute", {"fusion": "absolute"}, TWENTIETHS),)

    @staticmethod
    def obstacle(record: Record, feedback: str | None) -> str | None:
        """Say why BM25 and cosines of this index cannot be added up; None where they can."""
        if record.passages is not None:
            return "its documents have several vectors (--passages)"
        if record.similarity != "cosine":
            return "its encoder compares by inner product"
        return "rm3 changes the scale of BM25" if feedback == "rm3" else None

    def body(self, question: Question, k: int) -> dict[str, Any]:
        """Rank by both legs' true scores; the engine names that of the lexical leg only."""
        words, vector = question.asked["lexical"], question.asked["dense"]
        lexical, dense = question.legs["lexical"], cast(DenseLeg, question.legs["dense"])
        weights = absolute_weights(self.settings.dense_weight, *question.scales)
        query = absolute_query(
            lexical.query(words, question.depth),
            question.query("lexical"),
            lambda boost: dense.query(vector, question.depth, filter=question.filter, boost=boost),
            dense_script(as_numbers(vector), dense.field, weights),
            weights,
            min(WINDOW * question.depth, LARGEST_WINDOW),
        )
        return {"size": k, **query}

    def scores(self, legs: Legs) -> dict[str, float]:
        """Add up what both legs give every candidate."""
        weight, (lexical, dense) = self.settings.dense_weight, self.sides(legs)
        return {doc: (1 - weight) * lexical[doc] + weight * dense[doc] for doc in legs.documents}

    def sides(self, legs: Legs) -> tuple[Scores, Scores]:
        """Bring true scores to one scale; the engine's cosine scores are from 0 to 1."""
        found = legs.documents
        lexical, dense = absolute_weights(0, *legs.scales)[0], absolute_weights(1, *legs.scales)[1]
        return (
            {doc: lexical * legs.lexical.get(doc, 0.0) for doc in found},
            {doc: dense * legs.dense.get(doc, UNSEEN) for doc in found},
        )

    def raw_scores(self, score: float, named: Scores, body: dict[str, Any]) -> Scores:
        """Solve the sum for the dense score, which the engine does not name on its own."""
        dense = true_dense_score(score, named.get("lexical"), body)
        return named if dense is None else {**named, "dense": dense}


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


def dense_scale(encoder: Encoder) -> float:
    """Measure the factor that brings an encoder's cosines to the spread of the packaged one's, at most 8."""
    return scale_of(spread_of(encoder))


def known_scale(encoder: Encoder) -> float:
    """Give `dense_scale`, measured once for an encoder and kept on this machine by its fingerprint."""
    key = scale_key(encoder)
    spread = spread_known(key)
    if spread is None:
        spread = spread_of(encoder)
        with suppress(DownloadError):  # a search does not fail because nothing can be written
            remember_spread(key, spread)
    return scale_of(spread)


def scale_key(encoder: Encoder) -> str:
    """Name what decides an encoder's cosines: its weights, its arithmetic, and its query map."""
    parts = [encoder.fingerprint]
    parts += [str(getattr(encoder, name)) for name in ("precision", "backend") if hasattr(encoder, name)]
    parts += [encoder.query_map.fingerprint] if isinstance(encoder, MappedEncoder) else []
    return " ".join(parts)


def scale_of(spread: float) -> float:
    """Give the factor that brings cosines of this spread to that of the packaged encoder's, at most 8."""
    return min(MINILM_SPREAD / spread, LARGEST) if spread > 0 else LARGEST


def spread_of(encoder: Encoder) -> float:
    """Give the standard deviation of the cosines between fixed questions and statements, English ones."""
    return float((encoder.encode_queries(QUESTIONS) @ encoder.encode_documents(STATEMENTS).T).std())
