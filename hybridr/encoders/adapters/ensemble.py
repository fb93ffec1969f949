"""The adapter ensemble: joins the base encoder with a second retriever, and keeps the principal components of
their vectors.

Nothing is trained. The vectors of both are concatenated, weighted by their shares; those of the second are
centred, because all vectors of a retriever like E5 lie near one direction. As many principal components are
kept as the base has dimensions, so that an index does not grow. An ensemble is better than its parts because
two retrievers err on different texts (Hansen and Salamon 1990).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ...records import Progress, silent
from ...settings import Stage
from ..contract import Encoder, Vectors, unit_length
from ..export.exporting import open_in_onnx, second_retriever
from ..export.weights import EnsembleBiEncoder, NumpyBiEncoder, fit_ensemble
from . import DOCUMENT_TOKENS

ENCODED = 64  # documents between two progress reports
MIN_DOCUMENTS_PER_COMPONENT = 2  # with fewer, all dimensions stay


class EnsembleSettings(Stage):
    """Settings of the ensemble, such as the second retriever; the part of `AdaptSettings` with defaults."""

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
    """Share of the second retriever, chosen on cranfield, npl, fiqa_mini, tldr_cmd and squadshifts_amazon."""
    Settings = EnsembleSettings
    candidate: EnsembleBiEncoder
    encoder: Encoder
    old_encoder: Encoder

    def __init__(self, base: NumpyBiEncoder, settings: EnsembleSettings, progress: Progress = silent) -> None:
        """Open the second retriever. Raises ModelError if the two cannot be joined, DownloadError."""
        self.first, self.second = base, second_retriever(settings.second, progress=progress)
        width = base.dim + self.second.dim
        centre, components = np.zeros(self.second.dim, np.float32), np.eye(width, dtype=np.float32)
        self.side_by_side = EnsembleBiEncoder(base, self.second, centre, components)
        self.fingerprint = self.side_by_side.fingerprint
        self.size = settings.dim or base.dim

    def fit(self, texts: list[str], unseen: list[str], strength: float, progress: Progress) -> dict[str, Any]:
        """Fit `candidate` to documents; return facts for a manifest.

        Losses are the share of the vectors' squared length that the components lose, for fitted and `unseen`
        documents.
        """
        started, count, documents = time.monotonic(), len(texts), [*texts, *unseen]
        retrievers = BothRetrievers(self.side_by_side)
        limit = min(DOCUMENT_TOKENS, retrievers.max_tokens)
        for start in range(0, len(documents), ENCODED):
            progress("fit", start, len(documents))
            retrievers.encode("document", documents[start : start + ENCODED], limit)
        progress("fit", len(documents), len(documents))
        first, second = retrievers.encode("document", documents, limit)
        dim = kept_dimensions(self.size, self.first.dim + self.second.dim, count)
        self.candidate = fit_ensemble(self.first, self.second, (first[:count], second[:count]), strength, dim)
        self.encoder = ComparedEncoder(self.candidate, retrievers, self.candidate.joined)
        self.old_encoder = ComparedEncoder(self.first, retrievers, lambda vectors, _: vectors)
        loss = 1 - np.square(self.candidate.projected(first, second)).sum(axis=1)
        return {
            "documents": count,
            "steps": 0,
            "losses": [],
            "loss_start": 1.0,
            "loss_end": float(loss[:count].mean()),
            "unseen_loss": [1.0, float(loss[count:].mean())],
            "seconds": round(time.monotonic() - started, 1),
            "resumed_from": 0,
            "dim": dim,
        }


def kept_dimensions(size: int, width: int, documents: int) -> int:
    """Return the number of `width` components to keep: `size`, or all with too few documents."""
    return size if documents >= MIN_DOCUMENTS_PER_COMPONENT * size else width


class BothRetrievers:
    """Vectors of two retrievers, by one graph; they are cached, since the gate needs most of them twice."""

    def __init__(self, retrievers: EnsembleBiEncoder) -> None:
        self._opened = graph = open_in_onnx(retrievers)
        self.max_tokens, self._first_dim = graph.max_tokens, retrievers.first.dim
        self._vectors: dict[tuple[str, int | None, str], Vectors] = {}

    def encode(
        self, role: Literal["query", "document"], texts: Sequence[str], max_tokens: int | None = None
    ) -> tuple[Vectors, Vectors]:
        """Return the vectors `(n, dim)` of both, of length 1, in the order of `texts`."""
        keys = [(role, max_tokens, text) for text in texts]
        missing = [key for key in dict.fromkeys(keys) if key not in self._vectors]
        if missing:
            encode = self._opened.encode_queries if role == "query" else self._opened.encode_documents
            encoded = encode([text for *_, text in missing], max_tokens=max_tokens)
            self._vectors |= zip(missing, encoded, strict=True)
        vectors = np.array([self._vectors[key] for key in keys], np.float32).reshape(-1, self._opened.dim)
        first, second = np.split(vectors, [self._first_dim], axis=1)
        return unit_length(first), unit_length(second)


class ComparedEncoder:
    """An encoder that computes its vectors from those of both retrievers."""

    def __init__(
        self, encoder: NumpyBiEncoder, retrievers: BothRetrievers, join: Callable[[Vectors, Vectors], Vectors]
    ) -> None:
        self.dim, self.similarity, self.fingerprint = encoder.dim, encoder.similarity, encoder.fingerprint
        self.max_tokens, self._both, self._join = retrievers.max_tokens, retrievers, join

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of queries, float32 `(n, dim)`, in the order of `texts`."""
        return self._join(*self._both.encode("query", texts, max_tokens))

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of documents, float32 `(n, dim)`, in the order of `texts`."""
        return self._join(*self._both.encode("document", texts, max_tokens))
