"""The adapter ensemble: joins the base encoder with a second retriever, and keeps the components that tell
documents apart.

Nothing is trained. The vectors of both stand side by side, weighted by their shares; those of the second are
centred, because vectors of a retriever like E5 all lie in one direction. Of the joined vectors as many
principal components are kept as the base has dimensions, so that an index does not grow. Two retrievers err
on different texts (Hansen and Salamon 1990).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from ...records import Progress, silent
from ...settings import Stage
from ..contract import Encoder, Vectors, of_length_one
from ..export.exporting import opened_encoder, second_retriever
from ..export.weights import EnsembleBiEncoder, NumpyBiEncoder, fitted
from ..opening import OnnxEncoder
from . import DOCUMENT_TOKENS

ENCODED = 64  # documents between two reports
ENOUGH = 2  # documents for each component: with fewer, all dimensions stay


class EnsembleSettings(Stage):
    """Settings of the ensemble: the second retriever beside the base. Part of `AdaptSettings`, with the
    defaults filled in.
    """

    table: ClassVar[str] = "adapt.objective_settings"

    second: str = Field("e5-small-v2", min_length=1)
    dim: int | None = Field(None, ge=16, le=4096)
    fields: tuple[str, ...] = ()
    max_documents: int = Field(2_000, ge=100)
    held_out: int = Field(200, ge=20)
    seed: int = Field(13, ge=0)


class Ensemble:
    """Joins the base encoder with a second retriever."""

    name = "ensemble"
    help = "join the base with a second retriever, by the components of the documents (no training)"
    on = "documents"
    title = "ensemble of two retrievers"
    strength = 0.3
    """The second one's share: chosen on cranfield, npl, fiqa_mini, tldr_cmd and squadshifts_amazon."""
    Settings = EnsembleSettings
    candidate: EnsembleBiEncoder
    encoder: Encoder
    old_encoder: Encoder

    def __init__(self, base: NumpyBiEncoder, settings: EnsembleSettings, progress: Progress = silent) -> None:
        """Open the second retriever. Raises ModelError if both cannot be joined, DownloadError."""
        self.first, self.second = base, second_retriever(settings.second, progress=progress)
        width = base.dim + self.second.dim
        centre, components = np.zeros(self.second.dim, np.float32), np.eye(width, dtype=np.float32)
        self.side_by_side = EnsembleBiEncoder(base, self.second, centre, components)
        self.fingerprint = self.side_by_side.fingerprint
        self.size = settings.dim or base.dim

    def fit(self, texts: list[str], unseen: list[str], strength: float, progress: Progress) -> dict[str, Any]:
        """Fit `candidate` to documents; return facts for a manifest.

        Losses are the part of the vectors' squared length that the components lose: of the fitted documents,
        and of `unseen` ones.
        """
        started, count, documents = time.monotonic(), len(texts), [*texts, *unseen]
        opened = opened_encoder(self.side_by_side)
        parts, limit = list[Vectors](), min(DOCUMENT_TOKENS, opened.max_tokens)
        for start in range(0, len(documents), ENCODED):
            progress("fit", start, len(documents))
            batch = documents[start : start + ENCODED]
            parts.append(opened.encode_documents(batch, max_tokens=limit))
        progress("fit", len(documents), len(documents))
        first, second = both_of(np.concatenate(parts), self.first.dim)
        dim = kept_dimensions(self.size, self.first.dim + self.second.dim, count)
        self.candidate = fitted(self.first, self.second, (first[:count], second[:count]), strength, dim)
        joined = self.candidate.joined(first, second)
        self.encoder = RememberingEncoder(FittedEncoder(self.candidate, opened), documents, joined, limit)
        self.old_encoder = RememberingEncoder(opened_encoder(self.first), documents, first, limit)
        lost = 1 - np.square(self.candidate.projected(first, second)).sum(axis=1)
        return {
            "documents": count,
            "steps": 0,
            "losses": [],
            "loss_start": 1.0,
            "loss_end": float(lost[:count].mean()),
            "unseen_loss": [1.0, float(lost[count:].mean())],
            "seconds": round(time.monotonic() - started, 1),
            "resumed_from": 0,
            "dim": dim,
        }


def kept_dimensions(size: int, width: int, documents: int) -> int:
    """Return how many of `width` components to keep: `size`, or all if there are too few documents."""
    return size if documents >= ENOUGH * size else width


def both_of(vectors: Vectors, dim: int) -> tuple[Vectors, Vectors]:
    """Return the two halves of vectors side by side, each scaled to length 1; the first half has `dim`
    numbers.
    """
    first, second = np.split(vectors, [dim], axis=1)
    return of_length_one(first), of_length_one(second)


class FittedEncoder:
    """The fitted candidate as an encoder, run by the opened graph of both retrievers."""

    def __init__(self, candidate: EnsembleBiEncoder, opened: OnnxEncoder) -> None:
        self._candidate, self._opened = candidate, opened
        self.dim, self.similarity, self.max_tokens = candidate.dim, candidate.similarity, candidate.max_tokens
        self.fingerprint = candidate.fingerprint

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of queries, float32 `(n, dim)`, in the order of `texts`."""
        return self._joined(self._opened.encode_queries(texts, max_tokens=max_tokens))

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of documents, float32 `(n, dim)`, in the order of `texts`."""
        return self._joined(self._opened.encode_documents(texts, max_tokens=max_tokens))

    def _joined(self, vectors: Vectors) -> Vectors:
        """Return the candidate's vectors, from the stacked vectors of both encoders."""
        return self._candidate.joined(*both_of(vectors, self._candidate.first.dim))


class RememberingEncoder:
    """An encoder that knows the vectors `(n, dim)` of some documents, read to `limit` tokens: the gate asks
    for many of them again.
    """

    def __init__(self, encoder: Encoder, documents: Sequence[str], vectors: Vectors, limit: int) -> None:
        self._encoder, self._limit = encoder, limit
        self._remembered = dict(zip(documents, vectors, strict=True))
        self.dim, self.similarity, self.max_tokens = encoder.dim, encoder.similarity, encoder.max_tokens
        self.fingerprint = encoder.fingerprint

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of queries, float32 `(n, dim)`, in the order of `texts`."""
        return self._encoder.encode_queries(texts, max_tokens=max_tokens)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of documents, float32 `(n, dim)`, in the order of `texts`."""
        remembered = self._remembered if max_tokens == self._limit else {}
        new_texts = [text for text in texts if text not in remembered]
        new = iter(self._encoder.encode_documents(new_texts, max_tokens=max_tokens) if new_texts else ())
        vectors = [remembered[text] if text in remembered else next(new) for text in texts]
        return np.stack(vectors) if vectors else np.empty((0, self.dim), np.float32)
