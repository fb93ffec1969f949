"""How far apart an encoder's cosines lie: what makes them comparable with BM25 scores of any index.

Two encoders that rank alike may spread their cosines over .1 or over .02. The absolute fusion adds cosines to
BM25 scores, so it multiplies them by the ratio of spreads to the encoder it was measured with.
"""

from __future__ import annotations

from .encoder import Encoder

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
