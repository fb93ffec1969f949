"""A vector for each token (ColBERT), by an encoder of its own beside that of the vectors."""

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
from ...languages import middle_of
from . import ByOwnEncoder, EncodedDocument, InDocValues, Sample
from .one_vector import are_near

MEASURED_TEXTS, COUNTED_TEXTS = 10, 20


class TokenVectors(InDocValues, ByOwnEncoder):
    """Vectors of the tokens that an encoder reads in a text; the state is its fingerprint, the form of
    values, and the spread of scores, as JSON."""

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
    def chosen(self) -> dict[str, Any]:
        """Return its settings besides the encoder."""
        dim = open_once(MultiVectorEncoder, self.settings.token_encoder).dim
        return {"values": self.settings.token_values, "dim": dim}

    @property
    def job(self) -> dict[str, Any]:
        """Name encoder, values and dimensions, but not what was measured."""
        return {self.name: [self.own_state.encoder, self.own_state.values, self.own_state.dim]}

    def spread_of(self, texts: Sequence[str]) -> float | None:
        """Take the deviation of mean scores by ten texts, as their vectors are kept; None by fewer."""
        if len(texts := texts[:MEASURED_TEXTS]) < MEASURED_TEXTS:
            return None
        documents = [self.bytes_of(vectors) for vectors in self.read(texts)]
        queries = self.own_encoder.encode_queries([middle_of(text) for text in texts])
        means = [max_sims(query, documents, self.own_state) / len(query) for query in queries]
        return round(float(np.nanstd(means)), 6) or None

    def read(self, texts: Sequence[str]) -> list[Vectors]:
        """Return the vectors of the tokens of texts."""
        vectors: list[Vectors] = self.own_encoder.encode_documents(texts)
        return vectors

    def bytes_of(self, vectors: Vectors) -> bytes:
        """Return vectors `(tokens, dim)` in the stored form."""
        return base64.b64decode(tokens_value(vectors, self.own_state.values)[TOKENS_FIELD])

    def values(self, encoded: EncodedDocument) -> dict[str, Any]:
        """Return the vectors as stored."""
        return tokens_value(encoded.kept[self.name][0], self.own_state.values)

    def fits(self, encoded: EncodedDocument, held: bytes) -> bool:
        """Whether a document holds the vectors of its text, but for rounding."""
        stored = self.bytes_of(encoded.kept[self.name][0])
        again, stored_vectors = (token_vectors_in(array, self.own_state) for array in (stored, held))
        return again.shape == stored_vectors.shape and are_near(again, stored_vectors.tolist())

    def bytes_each(self, sample: Sample) -> float:
        """Estimate the bytes of a document's vectors by a few documents; base64 goes when merges end."""
        arrays = self.read([text for text in sample(COUNTED_TEXTS) if text.strip()])
        tokens = sum(map(len, arrays)) / max(1, len(arrays))
        return float(tokens * self.own_state.bytes_a_token * (1 + SOURCE_BYTES))
