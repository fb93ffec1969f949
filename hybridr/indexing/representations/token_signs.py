"""Token bits: one for each dimension of the state of each token, which late interaction compares."""

from __future__ import annotations

from typing import Any

from ...cluster.connection import Cluster
from ...cluster.record import BITS_FIELD, Record
from ...cluster.token_field import SOURCE_BYTES, bits_value
from ...encoders.bits import (
    MOST_TOKENS,
    Bits,
    agreement,
    bits_of,
    bytes_a_token,
    joined_bits,
    mean_as_text,
    mean_from_text,
    mean_state,
)
from ...encoders.contract import Encoder, Reading, TokenEncoder, reads_tokens
from ...encoders.passages import require_tokens
from ...errors import ModelError
from ..settings import ReindexSettings
from . import EncodedDocument, InDocValues, Sample

MEAN_DOCUMENTS, MEAN_AT_ONCE = 200, 50  # the states of so many documents' tokens are in memory
COUNTED_DOCUMENTS = 200
MIN_AGREEMENT = 0.85  # of the bits stored and those read again


class TokenSigns(InDocValues):
    """Bits of the states of all tokens; the state is their mean, as `mean_as_text` writes it."""

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
        """Name the field of the bits."""
        return (BITS_FIELD,)

    @classmethod
    def check(cls, cluster: Cluster, encoder: Encoder, settings: ReindexSettings) -> None:
        """Refuse bits where no search could use them, too."""
        if encoder.similarity != "cosine":
            raise ModelError(
                "--token-bits needs an encoder that compares by cosine, this one has inner products"
            )
        super().check(cluster, encoder, settings)

    def fitted(self, sample: Sample) -> str:
        """Fit the mean to a sample of documents."""
        texts, limit = [text for text in sample(MEAN_DOCUMENTS) if text], self.settings.max_tokens
        parts = (texts[start : start + MEAN_AT_ONCE] for start in range(0, len(texts), MEAN_AT_ONCE))
        readings = (self.encoder.read_documents(part, max_tokens=limit) for part in parts)
        states = (reading.states for part in readings for reading in part)
        return mean_as_text(mean_state(states, self.encoder.width))

    def keep(self, text: str, reading: Reading) -> Bits:
        """Take the bits of a window's tokens."""
        return bits_of(reading.states, self.mean)

    def values(self, encoded: EncodedDocument) -> dict[str, Any]:
        """Return the bits of all tokens."""
        return bits_value(joined_bits(encoded.kept[self.name]))

    def fits(self, encoded: EncodedDocument, held: bytes) -> bool:
        """Return whether a document holds bits for each token of its text, nearly all of them alike."""
        again = joined_bits(encoded.kept[self.name])
        return len(held) == again.size and agreement(again, held) >= MIN_AGREEMENT

    def bytes_each(self, sample: Sample) -> float:
        """Estimate the bytes of a document's bits, which lie there as base64 too: see `Cost` of vectors."""
        texts, source = sample(COUNTED_DOCUMENTS), require_tokens(self.encoder)
        tokens = sum(len(source.token_spans(text, MOST_TOKENS)) for text in texts) / max(1, len(texts))
        return tokens * bytes_a_token(self.encoder.width) * (1 + SOURCE_BYTES)
