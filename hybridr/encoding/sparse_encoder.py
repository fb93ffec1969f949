"""Texts to weights of tokens (uniCOIL, SPLADE) by a folder with the head in its graph: no torch needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer

from ..errors import DownloadError, FingerprintMismatch, ModelError
from ..files.foreign import read_within
from ..files.manifest import read_manifest
from ..files.remembered import folder_of, remember_encoder
from .contract import ENCODED_TOGETHER, Vectors, checked_limit, checked_texts, require_no_links
from .engines import GRAPHS, open_engine
from .folder import physical_cores, require_outputs, tokenizer_in
from .tokens import TOKENIZER_FILE, encode_ids

ENTRY = "sparse_encoder"
"""Of the manifest; that of an encoder of vectors is `encoder`."""
TABLE_FILE = "query_weights.bin"
MAKE_ONE = "hybridr export FOLDER makes one of a SparseEncoder's, or --dam DIR --rem DIR --ranker splade"


class SparseEntry(BaseModel):
    """The `sparse_encoder` entry of a manifest.

    `table` says that a query is not encoded: its tokens have the weights of a table.
    """

    model_config = ConfigDict(strict=True, extra="allow")
    vocabulary: int = Field(ge=1, le=1_000_000)
    max_tokens: int = Field(ge=3, le=1_000_000)
    max_positions: int = Field(ge=3, le=1_000_000)
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    table: bool = False


class SparseEncoder:
    """A text becomes a weight for each of some tokens; a document's score is the sum of products.

    >>> hybridr.SparseEncoder("docs-splade").encode_queries(["deep sea"])
    [{'deep': 1.21, 'sea': 1.6, 'ocean': 0.43}]
    """

    def __init__(self, folder: Path | str) -> None:
        """Open a folder of `hybridr export`. Raises ModelError for another, or a damaged one."""
        self.folder = Path(folder).expanduser()
        entry = sparse_entry(self.folder)
        files = (GRAPHS["fp32"], TOKENIZER_FILE, *([TABLE_FILE] if entry.table else []))
        require_outputs(self.folder, files)
        self.fingerprint, self.max_tokens = entry.fingerprint, entry.max_tokens
        self._size, self._positions = entry.vocabulary, entry.max_positions
        self._texts, self._threads = tokenizer_in(self.folder), physical_cores()
        self._engine = open_engine(self.folder, "fp32", "onnx", self._threads)
        definition = read_within(self.folder / TOKENIZER_FILE).decode()
        self.tokens = names_of_tokens(Tokenizer.from_str(definition), self._size)
        self._table = table_in(self.folder, self._size) if entry.table else None

    def encode_documents(
        self, texts: Sequence[str], *, max_tokens: int | None = None
    ) -> list[dict[str, float]]:
        """Give the weights above 0 of each text by token, in the order of `texts`. Raises DataError."""
        return [self._named(row) for rows in self._read(texts, max_tokens) for row in rows]

    def encode_queries(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Give the weights of queries, as `encode_documents`; with a table, each token's own."""
        if self._table is None:
            return self.encode_documents(texts)
        rows = self._texts.ids(checked_texts(texts), self.max_tokens)
        return [self._named(self._table * np.isin(np.arange(self._size), ids)) for ids in rows]

    def weights(self, texts: Sequence[str]) -> Vectors:
        """Give the weights of documents, `(n, vocabulary)`. Raises DataError."""
        return np.concatenate([np.zeros((0, self._size), dtype=np.float32), *self._read(texts, None)])

    def _read(self, texts: Sequence[str], max_tokens: int | None) -> Iterator[Vectors]:
        """Yield weights `(n, vocabulary)` of some texts at once: those of all would fill the memory."""
        limit = checked_limit(max_tokens, self.max_tokens, self._positions)
        rows = list(self._texts.ids(checked_texts(texts), limit))
        for start in range(0, len(rows), ENCODED_TOGETHER):
            part = rows[start : start + ENCODED_TOGETHER]
            yield encode_ids(part, self._size, self._engine.run, threads=self._threads)

    def _named(self, row: NDArray[np.float32]) -> dict[str, float]:
        return {self.tokens[place]: float(row[place]) for place in np.flatnonzero(row > 0)}


def sparse_entry(folder: Path) -> SparseEntry:
    """Read the manifest of a folder. Raises ModelError for one that is no such encoder, or damaged."""
    if folder.is_dir():
        require_no_links(folder)
    found = (read_manifest(folder) or {}).get(ENTRY) if folder.is_dir() else None
    if found is None:
        lack = "holds no sparse encoder of hybridr" if folder.is_dir() else "is not there"
        raise ModelError(f"{folder} {lack}", hint=MAKE_ONE)
    try:
        return SparseEntry.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, (ENTRY, *first["loc"])))
        raise ModelError(f"{folder} is damaged: manifest.json: {name}: {first['msg'].lower()}") from None


def names_of_tokens(tokenizer: Tokenizer, size: int) -> list[str]:
    """Name the places of a row of weights; those beyond the tokenizer's words by their number.

    Raises ModelError where the tokenizer has words that no weight stands for.
    """
    words = {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    if (highest := max(words, default=0)) >= size:
        raise ModelError(f"the tokenizer has ids up to {highest:,}, the graph gives {size:,} weights")
    return [words.get(place, f"[{place}]") for place in range(size)]


def table_in(folder: Path, size: int) -> Vectors:
    """Read the weights of queries' tokens `(vocabulary,)`, 4 bytes each. Raises ModelError."""
    try:
        held = read_within(folder / TABLE_FILE)
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / TABLE_FILE} cannot be read: {error}") from None
    if len(held) != 4 * size or not np.isfinite(table := np.frombuffer(held, dtype="<f4")).all():
        raise ModelError(f"{folder / TABLE_FILE} holds no {size:,} numbers", hint="export it again")
    return table.astype(np.float32)


def open_sparse(folder: Path | None, wanted: str = "") -> SparseEncoder:
    """Open an encoder once: that of a folder, else the one that this machine remembers as `wanted`.

    Raises ModelError where there is none, FingerprintMismatch where the folder's is another.
    """
    place = folder or folder_of(wanted)
    if place is None:
        raise ModelError(
            f"the sparse encoder {wanted[:12]} of this index is not known on this machine",
            hint="HYBRIDR_SEARCH_SPARSE_ENCODER=DIR, of `sync` HYBRIDR_REINDEX_SPARSE_ENCODER=DIR",
        )
    found = _opened(place, sparse_entry(place).fingerprint)
    if wanted and found.fingerprint != wanted:
        raise FingerprintMismatch(
            f"{place} is the sparse encoder {found.fingerprint[:12]}, the index was written by {wanted[:12]}",
            hint="give the folder of that one",
        )
    if folder_of(found.fingerprint) != place.resolve():
        with suppress(DownloadError):  # what is asked does not fail because nothing can be written
            remember_encoder(found.fingerprint, place)
    return found


@lru_cache(maxsize=2)
def _opened(folder: Path, fingerprint: str) -> SparseEncoder:
    return SparseEncoder(folder)
