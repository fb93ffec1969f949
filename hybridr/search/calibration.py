"""What brings the cosines of any encoder to the scale of the packaged one's, measured on fixed texts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from ..encoding.contract import Encoder, TokenEncoder
from ..encoding.query_map import MappedEncoder, lengths
from ..errors import DownloadError
from ..files.remembered import remember_spread, spread_known

MINILM_SPREAD = 0.1952
"""Of the packaged encoder, by `spread_of`."""
MINILM_STATES = 0.5169  # by `state_spread_of`
NEAR_TOKENS = 30
LARGEST = 8.0  # a model of another language may see no difference between these texts
LARGEST_OF_STATES = 2.0
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


def known_scale(encoder: Encoder) -> float:
    """Give the factor that brings an encoder's cosines to the spread of the packaged one's, at most 8.

    Measured once for an encoder, and kept on this machine by its fingerprint.
    """
    return scale_of(known(scale_key(encoder), lambda: spread_of(encoder)), MINILM_SPREAD)


def known_state_scale(encoder: TokenEncoder) -> float:
    """Give the same factor, at most 2, for how much nearer a token is to its nearest than to others."""
    spread = known(f"{scale_key(encoder)} states", lambda: state_spread_of(encoder))
    return scale_of(spread, MINILM_STATES, LARGEST_OF_STATES)


def known(key: str, measure: Callable[[], float]) -> float:
    """Give a spread that was measured before, else measure it."""
    spread = spread_known(key)
    if spread is None:
        spread = measure()
        with suppress(DownloadError):  # a search does not fail because nothing can be written
            remember_spread(key, spread)
    return spread


def scale_key(encoder: Encoder) -> str:
    """Name what decides an encoder's cosines: its weights, its arithmetic, and its query map."""
    parts = [encoder.fingerprint]
    parts += [str(getattr(encoder, name)) for name in ("precision", "backend") if hasattr(encoder, name)]
    parts += [encoder.query_map.fingerprint] if isinstance(encoder, MappedEncoder) else []
    return " ".join(parts)


def scale_of(spread: float, usual: float, largest: float = LARGEST) -> float:
    """Give the factor that brings a spread to the usual one, up to the largest one."""
    return min(usual / spread, largest) if spread > 0 else largest


def spread_of(encoder: Encoder) -> float:
    """Give the standard deviation of the cosines between fixed questions and statements, English ones."""
    return float((encoder.encode_queries(QUESTIONS) @ encoder.encode_documents(STATEMENTS).T).std())


def state_spread_of(encoder: TokenEncoder) -> float:
    """Give how much nearer a token of the questions is to its nearest of the statements than to its 30th."""
    questions, statements = encoder.read_queries(QUESTIONS), encoder.read_documents(STATEMENTS)
    left, right = (np.concatenate([one.states for one in side]) for side in (questions, statements))
    cosines = np.sort(left @ right.T / np.outer(lengths(left), lengths(right)), axis=1)
    return float((cosines[:, -1] - cosines[:, -min(NEAR_TOKENS, cosines.shape[1])]).mean())
