"""What a search with token bits asks of each document, for tests that score documents themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridr import Search
from hybridr.encoders.contract import TokenEncoder, Vectors
from hybridr.encoders.derived import (
    ONES,
    Bits,
    heaviest_tokens,
    joined_bits,
    mean_from_text,
    pack_bits,
    read_to_end,
)
from hybridr.search.calibration import token_state_scale
from hybridr.search.signals.token_bits import SCALE, TokenBits, token_weights


def read_bits(
    encoder: TokenEncoder, texts: Sequence[str], mean: np.ndarray, max_tokens: int | None = None
) -> tuple[np.ndarray, list[Bits]]:
    """Read documents whole: vectors `(n, dim)` of the beginnings, bits of all tokens."""
    vectors, found = read_to_end(
        encoder, texts, lambda _, reading: pack_bits(reading.states, mean), max_tokens=max_tokens
    )
    return vectors, [joined_bits(parts) for parts in found]


def asked_bits(search: Search, text: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Give a query's bits, their weights, and what late interaction is multiplied by in the score."""
    mean = mean_from_text(search.info.record.token_bits)
    [reading], [analysed] = search.encoder.read_queries([text]), search.analysis.of([text])
    query, weights = heaviest_tokens(
        pack_bits(reading.states, mean), token_weights(analysed.words, reading.spans)
    )
    return query, weights, TokenBits.weight * SCALE * token_state_scale(search.encoder)


def late_interaction(query: Bits, weights: Vectors, document: Bits, width: int) -> float:
    """Add up, by the weights `(query tokens,)`, how near each token's nearest in the document is.

    From 0 to 1 with weights that add up to 1; less than nothing counts as 0, as does a document of no tokens.
    """
    if not len(document) or not len(query):
        return 0.0
    apart = ONES[query[:, None] ^ document].sum(axis=2, dtype=np.int64)  # (query tokens, document tokens)
    return max(0.0, float(weights @ (1 - 2 * apart.min(axis=1) / width)))
