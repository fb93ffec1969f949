"""A deterministic encoder for tests that are about the index, not about meaning."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from hybridr.encoders.contract import Offers, Reading


class HashingEncoder:
    """Every word adds a fixed random direction; vectors `(n, dim)` have length 1.

    A token is a word or a sign. Its state, of length 1 too, is a sum over its runs of three letters, so that
    "wing" is near "wings" and far from "flow".

    `before` is called with the texts of each pass over documents. Texts with an ending of `refused` get a
    zero vector, which an engine refuses for cosine.
    """

    similarity = "cosine"
    max_tokens = 256
    width = 24
    counts = None

    def __init__(
        self,
        dim: int = 16,
        salt: str = "",
        *,
        before: Callable[[Sequence[str]], object] | None = None,
        refused: tuple[str, ...] = (),
    ) -> None:
        self.dim, self.before, self.refused = dim, before, refused
        self.salt = salt
        self.fingerprint = hashlib.sha256(f"hashing {dim} {salt}".encode()).hexdigest()
        self.encoded: list[str] = []

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        return np.array([self._vector(text) for text in texts], dtype=np.float32).reshape(-1, self.dim)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        if self.before is not None:
            self.before(texts)
        self.encoded += texts
        vectors = self.encode_queries(texts)
        vectors[[text.endswith(self.refused) for text in texts]] = 0
        return vectors

    def read_queries(self, texts: Sequence[str]) -> list[Reading]:
        return self._readings(texts, self.encode_queries(texts), self.max_tokens)

    def read_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> list[Reading]:
        return self._readings(texts, self.encode_documents(texts), max_tokens or self.max_tokens)

    def token_spans(self, text: str, limit: int) -> list[tuple[int, int, int | None]]:
        words = itertools.islice(re.finditer(r"\S+", text), limit)
        return [(*word.span(), number) for number, word in enumerate(words)]

    def room(self, side: str, max_tokens: int | None = None) -> int:
        return (max_tokens or self.max_tokens) - 2

    @property
    def offers(self) -> Offers:
        return Offers(counts=self.counts, spans=self, width=self.width)

    def _readings(self, texts: Sequence[str], vectors: np.ndarray, limit: int) -> list[Reading]:
        found = []
        for text, vector in zip(texts, vectors, strict=True):
            tokens = list(itertools.islice(re.finditer(r"\w+|[^\w\s]", text), limit - 2))
            states = [self._state(token.group().lower()) for token in tokens]
            shown = np.array(states, dtype=np.float32).reshape(-1, self.width)
            found.append(Reading(vector, shown, tuple(token.span() for token in tokens)))
        return found

    def _vector(self, text: str) -> np.ndarray:
        return self._mean(text.lower().split(), self.dim)

    def _state(self, word: str) -> np.ndarray:
        marked = f"^{word}$"
        return self._mean([marked[at : at + 3] for at in range(len(marked) - 2)], self.width)

    def _mean(self, parts: Sequence[str], size: int) -> np.ndarray:
        total = sum((self._direction(part, size) for part in parts), np.zeros(size))
        return total / (np.linalg.norm(total) or 1.0)

    def _direction(self, part: str, size: int) -> np.ndarray:
        return direction(f"{self.salt}{part}", size)


@cache
def direction(salted: str, size: int) -> np.ndarray:
    """Give a random direction `(size,)`, the same for the same text; drawing it anew takes long."""
    seed = int.from_bytes(hashlib.sha256(salted.encode()).digest()[:4], "little")
    found = np.random.default_rng(seed).normal(size=size)
    found.flags.writeable = False
    return found


class ProductEncoder(HashingEncoder):
    """The same directions, in vectors of 1, 2 or 3 times the length, which are compared by inner product."""

    similarity = "ip"

    def __init__(self, dim: int = 16) -> None:
        super().__init__(dim, "inner product")

    def _vector(self, text: str) -> np.ndarray:
        return super()._vector(text) * (1 + len(text.split()) % 3)
