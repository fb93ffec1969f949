"""Folders with an ONNX graph and a tokenizer whose output is not a single vector per text; no torch needed.

A `PairScorer` scores queries and documents together (cross-encoder). A `SparseEncoder` weighs tokens
(uniCOIL, SPLADE). A `MultiVectorEncoder` gives each token a vector (ColBERT). `open_once` opens each folder
once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Tokenizer

from ..errors import DownloadError, FingerprintMismatch, ModelError
from ..files.local import read_manifest, read_within
from ..files.remembered import known_encoder_folder, remember_encoder
from .contract import ENCODED_TOGETHER, Vectors, checked_limit, checked_texts, require_no_links
from .engines import GRAPHS, OUTPUT, ensure_graph, open_engine
from .opening import GraphEntry, checked_entry, open_tokenizer, physical_cores, require_outputs
from .sessions import open_session, session_outputs
from .tokens import TOKENIZER_FILE, encode_ids, pad_rows, require_shape, run_batches


class GraphFolder:
    """An opened folder with a graph; base of the classes below.

    A subclass defines its `entry` in a manifest, the command that makes a folder (`how_to_make`), and the
    settings that name it (`how_to_name`).
    """

    entry: ClassVar[str]
    how_to_make: ClassVar[str]
    how_to_name: ClassVar[str]
    kind: ClassVar[type[GraphEntry]] = GraphEntry

    def __init__(self, folder: Path | str) -> None:
        """Open a folder of `hybridr export`. Raises ModelError for another folder, or a damaged one."""
        self.folder = Path(folder).expanduser()
        self.details = graph_entry(type(self), self.folder)
        require_outputs(self.folder, read_manifest(self.folder) or {}, (GRAPHS["fp32"], TOKENIZER_FILE))
        self.fingerprint, self.max_tokens = self.details.fingerprint, self.details.max_tokens
        self._texts, self._threads = open_tokenizer(self.folder), physical_cores()


F = TypeVar("F", bound=GraphFolder)


def graph_entry(kind: type[GraphFolder], folder: Path) -> GraphEntry:
    """Return the entry of this kind in a folder's manifest. Raises ModelError if it is missing or damaged."""
    if not folder.is_dir():
        raise ModelError(f"{folder} does not exist", hint=kind.how_to_make)
    require_no_links(folder)
    entry = (read_manifest(folder) or {}).get(kind.entry)
    if entry is None:
        name = kind.entry.replace("_", " ")
        raise ModelError(f"{folder} holds no {name} of hybridr", hint=kind.how_to_make)
    return checked_entry(kind.kind, entry, folder, kind.entry)


def open_once(kind: type[F], folder: Path | None, fingerprint: str = "") -> F:
    """Return an opened graph folder: `folder`, else the one that this machine remembers under `fingerprint`.

    Each folder is opened once. An empty `fingerprint` accepts any `folder`. Raises ModelError without a
    folder or for a damaged one, FingerprintMismatch if it has another fingerprint.
    """
    name, place = kind.entry.replace("_", " "), folder or known_encoder_folder(fingerprint)
    if place is None:
        raise ModelError(f"the {name} {fingerprint[:12]} is not known on this machine", hint=kind.how_to_name)
    encoder = _open_cached(kind, place, graph_entry(kind, place).fingerprint)  # type: ignore[arg-type]
    assert isinstance(encoder, kind)
    if fingerprint and encoder.fingerprint != fingerprint:
        raise FingerprintMismatch(
            f"{place} holds the {name} {encoder.fingerprint[:12]}, but {fingerprint[:12]} wrote the index",
            hint="give the folder of the one that wrote it",
        )
    if known_encoder_folder(encoder.fingerprint) != place.resolve():
        with suppress(DownloadError):  # the encoder works without the note on this machine's disk
            remember_encoder(encoder.fingerprint, place)
    return encoder


@lru_cache(maxsize=4)
def _open_cached(kind: type[GraphFolder], folder: Path, fingerprint: str) -> GraphFolder:
    """Open a folder; the last few opened folders are cached."""
    return kind(folder)


class PairScorer(GraphFolder):
    """A cross-encoder: scores how well a document answers a query by a raw, unbounded logit.

    >>> PairScorer("docs-reranker").score([("deep sea", "the floor of the ocean")])
    array([4.2], dtype=float32)
    """

    entry = "pair_scorer"
    how_to_make = (
        "hybridr export FOLDER makes one of a sequence classifier, or --dam DIR --rem DIR --ranker rerank"
    )
    how_to_name = "[search] rerank_settings = {folder = DIR}"

    def __init__(self, folder: Path | str, precision: str | None = None) -> None:
        """Open a folder that `hybridr export` wrote; with `precision` None in that of the export.

        Raises ModelError for another folder, or a damaged one.
        """
        super().__init__(folder)
        self._session = open_session(ensure_graph(self.folder, precision or self.details.precision))
        self._inputs = [value.name for value in self._session.get_inputs()]

    def score(self, pairs: Sequence[tuple[str, str]], *, within_s: float | None = None) -> Vectors:
        """Return the scores of (query, document) pairs, float32 `(n,)`, in their order. Raises DataError,
        ModelError.

        No batch begins later than `within_s` seconds from now: pairs are scored in their order, and the
        scores of the remaining ones are NaN. A batch that has begun is finished.
        """
        checked_texts([text for pair in pairs for text in pair])
        tokenized = list(self._texts.pairs(pairs, self.max_tokens))
        lengths, scores = [len(ids) for ids, _ in tokenized], np.full(len(pairs), np.nan, dtype=np.float32)
        deadline = None if within_s is None else time.monotonic() + within_s

        def fill(batch: NDArray[np.int64]) -> None:
            """Score a batch of pairs, unless the deadline has passed."""
            if deadline is None or time.monotonic() < deadline:
                rows, segments = zip(*(tokenized[place] for place in batch), strict=True)
                ids, mask = pad_rows(rows)
                kinds = pad_rows(segments)[0]
                inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
                used_inputs = {name: inputs[name] for name in self._inputs}
                [logits] = session_outputs(self._session, [OUTPUT], used_inputs)
                scores[batch] = require_shape(logits, (len(batch),))

        run_batches(fill, lengths, threads=self._threads, sort=deadline is None)
        return scores


