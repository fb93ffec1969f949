"""The query map: a small change of query vectors that makes dense search of one corpus a little better.

q' = q (I + strength D), brought back to the length of q. No document is encoded again, and leaving the map
away undoes it. It belongs to one encoder and one corpus; `map_fitting` makes it, numpy is all it needs here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, FingerprintMismatch, ModelError, SettingsError
from ..files.atomic import staged_folder
from ..files.manifest import fingerprint, read_manifest, sha256_of, write_manifest
from .contract import Encoder, Reading, Vectors, reads_tokens

FILE = "query_map.safetensors"
MATRIX = "matrix"
AGAIN = "fit it again: hybridr tune NAME"


@dataclass(frozen=True, eq=False)
class QueryMap:
    """The fitted matrix D `(dim, dim)` and how much of it is applied.

    `encoder` is the fingerprint of the encoder whose queries it changes, `origin` says what it was made of.
    """

    matrix: Vectors
    strength: float
    encoder: str
    origin: Mapping[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """Name of the matrix, its strength and its encoder, 64 hex digits."""
        values = hashlib.sha256(np.ascontiguousarray(self.matrix, dtype="<f4").tobytes()).hexdigest()
        return fingerprint({"matrix": values, "strength": self.strength, "encoder": self.encoder})

    @property
    def dim(self) -> int:
        """Size of a vector."""
        return len(self.matrix)

    def at(self, strength: float) -> QueryMap:
        """Give the same map at another strength, 0 to 1. Raises SettingsError."""
        if not 0 <= strength <= 1:
            raise SettingsError(f"a query map's strength is from 0 to 1, got {strength:g}")
        return replace(self, strength=strength)

    def apply(self, vectors: Vectors) -> Vectors:
        """Change query vectors `(n, dim)`; lengths stay. Strength 0 gives them back as they are."""
        if self.strength == 0:
            return vectors
        return with_lengths(vectors + self.strength * (vectors @ self.matrix), lengths(vectors))

    def save(self, folder: Path) -> Path:
        """Write the map as a folder of its own, whole or not at all; what stood there is replaced."""
        from safetensors.numpy import save_file

        with staged_folder(folder) as new:
            save_file({MATRIX: np.ascontiguousarray(self.matrix, dtype=np.float32)}, new / FILE)
            record = {"fingerprint": self.fingerprint, "strength": self.strength, "encoder": self.encoder}
            write_manifest(
                new,
                stage="query map",
                settings=self.origin.get("settings", {}),
                inputs=self.origin.get("inputs", {}),
                outputs=[FILE],
                extra={"query_map": record},
            )
        return folder


def load_query_map(folder: Path | str) -> QueryMap:
    """Open the folder of a map. Raises ModelError when it is missing, damaged or not a map."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"there is no query map {folder}", hint=AGAIN)
    try:
        manifest = read_manifest(folder) or {}
    except DataError as error:
        raise ModelError(f"the query map {folder} is damaged: {error.message}", hint=AGAIN) from error
    record, outputs = manifest.get("query_map"), manifest.get("outputs", {})
    if not isinstance(record, dict) or not {"fingerprint", "strength", "encoder"} <= record.keys():
        raise ModelError(f"{folder} is not a query map", hint=AGAIN)
    file = folder / FILE
    if not file.is_file() or sha256_of(file) != outputs.get(FILE):
        raise ModelError(
            f"the query map {folder} is damaged: {FILE} is not the file that was written", hint=AGAIN
        )
    try:
        matrix = load_file(file)[MATRIX]
        strength = float(record["strength"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"the query map {folder} is damaged: {error}", hint=AGAIN) from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not 0 <= strength <= 1:
        held = f"a matrix {matrix.shape} of strength {strength}"
        raise ModelError(f"the query map {folder} is damaged: it holds {held}", hint=AGAIN)
    origin = {"settings": manifest.get("settings", {}), "inputs": manifest.get("inputs", {})}
    found = QueryMap(matrix, strength, str(record["encoder"]), origin)
    if found.fingerprint != record["fingerprint"]:
        raise ModelError(f"the query map {folder} is damaged: its manifest was changed", hint=AGAIN)
    return found


class MappedEncoder:
    """An encoder whose queries go through a map; documents, and all else, are the encoder's own.

    `fingerprint` stays that of the documents' encoder, so the vectors in an index still fit. Raises
    FingerprintMismatch for the map of another encoder.
    """

    def __init__(self, encoder: Encoder, query_map: QueryMap) -> None:
        if query_map.encoder != encoder.fingerprint:
            raise FingerprintMismatch(
                f"the query map was fitted for encoder {query_map.encoder[:12]}, "
                f"this one is {encoder.fingerprint[:12]}",
                hint="search without the map, or fit it again: hybridr tune NAME",
            )
        if query_map.matrix.shape != (encoder.dim, encoder.dim):
            raise ModelError(
                f"the query map is {query_map.matrix.shape}, the vectors have {encoder.dim} values",
                hint=AGAIN,
            )
        self.encoder, self.query_map = encoder, query_map
        self.dim, self.similarity, self.max_tokens = encoder.dim, encoder.similarity, encoder.max_tokens
        self.fingerprint = encoder.fingerprint

    def __getattr__(self, name: str) -> Any:
        if name in ("encoder", "query_map"):  # asked for before __init__, by copy and pickle
            raise AttributeError(name)
        return getattr(self.encoder, name)

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode queries to float32 `(n, dim)` and map them."""
        return self.query_map.apply(self.encoder.encode_queries(texts, max_tokens=max_tokens))

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode documents to float32 `(n, dim)`, as the encoder does."""
        return self.encoder.encode_documents(texts, max_tokens=max_tokens)

    def read_queries(self, texts: Sequence[str]) -> list[Reading]:
        """Read queries and map their vectors; the states of tokens stay. Needs an encoder that reads."""
        assert reads_tokens(self.encoder)
        found = self.encoder.read_queries(texts)
        return [one._replace(vector=self.query_map.apply(one.vector[None])[0]) for one in found]


def lengths(vectors: Vectors) -> Vectors:
    """Give the length of every vector, `(n, 1)`."""
    return np.asarray(np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def with_lengths(vectors: Vectors, wanted: Vectors) -> Vectors:
    """Give every vector the length `wanted` `(n, 1)`; a zero stays one."""
    found = lengths(vectors)
    return np.asarray(vectors * (wanted / np.where(found > 0, found, 1.0)), dtype=np.float32)
