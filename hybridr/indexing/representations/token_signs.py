"""Representation with token bits: the sign of each dimension of each token's state, for late interaction."""

from __future__ import annotations

from typing import Any

from ...cluster.connection import Cluster
from ...cluster.record import BITS_FIELD, Record
from ...cluster.token_field import SOURCE_BYTES, binary_value
from ...encoders.contract import Encoder, Reading, TokenEncoder, reads_tokens
from ...encoders.derived import (
    MAX_TOKENS,
    Bits,
    agreement,
    bytes_per_token,
    joined_bits,
    mean_as_text,
    mean_from_text,
    mean_state,
    pack_bits,
)
from ...encoders.passages import require_tokens
from ...errors import ModelError
from ..settings import ReindexSettings
from . import EncodedDocument, InDocValues, Sample

MEAN_DOCUMENTS, MEAN_AT_ONCE = 200, 50  # documents of the mean, and those whose states are in memory
COUNTED_DOCUMENTS = 200
MIN_AGREEMENT = 0.85  # share of the stored bits that equal those of the text encoded again


class TokenSigns(InDocValues):
    """Sign bits of the states of all tokens. Its state is their mean, as written by `mean_as_text`."""

    name = "token_signs"
    help = "a bit for each dimension of each token"
    setting = "token_bits"
    compared = "token bits"
    freeing = "leave --token-bits out"
    staged = "their mean is fitted to the index"
    encoder: TokenEncoder

    def __init__(self, settings: ReindexSettings, encoder: Encoder, state: str = "") -> None:
        assert reads_tokens(encoder)
        super().__init__(settings, encoder, state or mean_as_text(mean_state([], encoder.width)))
        self.mean = mean_from_text(self.state)

    @classmethod
    def fields(cls, named: ReindexSettings | Record) -> tuple[str, ...]:
        """Return the name of the field of bits."""
        return (BITS_FIELD,)

    @classmethod
    def check(cls, cluster: Cluster, encoder: Encoder, settings: ReindexSettings) -> None:
        """Check what every representation does, and raise ModelError without cosine similarity."""
        if encoder.similarity != "cosine":
            raise ModelError(
                "--token-bits needs an encoder that compares by cosine, this one has inner products"
            )
        super().check(cluster, encoder, settings)

    def fitted(self, sample: Sample) -> str:
        """Return the mean of the token states of sampled documents, as text."""
        texts, limit = [text for text in sample(MEAN_DOCUMENTS) if text], self.settings.max_tokens
        parts = (texts[start : start + MEAN_AT_ONCE] for start in range(0, len(texts), MEAN_AT_ONCE))
        readings = (self.encoder.read_documents(part, max_tokens=limit) for part in parts)
        states = (reading.states for part in readings for reading in part)
        return mean_as_text(mean_state(states, self.encoder.width))

    def keep(self, text: str, reading: Reading) -> Bits:
        """Return the sign bits of the tokens of a window."""
        return pack_bits(reading.states, self.mean)

    def values(self, encoded: EncodedDocument) -> dict[str, Any]:
        """Return the bits of all tokens of the document."""
        return binary_value(BITS_FIELD, joined_bits(encoded.kept[self.name]))

    def fits(self, encoded: EncodedDocument, stored: bytes) -> bool:
        """Return whether the stored bits agree with those of the document's text for nearly all positions."""
        expected = joined_bits(encoded.kept[self.name])
        return len(stored) == expected.size and agreement(expected, stored) >= MIN_AGREEMENT

    def bytes_each(self, sample: Sample) -> float:
        """Return the estimated bytes of a document's bits, which are stored as base64 too."""
        texts, source = sample(COUNTED_DOCUMENTS), require_tokens(self.encoder)
        tokens = sum(len(source.token_spans(text, MAX_TOKENS)) for text in texts) / max(1, len(texts))
        return tokens * bytes_per_token(self.encoder.width) * (1 + SOURCE_BYTES)
