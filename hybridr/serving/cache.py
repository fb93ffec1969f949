"""The vectors of queries that were asked before."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from threading import Lock
from typing import NamedTuple

from ..encoder import Vectors


class Embedding(NamedTuple):
    """A vector `(dim,)`, and the tokens of its text; None where the encoder cannot count them."""

    vector: Vectors
    tokens: int | None


class VectorCache:
    """The `size` embeddings used last; 0 keeps none. Safe to use from several threads.

    Keys are digests of side, encoder fingerprint, token limit and text: no text stays in memory, and a long
    one takes no more room than a short one.
    """

    def __init__(self, size: int, fingerprint: str, max_tokens: int) -> None:
        self.size = size
        self._start = f"{fingerprint} {max_tokens}"
        self._found: OrderedDict[bytes, Embedding] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, side: str, text: str) -> Embedding | None:
        """Give what was kept for a text, which makes it the last to go; None when there is nothing."""
        key = self._key(side, text)
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def put(self, side: str, text: str, embedding: Embedding) -> None:
        """Keep a copy of an embedding; a row of a batch would keep the whole batch alive."""
        if not self.size:
            return
        key, kept = self._key(side, text), embedding._replace(vector=embedding.vector.copy())
        with self._lock:
            self._found[key] = kept
            self._found.move_to_end(key)
            if len(self._found) > self.size:
                self._found.popitem(last=False)

    def _key(self, side: str, text: str) -> bytes:
        return blake2b(f"{side} {self._start} {text}".encode(), digest_size=20).digest()
