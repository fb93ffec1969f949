"""Forms derived from an encoder's output: whitened query vectors, and bits of the states of tokens.

Partial whitening: directions in which an index's documents vary most count less in queries. In an encoder's
vectors, much of the difference between documents lies in a few directions (subject, length, style), and all
documents share one mean direction. Both say little about which document answers a query. Only queries are
changed, so that documents keep their vectors.

Token bits: states of a document's tokens in one bit a dimension, for late interaction. The bits of a token
are the signs of its state minus the mean state of the collection's tokens. The similarity of two tokens is
1 - 2 x hamming / width of their bits. It follows the cosine of their states (Charikar 2002). Late interaction
(Khattab and Zaharia 2020) takes for each query token the nearest token of a document.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .contract import Reading, TokenEncoder, Vectors, unit_length

LEVEL = 8
"""Rank of the direction to whose strength stronger ones are reduced."""
SHARE_OF_MEAN = 0.25
"""Share of the documents' mean vector that is subtracted from a query's vector."""


class Whitening(NamedTuple):
    """Correction of query vectors: subtracts `mean` `(dim,)`, then the projections on `rows` `(n, dim)`."""

    mean: Vectors
    rows: Vectors

    @classmethod
    def fit(cls, documents: Vectors) -> Whitening | None:
        """Return the correction for an index with these document vectors `(n, dim)`; None if they vary in
        fewer than eight directions.

        It reduces each principal direction that is stronger than the eighth to the strength of the eighth:
        rows = sqrt(1 - spread of the eighth / spread of the direction) * direction.
        """
        vectors = unit_length(documents)
        mean = vectors.mean(axis=0)
        _, spreads, directions = np.linalg.svd(vectors - mean, full_matrices=False)
        if len(spreads) < LEVEL or spreads[LEVEL - 1] < 1e-6 * spreads[0]:
            return None
        shares = spreads[LEVEL - 1] / spreads[: LEVEL - 1]
        rows = np.sqrt(1 - shares)[:, None] * directions[: LEVEL - 1]
        return cls(*(part.astype(np.float32) for part in (SHARE_OF_MEAN * mean, rows)))

    @classmethod
    @lru_cache(16)  # each search reads that of its index
    def from_text(cls, text: str, dim: int) -> Whitening | None:
        """Return the correction that `text` encodes; None if that is invalid or of another dimension."""
        try:
            values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f2")
        except (binascii.Error, ValueError):
            return None
        if not (dim and len(values) >= dim) or len(values) % dim or not np.isfinite(values).all():
            return None
        mean, *rows = values.reshape(-1, dim).astype(np.float32)
        return cls(mean, np.reshape(rows, (-1, dim)))

    @property
    def text(self) -> str:
        """Return the correction as base64 of its numbers in half precision: 2.7 characters per number."""
        return base64.b64encode(np.vstack([self.mean, self.rows]).astype("<f2").tobytes()).decode()

    def apply(self, queries: Vectors) -> Vectors:
        """Return query vectors `(n, dim)` whitened, of length 1."""
        centred: Vectors = unit_length(queries) - self.mean
        shares: Vectors = centred @ self.rows.T  # (n, rows)
        return unit_length(centred - shares @ self.rows)


def whiten(queries: Vectors, whitening: Whitening | None) -> Vectors:
    """Return query vectors corrected by `whitening`; unchanged without one."""
    return whitening.apply(queries) if whitening else queries


Kept = TypeVar("Kept")

Bits: TypeAlias = NDArray[np.uint8]
"""`(tokens, bytes)`: a multiple of 8 bytes per token, padded with zero bits."""
BITS_OF_LONG = 64
MAX_TOKENS = 16_384  # of a document; later tokens have no bits
MAX_QUERY_TOKENS = 32  # the heaviest; each costs a pass over the tokens of every candidate
STORED_MEAN = np.dtype("<f2")
ONES = np.array([number.bit_count() for number in range(256)], dtype=np.uint8)


def bytes_per_token(width: int) -> int:
    """Return the number of bytes that store a token of `width` dimensions: 48 for 384."""
    longs = -(-width // BITS_OF_LONG)  # rounded up
    return longs * BITS_OF_LONG // 8


def pack_bits(states: Vectors, mean: Vectors) -> Bits:
    """Return a bit for each value of states `(tokens, width)`: whether it is above the mean `(width,)`.

    States are compared as float16, like the stored mean, so that states stored as float16 give the same bits.
    """
    packed = np.packbits(states.astype(STORED_MEAN).astype(np.float32) > mean, axis=1)
    return np.pad(packed, ((0, 0), (0, bytes_per_token(len(mean)) - packed.shape[1])))


def mean_state(states: Iterable[Vectors], width: int) -> Vectors:
    """Return the mean `(width,)` of all tokens' states, rounded as an index stores it; 0 without tokens."""
    total, count = np.zeros(width), 0
    for array in states:
        total += array.sum(axis=0, dtype=np.float64)
        count += len(array)
    return (total / max(1, count)).astype(STORED_MEAN).astype(np.float32)


