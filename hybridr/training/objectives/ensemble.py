"""Ensemble: a second retriever's vectors beside the base's; what tells the documents apart is kept.

Nothing is trained. Vectors of both stand side by side, weighted by their shares; the second one's are
centred, for those of a retriever like E5 all lie in one direction. Of the joined vectors as many principal
components are kept as the base has dimensions, so that an index does not grow. Two retrievers err on other
texts (Hansen and Salamon 1990).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...encoders.contract import Encoder, Vectors, of_length_one
from ...encoders.export.ensemble import EnsembleBiEncoder, fitted
from ...encoders.export.exporting import opened_encoder
from ...encoders.export.weights import NumpyBiEncoder
from ...encoders.folder import OnnxEncoder
from ...records import Progress
from ..gate import DOCUMENT_TOKENS
from ..settings import EnsembleSettings

ENCODED = 64  # documents between two reports
ENOUGH = 2  # documents for each component: with fewer, all dimensions stay


class Ensemble:
    """Joins two retrievers; `fitted` gives their `candidate`."""

    name = "ensemble"
    help = "join the base with a second retriever, by the components of the documents (no training)"
    on = "documents"
    fits = "two"
    title = "ensemble of two retrievers"
    strength = 0.3
    """The second one's share: chosen on cranfield, npl, fiqa_mini, tldr_cmd and squadshifts_amazon."""
    Settings = EnsembleSettings

    def __init__(self, first: NumpyBiEncoder, second: NumpyBiEncoder, settings: EnsembleSettings) -> None:
        """Take both. Raises ModelError where they cannot be joined."""
        self.first, self.second, self.settings = first, second, settings
        centre, all_of_it = np.zeros(second.dim, np.float32), np.eye(first.dim + second.dim, dtype=np.float32)
        self.side_by_side = EnsembleBiEncoder(first, second, centre, all_of_it)
        self.candidate: EnsembleBiEncoder

    @cached_property
    def opened(self) -> OnnxEncoder:
        """Both, side by side, in ONNX Runtime."""
        return opened_encoder(self.side_by_side)

    def read(self, texts: list[str], progress: Progress) -> tuple[Vectors, Vectors]:
        """Encode documents by both, to `(n, first.dim)` and `(n, second.dim)` of length 1."""
        arrays, limit = [], min(DOCUMENT_TOKENS, self.opened.max_tokens)
        for start in range(0, len(texts), ENCODED):
            progress("fit", start, len(texts))
            batch = texts[start : start + ENCODED]
            arrays.append(self.opened.encode_documents(batch, max_tokens=limit))
        progress("fit", len(texts), len(texts))
        return self.apart(np.concatenate(arrays))

    def apart(self, vectors: Vectors) -> tuple[Vectors, Vectors]:
        """Take the vectors of both out of those side by side `(n, first.dim + second.dim)`."""
        first, second = np.split(vectors, [self.first.dim], axis=1)
        return of_length_one(first), of_length_one(second)

    def fit(self, texts: list[str], unseen: list[str], share: float, progress: Progress) -> dict[str, Any]:
        """Fit `candidate` to documents; give what a manifest says of it.

        Losses are the part of vectors' squared length that the components lose: before there are any, and of
        documents that were not fitted to.
        """
        started, count = time.monotonic(), len(texts)
        first, second = self.read([*texts, *unseen], progress)
        dim = self.dim(count)
        self.candidate = fitted(self.first, self.second, (first[:count], second[:count]), share, dim)
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

    def dim(self, documents: int) -> int:
        """Say how many components are kept: what was asked for, else the base's, or all for few documents."""
        size = self.settings.dim or self.first.dim
        return size if documents >= ENOUGH * size else self.first.dim + self.second.dim

    def encoder(self) -> Encoder:
        """Give what encodes as `candidate` does, and fast."""
        return FittedEncoder(self)


class FittedEncoder:
    """The candidate, by the graph that both were opened as."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble, candidate = ensemble, ensemble.candidate
        self.dim, self.similarity, self.max_tokens = candidate.dim, candidate.similarity, candidate.max_tokens
        self.fingerprint = candidate.fingerprint

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode queries to float32 `(n, dim)`, in the order of `texts`."""
        return self._joined(self._ensemble.opened.encode_queries(texts, max_tokens=max_tokens))

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode documents to float32 `(n, dim)`, in the order of `texts`."""
        return self._joined(self._ensemble.opened.encode_documents(texts, max_tokens=max_tokens))

    def _joined(self, vectors: Vectors) -> Vectors:
        return self._ensemble.candidate.joined(*self._ensemble.apart(vectors))
