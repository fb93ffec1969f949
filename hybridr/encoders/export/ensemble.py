"""Two retrievers joined into one encoder: both read a text, and their vectors side by side are projected."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ..contract import Usage, Vectors, of_length_one
from .weights import NumpyBiEncoder


class EnsembleBiEncoder(NumpyBiEncoder):
    """Two bi-encoders with the same vocabulary, whose vectors are joined.

    A text's vector is `joined(first, second)`. The second may want a prefix, the first none: it reads the
    text without the `prefix_tokens` that follow the first token.
    """

    graph_only = True

    def __init__(
        self, first: NumpyBiEncoder, second: NumpyBiEncoder, centre: Vectors, components: Vectors
    ) -> None:
        """Join two encoders by a `centre` `(second.dim,)` and `components` `(first.dim + second.dim, dim)`.

        Raises ModelError if they cannot be joined.
        """
        names = f"{first.base} and {second.base}"
        if json.loads(first.tokenizer_json) != json.loads(second.tokenizer_json):
            raise ModelError(f"{names} read texts by other vocabularies", hint="join two of one vocabulary")
        if any(first.usage.prefixes.values()):
            raise ModelError(
                f"{first.base} wants a prefix before texts", hint=f"join it the other way round: {names}"
            )
        if {first.similarity, second.similarity} != {"cosine"}:
            raise ModelError(f"{names} cannot be joined: one compares by inner product")
        sides = ["", *(second.usage.prefixes[side] for side in ("query", "document"))]
        empty, query, document = (len(ids) for ids in second.tokenizer.ids(sides, None))
        if query != document:
            raise ModelError(f"{second.base} has prefixes of different length for queries and documents")
        self.first, self.second = first, second
        self.prefix_tokens = query - empty
        limit = min(first.max_tokens + self.prefix_tokens, second.max_tokens)
        usage = Usage("mean", "cosine", second.usage.prefixes, limit)
        own = {"centre": centre.astype(np.float32), "components": components.astype(np.float32)}
        weights = {
            f"{name}.{key}": value
            for name, retriever in self.parts.items()
            for key, value in retriever.weights.items()
        }
        super().__init__(weights | own, first.config, first.tokenizer_json, usage, first.folder)

    @property
    def parts(self) -> Mapping[str, NumpyBiEncoder]:
        """Return both encoders by name."""
        return {"first": self.first, "second": self.second}

    @property
    def dim(self) -> int:
        """Return the dimension of a vector."""
        return int(self.weights["components"].shape[1])

    @property
    def width(self) -> int:
        """Return the dimension of a token's state, that of the first encoder."""
        return self.first.width

    @property
    def base(self) -> str:
        """Return the names of both models."""
        return " + ".join(retriever.base for retriever in self.parts.values())

    def read(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> tuple[Vectors, Vectors]:
        """Return the first encoder's token states `(n, tokens, width)` and the joined vectors `(n, dim)` of
        one batch.

        Tokens of the prefix have states of the second encoder, which nobody uses.
        """
        behind = 1 + self.prefix_tokens
        states, first_vectors = self.first.read(
            *(np.delete(value, np.s_[1:behind], axis=1) for value in (ids, mask))
        )
        others, second_vectors = self.second.read(ids, mask)
        spliced = np.concatenate([states[:, :1], others[:, 1:behind], states[:, 1:]], axis=1)
        return spliced, self.joined(first_vectors, second_vectors)

    def joined(self, first: Vectors, second: Vectors) -> Vectors:
        """Return the joined vectors `(n, dim)` of both encoders' vectors."""
        return of_length_one(self.projected(first, second))

    def projected(self, first: Vectors, second: Vectors) -> Vectors:
        """Return the joined vectors before scaling; their length, at most 1, is what the components keep."""
        both = np.hstack([first, of_length_one(second - self.weights["centre"])])
        result: Vectors = both @ self.weights["components"]
        return result


def fitted(
    first: NumpyBiEncoder, second: NumpyBiEncoder, vectors: tuple[Vectors, Vectors], share: float, dim: int
) -> EnsembleBiEncoder:
    """Return two encoders joined by the principal components of their `vectors` of documents, `(n,
    first.dim)` and `(n, second.dim)`.

    `share` is the second encoder's part (0..1) of a cosine while all dimensions are kept.
    """
    left, right = vectors
    centre = right.mean(axis=0)
    weights = np.sqrt(np.repeat([1 - share, share], [first.dim, second.dim])).astype(np.float32)
    both = np.hstack([left, of_length_one(right - centre)]) * weights
    _, directions = np.linalg.eigh(both.T @ both / len(both))  # principal components about 0 (Hotelling 1933)
    components = np.ascontiguousarray(directions[:, ::-1][:, :dim])
    return EnsembleBiEncoder(first, second, centre, weights[:, None] * components)
