"""Texts to a vector for each token (ColBERT) by a folder with projection and masks: no torch needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from .contract import ENCODED_TOGETHER, Vectors, prefixed
from .engines import OUTPUT, sound_graph
from .folder import GraphEntry, Prefixes
from .graph_folders import GraphFolder
from .sessions import feed, open_session, session_outputs
from .tokens import BATCH_TOKENS, fill_all, of_shape, padded


class QueryExpansion(BaseModel):
    """Tokens that a query is filled up with to a length; `attended` says that the others see them."""

    model_config = ConfigDict(strict=True)
    token: int = Field(ge=0)
    length: int = Field(ge=3, le=1_000)
    attended: bool


class MultiVectorEntry(GraphEntry):
    """The `multi_vector_encoder` entry of a manifest; documents have no vectors of the ids `skipped`."""

    dim: int = Field(ge=1, le=4_096)
    prefixes: Prefixes
    query_tokens: int = Field(ge=3, le=1_000_000)
    expansion: QueryExpansion | None = None
    skipped: list[int] = []


class MultiVectorEncoder(GraphFolder):
    """A text becomes a vector of length 1 for each token; a document's score is the sum, over the query's
    vectors, of the largest product with one of its own (`max_sim`).

    >>> MultiVectorEncoder("docs-colbert").encode_queries(["deep sea"])[0].shape
    (32, 128)
    """

    entry = "multi_vector_encoder"
    how_to_make = "hybridr export FOLDER makes one of PyLate's, or --dam DIR --rem DIR --ranker colbert"
    named = "[search] rerank_settings = {token_encoder = DIR}, of `sync` HYBRIDR_REINDEX_TOKEN_ENCODER=DIR"
    kind = MultiVectorEntry
    details: MultiVectorEntry

    def __init__(self, folder: Path | str) -> None:
        """Open a folder of `hybridr export`. Raises ModelError for another, or a damaged one."""
        super().__init__(folder)
        self.dim = self.details.dim
        self._session = open_session(sound_graph(self.folder, self.details.precision))
        self._inputs = {value.name for value in self._session.get_inputs()}

    def encode_documents(self, texts: Sequence[str]) -> list[Vectors]:
        """Give the vectors `(tokens, dim)` of each text, in their order. Raises DataError."""
        rows = self.rows(prefixed(texts, self.details.prefixes.document))
        encoded: list[Vectors] = []
        for start in range(0, len(rows), ENCODED_TOGETHER):
            part = rows[start : start + ENCODED_TOGETHER]
            vectors = self.run(part, [len(row) for row in part])
            encoded += [
                vector[~np.isin(row, self.details.skipped)] for vector, row in zip(vectors, part, strict=True)
            ]
        return encoded

    def encode_queries(self, texts: Sequence[str]) -> list[Vectors]:
        """Give the vectors of queries, those of the tokens that fill them up too. Raises DataError."""
        rows = list(self._texts.ids(prefixed(texts, self.details.prefixes.query), self.details.query_tokens))
        seen = [len(row) for row in rows]
        if (more := self.details.expansion) is not None:
            rows = [[*row, *[more.token] * (more.length - len(row))] for row in rows]
            seen = [len(row) for row in rows] if more.attended else seen
        return self.run(rows, seen)

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of texts as they are, at most `max_tokens` each."""
        return list(self._texts.ids(texts, self.max_tokens))

    def run(self, rows: Sequence[list[int]], seen: Sequence[int]) -> list[Vectors]:
        """Run rows of ids, of which so many each are attended to."""
        encoded: list[Vectors] = [np.zeros((0, self.dim), dtype=np.float32)] * len(rows)

        def fill(batch: NDArray[np.int64]) -> None:
            ids, mask = padded([rows[place] for place in batch])
            mask *= np.arange(ids.shape[1]) < np.array([seen[place] for place in batch])[:, None]
            [vectors] = session_outputs(self._session, [OUTPUT], feed(self._inputs, ids, mask))
            for place, vector in zip(batch, of_shape(vectors, (*ids.shape, self.dim)), strict=True):
                encoded[place] = vector[: len(rows[place])].copy()

        fill_all(fill, [len(row) for row in rows], BATCH_TOKENS, self._threads, self._threads)
        return encoded
