"""What makes BM25 scores and cosines comparable, so that a fusion can add them up without looking at lists.

BM25 is divided by the root of the idf sum of the query's terms. Two encoders that rank alike may spread their
cosines over .1 or over .02, so these are multiplied by the ratio of spreads to the encoder it was measured
with. Why the root, and why 4: benchmarks/README.md.
"""

from __future__ import annotations

import math

from .encoder import Encoder

LEXICAL_SCALE = 4.0
MINILM_SPREAD = 0.1952
"""Of the packaged encoder, by `spread_of`."""

LARGEST = 8.0  # a model of another language may see no difference between these texts
QUESTIONS = (
    "how do vaccines work", "capital of Portugal", "sort a list of numbers in Python",
    "symptoms of iron deficiency", "how to change a bicycle tyre", "what causes earthquakes",
    "interest rate on savings accounts", "recipe for tomato soup", "who wrote Hamlet",
    "speed of sound in water",
)  # fmt: skip
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