def mean_as_text(mean: Vectors) -> str:
    """Return a mean `(width,)` as base64 of float16, 1 kB for 384 values."""
    return base64.b64encode(mean.astype(STORED_MEAN).tobytes()).decode()


def mean_from_text(text: str) -> Vectors:
    """Return the mean that `mean_as_text` wrote."""
    return np.frombuffer(base64.b64decode(text), dtype=STORED_MEAN).astype(np.float32)


def read_to_end(
    encoder: TokenEncoder,
    texts: Sequence[str],
    keep: Callable[[str, Reading], Kept],
    *,
    max_tokens: int | None = None,
) -> tuple[Vectors, list[list[Kept]]]:
    """Read documents to their ends, up to 16,384 tokens.

    Return vectors `(n, dim)`, and for each document the values that `keep` returns for its windows. A text
    beyond the encoder's limit is read in consecutive windows. Vectors are those of `encode_documents`, thus
    of the first window.
    """
    vectors = np.zeros((len(texts), encoder.dim), dtype=np.float32)
    token_lists: list[list[Kept]] = [[] for _ in texts]
    unread, tokens = dict(enumerate(texts)), [0] * len(texts)
    while unread:
        readings = encoder.read_documents(list(unread.values()), max_tokens=max_tokens)
        if not any(token_lists):
            vectors = np.stack([reading.vector for reading in readings])
        remainders = {}
        for (number, text), reading in zip(unread.items(), readings, strict=True):
            token_lists[number].append(keep(text, reading))
            tokens[number] += len(reading.states)
            remainder = text[reading.spans[-1][1] :] if reading.spans else ""
            if remainder.strip() and tokens[number] < MAX_TOKENS:
                remainders[number] = remainder
        unread = remainders
    return vectors, token_lists


def joined_bits(windows: Sequence[Bits]) -> Bits:
    """Return the bits of all windows of a document, at most 16,384 tokens."""
    return np.concatenate(windows)[:MAX_TOKENS]


def heaviest_tokens(bits: Bits, weights: Vectors) -> tuple[Bits, Vectors]:
    """Return the bits and weights `(tokens,)` of a query's 32 heaviest tokens; the weights sum to 1."""
    order = np.argsort(-weights, kind="stable")[:MAX_QUERY_TOKENS]
    rows = np.sort(order[weights[order] > 0])
    if not len(rows):
        return bits[rows], weights[rows]
    return bits[rows], weights[rows] / weights[rows].sum()


def agreement(bits: Bits, stored: bytes) -> float:
    """Return the share of equal bits, 0 to 1, of two documents of the same size; 1 without bits."""
    if not bits.size:
        return 1.0
    differences = ONES[bits.reshape(-1) ^ np.frombuffer(stored, dtype=np.uint8)]
    return 1.0 - float(differences.sum(dtype=np.int64)) / (8 * bits.size)
