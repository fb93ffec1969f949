"""Representation with a vector for each token (ColBERT), made by an encoder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...cluster.retrievers.dense import to_stored_values
from ...cluster.token_field import (
    SOURCE_BYTES,
    TOKENS_FIELD,
    binary_value,
    max_sims,
    token_vectors_in,
)
from ...encoders.contract import Vectors
from ...encoders.graph_folders import MultiVectorEncoder
from ...languages import middle_words
from . import ByOwnEncoder, EncodedDocument, InDocValues, Sample
from .one_vector import are_near

MEASURED_TEXTS, COUNTED_TEXTS = 10, 20


class TokenVectors(InDocValues, ByOwnEncoder):
    """Token vectors of a text. Its state is the encoder's fingerprint and the spread of scores, as JSON."""

    name = "token_vectors"
    help = "a vector for each token, by --token-encoder"
    compared = "token vectors"
    setting = "representations"
    shows = True
    kind, folder = MultiVectorEncoder, "token_encoder"
    field, measured = TOKENS_FIELD, 20

    def spread_of(self, texts: Sequence[str]) -> float | None:
        """Return the standard deviation of MaxSim scores over ten texts, as stored; None for fewer."""
        if len(texts := texts[:MEASURED_TEXTS]) < MEASURED_TEXTS:
            return None
        documents = [to_stored_values(vectors, "byte").tobytes() for vectors in self.encode(texts)]
        queries = self.own_encoder.encode_queries([middle_words(text) for text in texts])
        means = [max_sims(query, documents) / len(query) for query in queries]
        return round(float(np.nanstd(means)), 6) or None

    def encode(self, texts: Sequence[str]) -> list[Vectors]:
        """Return the token vectors `(tokens, dim)` of each text."""
        vectors: list[Vectors] = self.own_encoder.encode_documents(texts)
        return vectors

    def values(self, encoded: EncodedDocument) -> dict[str, Any]:
        """Return the token vectors of the document in the stored form."""
        return binary_value(TOKENS_FIELD, to_stored_values(encoded.kept[self.name][0], "byte"))

    def fits(self, encoded: EncodedDocument, stored: bytes) -> bool:
        """Return whether the stored vectors are those of the document's text, but for rounding."""
        expected = encoded.kept[self.name][0]
        vectors = token_vectors_in(stored, expected.shape[1])
        return expected.shape == vectors.shape and are_near(expected, vectors.tolist())

    def bytes_each(self, sample: Sample) -> float:
        """Return the estimated bytes of a document's vectors, from a sample."""
        arrays = self.encode([text for text in sample(COUNTED_TEXTS) if text.strip()])
        tokens = sum(map(len, arrays)) / max(1, len(arrays))
        return float(tokens * self.own_encoder.dim * (1 + SOURCE_BYTES))
