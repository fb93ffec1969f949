"""Signal token bits: late interaction between tokens of query and document, with one bit a dimension.

The document's bits are written by `hybridr reindex --token-bits`. For each query token the nearest document
token counts, by its share of idf; tokens of words that the analyser drops weigh nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

import numpy as np

from ...cluster.token_field import bits_query
from ...encoders.contract import Vectors, reads_tokens
from ...encoders.derived import heaviest_tokens, mean_from_text, pack_bits
from ...indexing.terms.terms import Word
from ..calibration import token_state_scale
from . import Place, QueryReading, Signal

SCALE = 1.44


class TokenBits(Signal):
    """Adds for each token of the query the nearness of the nearest token of the document."""

    name = "token_bits"
    help = "tokens of the document near those of the query"
    weight = 0.4
    replaces = "soft_terms"  # with both signals a search ranks no better, and is slower
    reads_tokens = True
    needs_scripts = True

    def __init__(self, place: Place) -> None:
        assert reads_tokens(place.encoder)
        self.mean = mean_from_text(place.info.record.token_bits)
        self.factor = SCALE * token_state_scale(place.encoder)

    @classmethod
    def obstacle(cls, place: Place) -> str | None:
        """Return a reason if the encoder gives no token states, or the index keeps no bits; else None."""
        if not reads_tokens(place.encoder):
            return "the encoder does not show the states of tokens"
        if not place.info.record.token_bits:
            return (
                "the index has no token bits: hybridr reindex "
                f"{quote(place.info.record.source or place.info.name)} --token-bits"
            )
        return None

    def clauses(self, reading: QueryReading) -> list[dict[str, Any]]:
        """Return a script query that compares the query's weighted token bits with those of each document."""
        _, states, spans = reading.reading
        weights = token_weights(reading.analysed.words, spans)
        if not weights.any():
            return []
        bits, shares = heaviest_tokens(pack_bits(states, self.mean), weights)
        return [bits_query(bits, shares, len(self.mean), self.factor)]


def token_weights(words: Sequence[Word], spans: Sequence[tuple[int, int]]) -> Vectors:
    """Return for each token `(tokens,)` the idf of the heaviest word that it overlaps; 0 without one."""
    idfs = ([word.idf for word in words if word.start < end and start < word.end] for start, end in spans)
    return np.array([max(overlapped, default=0.0) for overlapped in idfs], dtype=np.float32)
