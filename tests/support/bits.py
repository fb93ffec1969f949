"""What a search with token bits asks of each document, for tests that score documents themselves."""

from __future__ import annotations

import numpy as np

from hybridr import Search
from hybridr.encoding.bits import bits_of, heaviest, mean_from_text
from hybridr.search.calibration import known_state_scale
from hybridr.search.signals.token_bits import SCALE, TokenBits, token_weights


def asked_bits(search: Search, text: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Give a query's bits, their weights, and what late interaction is multiplied by in the score."""
    mean = mean_from_text(search.info.record.token_bits)
    [reading], [analysed] = search.encoder.read_queries([text]), search.analysis.of([text])
    query, weights = heaviest(bits_of(reading.states, mean), token_weights(analysed.words, reading.spans))
    return query, weights, TokenBits.weight * SCALE * known_state_scale(search.encoder)
