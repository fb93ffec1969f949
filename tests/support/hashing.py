"""A deterministic encoder for tests that are about the index, not about meaning."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence

import numpy as np


class HashingEncoder:
    """Every word adds a fixed random direction; vectors `(n, dim)` have length 1."""

    similarity = "cosine"
    max_tokens = 256

    def __init__(self, dim: int = 16, salt: str = "") -> None:
        self.dim = dim
        self.salt = salt
        self.fingerprint = hashlib.sha256(f"hashing {dim} {salt}".encode()).hexdigest()
        self.encoded: list[str] = []

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        return np.array([self._vector(text) for text in texts], dtype=np.float32).reshape(-1, self.dim)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        self.encoded += texts
        return self.encode_queries(texts)

    def token_spans(self, text: str, limit: int) -> list[tuple[int, int, int | None]]:
        words = itertools.islice(re.finditer(r"\S+", text), limit)
        return [(*word.span(), number) for number, word in enumerate(words)]

    def document_room(self, max_tokens: int | None = None) -> int:
        return (max_tokens or self.max_tokens) - 2

    def _vector(self, text: str) -> np.ndarray:
        total = sum((self._direction(word) for word in text.lower().split()), np.zeros(self.dim))
        return total / (np.linalg.norm(total) or 1.0)

    def _direction(self, word: str) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(f"{self.salt}{word}".encode()).digest()[:4], "little")
        return np.random.default_rng(seed).normal(size=self.dim)
