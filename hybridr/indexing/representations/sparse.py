"""Representation with sparse weights of tokens (uniCOIL, SPLADE), made by an encoder of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ...cluster.dialects import Version
from ...cluster.record import Record
from ...cluster.record_parts import RepresentationState
from ...cluster.retrievers.sparse import SPARSE_FIELD, feature_name
from ...encoders.graph_folders import SparseEncoder, open_once
from ...languages import middle_words
from . import ByOwnEncoder, EncodedDocument, Sample, TextReader

BLOCK = 10
COUNTED_TEXTS = 50
BYTES_A_WEIGHT = 54  # on disk, in `_source` and index (docs/measured/ranking.md)
MAX_WEIGHTS = 400  # of a document
MAX_DIFFERENCE = 0.02  # share of the sum of weights by which stored and recomputed ones may differ


class Sparse(ByOwnEncoder):
    """Token weights of a text. Its state is the encoder's fingerprint and the spread of scores, as JSON."""

    name = "sparse"
    help = "weights of tokens, by --sparse-encoder"
    compared = "sparse weights"
    setting = "representations"
    kind, folder = SparseEncoder, "sparse_encoder"
    field, measured = SPARSE_FIELD, 50

    @classmethod
    def reader(cls, record: Record, settings: Any) -> TextReader:
        """Return a function that weighs the tokens of queries with the documents' sparse encoder."""
        fingerprint = RepresentationState.parse(record.representations[cls.name]).encoder
        opened = cache(partial(open_once, SparseEncoder, settings.sparse_encoder, fingerprint))
        return lambda texts: opened().encode_queries(texts)

    def mapping(self, version: Version) -> dict[str, Any]:
        """Return the mapping of the field of weights."""
        return {SPARSE_FIELD: {"type": "rank_features"}}

    def spread_of(self, texts: Sequence[str]) -> float | None:
        """Return the standard deviation of scores, averaged over blocks of ten texts; None for fewer."""
        if len(texts) < BLOCK:
            return None
        documents = self.own_encoder.encode_documents(texts)
        queries = self.own_encoder.encode_queries([middle_words(text) for text in texts])

        def score(query: Mapping[str, float], document: Mapping[str, float]) -> float:
            """Return the score of a document for a query that is scaled to length 1."""
            length = float(np.linalg.norm(list(query.values()))) or 1.0
            return sum(weight * document.get(token, 0.0) for token, weight in query.items()) / length

        scores = np.array([[score(query, document) for document in documents] for query in queries])
        blocks = [scores[at : at + BLOCK, at : at + BLOCK] for at in range(0, len(texts) - BLOCK + 1, BLOCK)]
        return round(float(np.mean([block.std() for block in blocks])), 6) or None

    def encode(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Return the largest token weights of texts."""
        return [
            dict(sorted(weights.items(), key=lambda item: -item[1])[:MAX_WEIGHTS])
            for weights in self.own_encoder.encode_documents(texts)
        ]

    def values(self, encoded: EncodedDocument) -> dict[str, Any]:
        """Return the weights of the document, rounded to 4 digits because the engine keeps 9 bits."""
        weights = encoded.kept[self.name][0].items()
        return {SPARSE_FIELD: {feature_name(token): float(f"{weight:.4g}") for token, weight in weights}}

    def fits(self, encoded: EncodedDocument, stored: Any) -> bool:
        """Return whether the stored weights are those of the document's text, but for rounding."""
        weights = self.values(encoded)[SPARSE_FIELD]
        if not isinstance(stored, Mapping):
            return False
        gap = sum(abs(weights.get(token, 0.0) - stored.get(token, 0.0)) for token in {*weights, *stored})
        return bool(gap <= MAX_DIFFERENCE * sum(weights.values()))

    def bytes_each(self, sample: Sample) -> float:
        """Return the estimated bytes of a document's weights, from a sample."""
        weights = self.encode([text for text in sample(COUNTED_TEXTS) if text.strip()])
        return BYTES_A_WEIGHT * sum(map(len, weights)) / max(1, len(weights))
