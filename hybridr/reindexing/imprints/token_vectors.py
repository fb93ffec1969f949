"""A vector for each token (ColBERT), by an encoder of its own beside that of the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...cluster.connection import Cluster
from ...cluster.legs.dense import as_kept
from ...cluster.record import Record
from ...cluster.token_field import TOKENS_FIELD, TOKENS_MAPPING, TokenState, token_vectors_in, tokens_value
from ...cluster.vector_forms import Version
from ...encoding.contract import Encoder, Vectors
from ...encoding.graph_folders import graph_entry, open_once
from ...encoding.multi_vector import MultiVectorEncoder, largest_products
from ...encoding.passages import middle_of
from ...errors import SettingsError
from ..settings import ReindexSettings
from . import Impression, Imprint, Sample
from .one_vector import are_near

MEASURED_TEXTS, COUNTED_TEXTS = 10, 20
SOURCE_BYTES = {"byte": 2.4, "float": 6.3}
"""Of a value on disk, in a compressed `_source` (docs/measured/ranking.md)."""


class TokenVectors(Imprint):
    """Vectors of the tokens that an encoder reads in a text; the state is its fingerprint, the form of
    values, and the spread of scores, as JSON."""

    name = "token_vectors"
    help = "a vector for each token, by --token-encoder"
    setting = "imprints"
    compared = "token vectors"
    reads_tokens = False
    shows = False

    @classmethod
    def fields(cls, named: ReindexSettings | Record) -> tuple[str, ...]:
        """Name the field of the vectors."""
        return (TOKENS_FIELD,)

    @classmethod
    def described(cls, record: Record) -> str:
        """Say by which encoder, and in which values."""
        state = TokenState.read(record.imprints[cls.name])
        return f"{cls.compared} by {state.encoder[:12]}, {state.values}"

    @classmethod
    def check(cls, cluster: Cluster, encoder: Encoder, settings: ReindexSettings) -> None:
        """Refuse to go on without an encoder that can be opened."""
        if settings.token_encoder is None:
            raise SettingsError(
                f"the imprint '{cls.name}' needs --token-encoder DIR", hint=MultiVectorEncoder.made
            )
        open_once(MultiVectorEncoder, settings.token_encoder)

    @cached_property
    def made(self) -> TokenState:
        """Give what decides the vectors: as the index remembers it, else as the settings say."""
        if self.state:
            return TokenState.read(self.state)
        folder = self.settings.token_encoder
        assert folder is not None  # see `check`
        encoder = graph_entry(MultiVectorEncoder, folder).fingerprint
        return TokenState(encoder=encoder, values=self.settings.token_values)

    @cached_property
    def own_encoder(self) -> MultiVectorEncoder:
        """Open the encoder of the vectors."""
        return open_once(MultiVectorEncoder, self.settings.token_encoder, self.made.encoder)

    @property
    def job(self) -> dict[str, Any]:
        """Name encoder and values, but not what was measured."""
        return {self.name: [self.made.encoder, self.made.values]}

    def mapping(self, version: Version) -> dict[str, Any]:
        """Map the field of the vectors, which is only read."""
        return {TOKENS_FIELD: TOKENS_MAPPING}

    def fitted(self, sample: Sample) -> str:
        """Measure how mean scores spread: of words from the middle of documents with each of a few."""
        texts = [text for text in sample(2 * MEASURED_TEXTS) if text.strip()][:MEASURED_TEXTS]
        return self.made.model_copy(update={"spread": self._spread(texts)}).model_dump_json()

    def _spread(self, texts: Sequence[str]) -> float | None:
        if len(texts) < MEASURED_TEXTS:
            return None
        documents = self.own_encoder.encode_documents(texts)
        queries = self.own_encoder.encode_queries([middle_of(text) for text in texts])
        means = [[largest_products(one, other) / len(one) for other in documents] for one in queries]
        return round(float(np.std(means)), 6) or None

    def read(self, texts: Sequence[str]) -> list[Vectors]:
        """Give the vectors of the tokens of texts."""
        return self.own_encoder.encode_documents(texts)

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

    def planned(self, vectors: int, size: int) -> str:
        """Say what comes."""
        return f"{self.compared}, {self.made.values}: about {size / 1e6:,.1f} MB a copy"
