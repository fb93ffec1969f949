"""A vector for each token (ColBERT), by an encoder of its own beside that of the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...cluster.legs.dense import as_kept
from ...cluster.token_field import TOKENS_FIELD, TOKENS_MAPPING, TokenState, token_vectors_in, tokens_value
from ...cluster.versions import Version
from ...encoding.contract import Vectors
from ...encoding.multi_vector import MultiVectorEncoder, largest_products
from ...encoding.passages import middle_of
from . import ByOwnEncoder, Impression, Sample
from .one_vector import are_near

MEASURED_TEXTS, COUNTED_TEXTS = 10, 20
SOURCE_BYTES = {"byte": 2.4, "float": 6.3}
"""Of a value on disk, in a compressed `_source` (docs/measured/rankers.md)."""


class TokenVectors(ByOwnEncoder):
    """Vectors of the tokens that an encoder reads in a text; the state is its fingerprint, the form of
    values, and the spread of scores, as JSON."""

    name = "token_vectors"
    help = "a vector for each token, by --token-encoder"
    compared = "token vectors"
    setting = "imprints"
    kind, State, folder = MultiVectorEncoder, TokenState, "token_encoder"
    field, measured = TOKENS_FIELD, 20

    @staticmethod
    def kept_by(state: TokenState) -> str:
        """Say in which values."""
        return state.values

    @property
    def chosen(self) -> dict[str, Any]:
        """Give what settings say besides the encoder."""
        return {"values": self.settings.token_values}

    @property
    def job(self) -> dict[str, Any]:
        """Name encoder and values, but not what was measured."""
        return {self.name: [self.made.encoder, self.made.values]}

    def mapping(self, version: Version) -> dict[str, Any]:
        """Map the field of the vectors, which is only read."""
        return {TOKENS_FIELD: TOKENS_MAPPING}

    def spread_of(self, texts: Sequence[str]) -> float | None:
        """Take the deviation of mean scores by ten texts; None by fewer."""
        if len(texts := texts[:MEASURED_TEXTS]) < MEASURED_TEXTS:
            return None
        documents = self.own_encoder.encode_documents(texts)
        queries = self.own_encoder.encode_queries([middle_of(text) for text in texts])
        means = [[largest_products(one, other) / len(one) for other in documents] for one in queries]
        return round(float(np.std(means)), 6) or None

    def read(self, texts: Sequence[str]) -> list[Vectors]:
        """Give the vectors of the tokens of texts."""
        found: list[Vectors] = self.own_encoder.encode_documents(texts)
        return found

    def values(self, impression: Impression) -> dict[str, Any]:
        """Give the vectors as they are kept."""
        return tokens_value(as_kept(impression.kept[self.name][0], self.made.values))

    def fits(self, impression: Impression, held: Any) -> bool:
        """Tell whether a document holds the vectors of its text, but for rounding."""
        again, kept = impression.kept[self.name][0], token_vectors_in({TOKENS_FIELD: held})
        return again.shape == kept.shape and are_near(again, kept.tolist())

    def bytes_each(self, sample: Sample) -> float:
        """Estimate the bytes of a document's vectors by a few documents."""
        found = self.read([text for text in sample(COUNTED_TEXTS) if text.strip()])
        return SOURCE_BYTES[self.made.values] * sum(one.size for one in found) / max(1, len(found))
