"""Texts to weights of tokens (uniCOIL, SPLADE) by a folder with the head in its graph: no torch needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Tokenizer

from ..errors import ModelError
from ..files.foreign import read_within
from .contract import ENCODED_TOGETHER, Vectors, checked_limit, checked_texts
from .engines import open_engine
from .folder import GraphEntry, require_outputs
from .graph_folders import GraphFolder
from .tokens import TOKENIZER_FILE, encode_ids

TABLE_FILE = "query_weights.bin"


class SparseEntry(GraphEntry):
    """The `sparse_encoder` entry of a manifest.

    `table` says that a query is not encoded: its tokens have the weights of a table.
    """

    vocabulary: int = Field(ge=1, le=1_000_000)
    table: bool = False


class SparseEncoder(GraphFolder):
    """A text becomes a weight for each of some tokens; a document's score is the sum of products.

    >>> SparseEncoder("docs-splade").encode_queries(["deep sea"])
    [{'deep': 1.21, 'sea': 1.6, 'ocean': 0.43}]
    """

    entry = "sparse_encoder"
    how_to_make = (
        "hybridr export FOLDER makes one of a SparseEncoder's, or --dam DIR --rem DIR --ranker splade"
    )
    named = "HYBRIDR_SEARCH_SPARSE_ENCODER=DIR, of `sync` HYBRIDR_REINDEX_SPARSE_ENCODER=DIR"
    kind = SparseEntry
    details: SparseEntry

    def __init__(self, folder: Path | str) -> None:
        """Open a folder of `hybridr export`. Raises ModelError for another, or a damaged one."""
        super().__init__(folder)
        self._size, self._positions = self.details.vocabulary, self.details.max_positions
        self._engine = open_engine(self.folder, "fp32", "onnx", self._threads)
        definition = read_within(self.folder / TOKENIZER_FILE).decode()
        self.tokens = names_of_tokens(Tokenizer.from_str(definition), self._size)
        self._table = None
        if self.details.table:
            require_outputs(self.folder, [TABLE_FILE])
            self._table = table_in(self.folder, self._size)

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
