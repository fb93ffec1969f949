"""The field of token vectors: how an index keeps them, what it remembers, and what scores by them.

They are doc values, for a client to read and compare: 50 documents of 150 vectors in some milliseconds. The
k-NN plugin's `lateInteractionScore` reads them from the JSON of `_source`, in more than a hundred.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import compress
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from .record import Record
from .record_parts import RepresentationState
from .retrievers.dense import as_kept

TOKENS_FIELD, TOKENS_REPRESENTATION = "hybridr_token_vectors", "token_vectors"
TokenValues: TypeAlias = Literal["float", "byte"]
OUTDATED = "its vectors of tokens are kept as JSON, which was slow: hybridr reindex INDEX --token-encoder DIR"
BLOCK_VECTORS = 32  # vectors
STORED_AS: dict[TokenValues, str] = {"float": "<f4", "byte": "i1"}


class TokenState(RepresentationState):
    """What an index remembers of its token vectors: which encoder made them, of how many dimensions, the form
    of values, and how mean scores spread; None where that could not be measured."""

    about = "token vectors"
    values: TokenValues
    dim: int | None = Field(None, gt=0, description="None: kept as JSON, as hybridr did at first")
    spread: float | None = Field(None, gt=0)

    @classmethod
    def of(cls, record: Record) -> TokenState | None:
        """Read what an index remembers; None where it has no such vectors."""
        text = record.representations.get(TOKENS_REPRESENTATION)
        return cls.read(text) if text else None

    @property
    def bytes_a_token(self) -> int:
        """Return the bytes of a vector: 128 of 128 dimensions in bytes, 512 in floats."""
        return (self.dim or 0) * np.dtype(STORED_AS[self.values]).itemsize


def tokens_value(vectors: NDArray[np.float32], values: TokenValues) -> dict[str, str]:
    """Return the field with the vectors `(tokens, dim)` of a document, as floats or bytes."""
    held = as_kept(vectors, values).astype(STORED_AS[values])
    return {TOKENS_FIELD: base64.b64encode(held.tobytes()).decode()}


def token_vectors_in(held: bytes, state: TokenState) -> NDArray[np.float32]:
    """Read the vectors `(tokens, dim)` of documents, of any length; none of what is no number of vectors."""
    each = state.bytes_a_token
    rows = np.frombuffer(held if each and len(held) % each == 0 else b"", np.uint8).reshape(-1, max(1, each))
    return rows.view(STORED_AS[state.values]).astype(np.float32)


def max_sims(
    query: NDArray[np.float32], documents: Sequence[bytes], state: TokenState
) -> NDArray[np.float32]:
    """Score documents `(n,)` by the vectors `(tokens, dim)` of a query: sums of the largest cosines.

    Those without vectors have NaN.
    """
    each = max(1, state.bytes_a_token)
    counts = np.array([len(stored) // each if len(stored) % each == 0 else 0 for stored in documents])
    sims = np.full(len(documents), np.nan, dtype=np.float32)
    if counts.any():
        there = counts > 0
        vectors = token_vectors_in(b"".join(compress(documents, there)), state)
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        cosines = products_with(vectors, query) / np.maximum(lengths, 1e-12)[:, None]
        starts = np.cumsum(counts[there]) - counts[there]
        sims[there] = np.maximum.reduceat(cosines, starts, axis=0).sum(axis=1)
    return sims


def products_with(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Multiply vectors `(n, dim)` by those of a query `(m, dim)` to `(n, m)`.

    In small blocks, which BLAS does in this thread: its own ones, waiting in circles beside those of the
    encoder, make it five times as long.
    """
    blocks = -(-len(vectors) // BLOCK_VECTORS)
    filled = np.zeros((blocks * BLOCK_VECTORS, vectors.shape[1]), dtype=np.float32)
    filled[: len(vectors)] = vectors
    products = filled.reshape(blocks, BLOCK_VECTORS, -1) @ query.T  # (blocks, BLOCK_VECTORS, m)
    return products.reshape(len(filled), -1)[: len(vectors)]
