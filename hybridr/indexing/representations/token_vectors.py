"""Representation with a vector for each token (ColBERT), made by an encoder of its own."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...cluster.token_field import (
    SOURCE_BYTES,
    TOKENS_FIELD,
    TokenState,
    max_sims,
    token_vectors_in,
    tokens_value,
)
from ...encoders.contract import Vectors
from ...encoders.graph_folders import MultiVectorEncoder, open_once
from ...languages import middle_words
from . import ByOwnEncoder, EncodedDocument, InDocValues, Sample
from .one_vector import are_near

MEASURED_TEXTS, COUNTED_TEXTS = 10, 20


class TokenVectors(InDocValues, ByOwnEncoder):
    """Vectors of the tokens of a text. Its state is the encoder's fingerprint, the number format and the
    spread of scores, as JSON.
    """

    name = "token_vectors"
    help = "a vector for each token, by --token-encoder"
    compared = "token vectors"
    setting = "representations"
    shows = True
    kind, State, folder = MultiVectorEncoder, TokenState, "token_encoder"
    field, measured = TOKENS_FIELD, 20

    @staticmethod
    def kept_by(state: TokenState) -> str:
        """Return the number format of the values."""
        return state.values

    @property
    def state_settings(self) -> dict[str, Any]:
        """Return the number format and the dimension."""
        dim = open_once(MultiVectorEncoder, self.settings.token_encoder).dim
        return {"values": self.settings.token_values, "dim": dim}

    @property
    def job(self) -> dict[str, Any]:
        """Return the encoder's fingerprint, number format and dimension, without what was measured."""
        return {self.name: [self.own_state.encoder, self.own_state.values, self.own_state.dim]}

    def spread_of(self, texts: Sequence[str]) -> float | None:
        """Return the standard deviation of MaxSim scores over ten texts, with vectors as stored; None for
        fewer.
        """
        if len(texts := texts[:MEASURED_TEXTS]) < MEASURED_TEXTS:
            return None
        documents = [self.bytes_of(vectors) for vectors in self.encode(texts)]
        queries = self.own_encoder.encode_queries([middle_words(text) for text in texts])
        means = [max_sims(query, documents, self.own_state) / len(query) for query in queries]
        return round(float(np.nanstd(means)), 6) or None

    def encode(self, texts: Sequence[str]) -> list[Vectors]:
        """Return the token vectors `(tokens, dim)` of each text."""
        vectors: list[Vectors] = self.own_encoder.encode_documents(texts)
        return vectors

    def bytes_of(self, vectors: Vectors) -> bytes:
        """Return token vectors `(tokens, dim)` as the bytes that are stored."""
        return base64.b64decode(tokens_value(vectors, self.own_state.values)[TOKENS_FIELD])

    def values(self, encoded: EncodedDocument) -> dict[str, Any]:
        """Return the token vectors of the document in the stored form."""
        return tokens_value(encoded.kept[self.name][0], self.own_state.values)

    def fits(self, encoded: EncodedDocument, stored: bytes) -> bool:
        """Return whether the stored vectors are those of the document's text, but for rounding."""
        expected_bytes = self.bytes_of(encoded.kept[self.name][0])
        expected, vectors = (token_vectors_in(array, self.own_state) for array in (expected_bytes, stored))
        return expected.shape == vectors.shape and are_near(expected, vectors.tolist())

    def bytes_each(self, sample: Sample) -> float:
        """Return the estimated bytes of a document's vectors, from a sample."""
        arrays = self.encode([text for text in sample(COUNTED_TEXTS) if text.strip()])
        tokens = sum(map(len, arrays)) / max(1, len(arrays))
        return float(tokens * self.own_state.bytes_a_token * (1 + SOURCE_BYTES))