class SparseEntry(GraphEntry):
    """The `sparse_encoder` entry of a manifest."""

    vocabulary: int = Field(ge=1, le=1_000_000)


class SparseEncoder(GraphFolder):
    """Encodes a text to weights of tokens; a document's score is the sum of products with the query's
    weights.

    >>> SparseEncoder("docs-splade").encode_queries(["deep sea"])
    [{'deep': 1.21, 'sea': 1.6, 'ocean': 0.43}]
    """

    entry = "sparse_encoder"
    how_to_make = "hybridr export --dam DIR --rem DIR --ranker splade (or unicoil) makes one"
    how_to_name = "HYBRIDR_SEARCH_SPARSE_ENCODER=DIR, for `sync` HYBRIDR_REINDEX_SPARSE_ENCODER=DIR"
    kind = SparseEntry
    details: SparseEntry

    def __init__(self, folder: Path | str) -> None:
        """Open a folder of `hybridr export`. Raises ModelError for another folder, or a damaged one."""
        super().__init__(folder)
        self._size, self._positions = self.details.vocabulary, self.details.max_positions
        self._engine = open_engine(self.folder, "fp32", "onnx", self._threads)
        tokenizer = Tokenizer.from_str(read_within(self.folder / TOKENIZER_FILE).decode())
        words = {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}
        if (highest := max(words, default=0)) >= self._size:
            raise ModelError(
                f"the tokenizer has ids up to {highest:,}; the graph gives {self._size:,} weights"
            )
        self.tokens = [words.get(place, f"[{place}]") for place in range(self._size)]

    def encode_documents(
        self, texts: Sequence[str], *, max_tokens: int | None = None
    ) -> list[dict[str, float]]:
        """Return the positive weights of each text by token, in the order of `texts`. Raises DataError."""
        return [
            {self.tokens[place]: float(row[place]) for place in np.flatnonzero(row > 0)}
            for rows in self._read(texts, max_tokens)
            for row in rows
        ]

    def encode_queries(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Return the weights of queries exactly like `encode_documents`."""
        return self.encode_documents(texts)

    def weights(self, texts: Sequence[str]) -> Vectors:
        """Return the weights of documents as an array `(n, vocabulary)`. Raises DataError."""
        return np.concatenate([np.zeros((0, self._size), dtype=np.float32), *self._read(texts, None)])

    def _read(self, texts: Sequence[str], max_tokens: int | None) -> Iterator[Vectors]:
        """Yield weights `(n, vocabulary)` of some texts at a time, since all would fill the memory."""
        limit = checked_limit(max_tokens, self.max_tokens, self._positions)
        rows = list(self._texts.ids(checked_texts(texts), limit))
        for start in range(0, len(rows), ENCODED_TOGETHER):
            part = rows[start : start + ENCODED_TOGETHER]
            yield encode_ids(part, self._size, self._engine.run, threads=self._threads)


class MultiVectorEntry(GraphEntry):
    """The `multi_vector_encoder` entry of a manifest."""

    dim: int = Field(ge=1, le=4_096)


class MultiVectorEncoder(GraphFolder):
    """Encodes a text to a vector of length 1 for each token; a document's score is the sum, over the query's
    vectors, of the largest product with a document vector (`max_sim`).

    >>> MultiVectorEncoder("docs-colbert").encode_queries(["deep sea"])[0].shape
    (32, 128)
    """

    entry = "multi_vector_encoder"
    how_to_make = "hybridr export --dam DIR --rem DIR --ranker colbert makes one"
    how_to_name = (
        "[search] rerank_settings = {token_encoder = DIR}, for `sync` HYBRIDR_REINDEX_TOKEN_ENCODER=DIR"
    )
    kind = MultiVectorEntry
    details: MultiVectorEntry

    def __init__(self, folder: Path | str) -> None:
        """Open a folder of `hybridr export`. Raises ModelError for another folder, or a damaged one."""
        super().__init__(folder)
        self.dim = self.details.dim
        self._engine = open_engine(self.folder, self.details.precision, "onnx", self._threads)

    def encode_documents(self, texts: Sequence[str]) -> list[Vectors]:
        """Return the vectors `(tokens, dim)` of each text, in order. Raises DataError."""
        rows = list(self._texts.ids(checked_texts(texts), self.max_tokens))
        encoded: list[Vectors] = [np.zeros((0, self.dim), dtype=np.float32)] * len(rows)

        def fill(batch: NDArray[np.int64]) -> None:
            """Encode a batch to token vectors."""
            ids, mask = pad_rows([rows[place] for place in batch])
            vectors = require_shape(self._engine.run(ids, mask), (*ids.shape, self.dim))
            for place, vector in zip(batch, vectors, strict=True):
                encoded[place] = vector[: len(rows[place])].copy()

        run_batches(fill, [len(row) for row in rows], threads=self._threads)
        return encoded

    def encode_queries(self, texts: Sequence[str]) -> list[Vectors]:
        """Return the vectors of queries exactly like `encode_documents`."""
        return self.encode_documents(texts)
