"""The term table: where the words of an index stand in the space of its encoder's token states.

A row is the mean state of a term's occurrences in a sample of documents. Search asks which terms stand near
a word of a query; `fitting` makes the table, numpy is all it needs here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...encoders.contract import Vectors
from ...errors import DataError, ModelError
from ...files.atomic import staged_folder
from ...files.foreign import read_within
from ...files.manifest import read_manifest, sha256_of, write_manifest

FILE = "term_table.safetensors"
MOST_BYTES = 10_000_000
ROUNDING = 0.01
LEAST_TERMS = 300  # among fewer the 30th nearest is not far enough to tell near from far
FREQUENT = 200  # terms
AGAIN = "fit it again: hybridr tune NAME"


@dataclass(frozen=True, eq=False)
class TermTable:
    """Terms as the index has them, and their mean states `(terms, width)`, float16 of length 1.

    `own_cosine` is what an occurrence of a
    term has with the row made of the term's other ones, in the mean over terms. `encoder` is the fingerprint
    of the encoder whose states these are, `origin` says what the table was made of.
    """

    terms: tuple[str, ...]
    vectors: NDArray[np.float16]
    own_cosine: float
    encoder: str
    origin: Mapping[str, Any]

    @property
    def width(self) -> int:
        """Size of a state."""
        return int(self.vectors.shape[1])

    @property
    def shortcoming(self) -> str:
        """Say why searches cannot use the table; empty when they can."""
        few = len(self.terms) < LEAST_TERMS
        return f"the index has too few words, {len(self.terms)}" if few else ""

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Say in which row a term is."""
        return {term: row for row, term in enumerate(self.terms)}

    @cached_property
    def fingerprint(self) -> str:
        """Name of the whole content, 64 hex digits: the sha256 of `packed`."""
        return hashlib.sha256(self.packed()).hexdigest()

    @cached_property
    def rows(self) -> Vectors:
        """Give the vectors in float32, in which they are compared."""
        return self.vectors.astype(np.float32)

    def near(self, term: str, count: int) -> list[tuple[str, float]]:
        """Give the `count` terms nearest to one with their cosines, itself first; none for an unknown one."""
        if term not in self.places:
            return []
        cosines = self.rows @ self.rows[self.places[term]]  # (terms,)
        best = np.argsort(-cosines, kind="stable")[:count]
        return [(self.terms[place], float(cosines[place])) for place in best]

    def usual_cosine(self, count: int) -> float:
        """Give the cosine of the `count`-th nearest term, in the mean over frequent terms."""
        cosines, place = self.rows[:FREQUENT] @ self.rows.T, min(count, len(self.terms))
        return float(np.partition(cosines, -place, axis=1)[:, -place].mean())

    def packed(self) -> bytes:
        """Give the table as one safetensors file; equal tables give equal bytes."""
        from safetensors.numpy import save

        about = {
            "terms": list(self.terms),
            "own_cosine": self.own_cosine,
            "encoder": self.encoder,
            "origin": self.origin,
        }
        # In a tensor: safetensors writes its own metadata in no fixed order.
        text = np.frombuffer(json.dumps(about, sort_keys=True).encode(), dtype=np.uint8)
        vectors = np.ascontiguousarray(self.vectors, dtype=np.float16)
        return save({"about": text, "vectors": vectors})

    def save(self, folder: Path) -> Path:
        """Write the table as a folder of its own, whole or not at all; what stood there is replaced."""
        with staged_folder(folder) as new:
            (new / FILE).touch(mode=0o600)  # words of documents
            (new / FILE).write_bytes(self.packed())
            origin = {name: self.origin.get(name, {}) for name in ("settings", "inputs")}
            write_manifest(new, stage="term table", **origin, outputs=[FILE])
        return folder


def load_term_table(folder: Path | str) -> TermTable:
    """Open the folder of a table. Raises ModelError when it is missing, damaged or not a table."""
    folder = Path(folder)
    file = folder / FILE
    if not file.is_file() or file.stat().st_size > MOST_BYTES:
        raise ModelError(f"there is no term table {folder}", hint=AGAIN)
    try:
        outputs = (read_manifest(folder) or {}).get("outputs", {})
    except DataError as error:
        raise ModelError(f"the term table {folder} is damaged: {error.message}", hint=AGAIN) from error
    if sha256_of(file) != outputs.get(FILE):
        raise ModelError(
            f"the term table {folder} is damaged: {FILE} is not the file that was written", hint=AGAIN
        )
    return unpacked(read_within(file, MOST_BYTES))


def unpacked(data: bytes) -> TermTable:
    """Read a table from the bytes of `packed`, whoever wrote them. Raises ModelError for what is none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if len(data) > MOST_BYTES:
        raise ModelError(f"{len(data):,} bytes are no term table: {MOST_BYTES:,} are the most", hint=AGAIN)
    try:
        tensors = load(data)
        about = json.loads(tensors["about"].tobytes())
        table = TermTable(
            tuple(about["terms"]),
            tensors["vectors"],
            about["own_cosine"],
            about["encoder"],
            about["origin"],
        )
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"the term table is damaged: {error}", hint=AGAIN) from error
    if wrong := flaw(table):
        raise ModelError(f"the term table is damaged: {wrong}", hint=AGAIN)
    return table


def flaw(table: TermTable) -> str:
    """Say what of a table cannot be; empty when it is sound."""
    kinds = {type(term) for term in table.terms}
    if kinds != {str} or len(set(table.terms)) != len(table.terms):
        return "its terms are no different strings"
    shape = table.vectors.shape
    if table.vectors.dtype != np.float16 or len(shape) != 2 or shape[0] != len(table.terms):
        return f"its vectors are {table.vectors.dtype} {table.vectors.shape}"
    if not np.isfinite(table.vectors).all():
        return "it holds numbers that are not finite"
    if np.abs(np.linalg.norm(table.rows, axis=1) - 1).max() > ROUNDING:
        return "its vectors are not of length 1"
    if not isinstance(table.own_cosine, float) or not -1 <= table.own_cosine <= 1:
        return f"its own cosine is {table.own_cosine!r}"
    if not isinstance(table.encoder, str) or not isinstance(table.origin, dict):
        return "it does not say where it is from"
    return ""
