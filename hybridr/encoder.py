"""The encoder: texts in, float32 vectors out; queries and documents apart."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import psutil
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .backends import (
    BATCH_TOKENS,
    GRAPHS,
    PRECISIONS,
    Arithmetic,
    Backend,
    Engine,
    Precision,
    Run,
    Vectors,
    graph_of,
    open_engine,
    require_backend,
)
from .errors import DataError, HybridrError, ModelError
from .manifest import read_manifest, sha256_of

__all__ = ["GRAPHS", "Encoder", "OnnxEncoder", "Precision", "Vectors", "load_encoder"]

TOKENIZER_FILE = "tokenizer.json"
LEAST_BATCH_TOKENS = 128  # a batch is not split among threads below this
TOKENIZED_AT_ONCE = 512  # texts; the tokenizer's own records are a hundred times larger than the ids


class Encoder(Protocol):
    """What search and reindexing need of an encoder.

    `similarity` is "cosine" (vectors of length 1) or "ip". `max_tokens` counts [CLS] and [SEP].
    `fingerprint` names the weights and how they are used; precision and backend do not change it.
    """

    @property
    def dim(self) -> int:
        """Size of a vector."""

    @property
    def similarity(self) -> str:
        """How two vectors are compared."""

    @property
    def max_tokens(self) -> int:
        """Input limit."""

    @property
    def fingerprint(self) -> str:
        """Name of the weights and their use, 64 hex digits."""

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode queries to float32 `(n, dim)`, in the order of `texts`."""

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode documents to float32 `(n, dim)`, in the order of `texts`."""


class TextTokenizer:
    """Turn texts into token ids, cut to a limit; safe to use from several threads."""

    def __init__(self, definition: str) -> None:
        self._definition = definition
        self._limited: dict[int | None, Tokenizer] = {}

    def ids(self, texts: Sequence[str], limit: int | None) -> Iterator[list[int]]:
        """Yield each text's ids with special tokens, at most `limit`; None does not cut."""
        tokenizer = self._tokenizer(limit)
        for start in range(0, len(texts), TOKENIZED_AT_ONCE):
            part = list(texts[start : start + TOKENIZED_AT_ONCE])
            yield from (encoding.ids for encoding in tokenizer.encode_batch_fast(part))

    def spans(self, text: str, limit: int) -> list[tuple[int, int, int | None]]:
        """Give start and end of the first `limit` tokens in characters, and the number of each one's word."""
        encoding = self._tokenizer(limit).encode(text, add_special_tokens=False)
        words = zip(encoding.offsets, encoding.word_ids, strict=True)
        return [(start, end, word) for (start, end), word in words]

    def _tokenizer(self, limit: int | None) -> Tokenizer:
        if limit not in self._limited:
            tokenizer = Tokenizer.from_str(self._definition)
            tokenizer.no_padding()
            if limit is None:
                tokenizer.no_truncation()
            else:
                tokenizer.enable_truncation(limit)
            self._limited[limit] = tokenizer
        return self._limited[limit]


class OnnxEncoder:
    """An encoder folder at work; pooling and normalisation are inside its graph.

    `precision` is that of documents. Queries are fp32 always: they are few and short, and a rounded query
    would cost ranking once more.
    """

    calls_at_once = 2  # while one pads and copies, the other keeps the cores busy

    def __init__(
        self,
        folder: Path,
        record: dict[str, Any],
        *,
        precision: str | None = None,
        backend: str = "onnx",
        threads: int | None = None,
    ) -> None:
        """Take the `encoder` record of a manifest; `precision` None is the recorded one."""
        self.folder = folder
        self.precision: str = precision or record["precision"]
        self.backend = backend
        self.dim: int = record["dim"]
        self.similarity: str = record["similarity"]
        self.max_tokens: int = record["max_tokens"]
        self.max_positions: int = record["max_positions"]
        self.fingerprint: str = record["fingerprint"]
        self._prefixes: dict[str, str] = record["prefixes"]
        self._threads = threads or physical_cores()
        self._tokenizer = TextTokenizer((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
        self._documents = open_engine(folder, self.precision, backend, self._threads)

    @cached_property
    def _queries(self) -> Engine:
        if self.precision == "fp32":
            return self._documents
        return open_engine(self.folder, "fp32", self.backend, self._threads)

    @property
    def query_prefix(self) -> str:
        """What is put before every query; empty for most."""
        return self._prefixes["query"]

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode queries to float32 `(n, dim)`, in the order of `texts`. Raises DataError."""
        return self._encode(self._queries, texts, self._prefixes["query"], max_tokens)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode documents to float32 `(n, dim)`, in the order of `texts`. Raises DataError."""
        return self._encode(self._documents, texts, self._prefixes["document"], max_tokens)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count each text's tokens with [CLS] and [SEP], uncut and without a prefix."""
        return [len(ids) for ids in self._tokenizer.ids(checked_texts(texts), None)]

    def token_spans(self, text: str, limit: int) -> list[tuple[int, int, int | None]]:
        """Give the first `limit` tokens of a text as (start, end, word), in characters, no special ones."""
        return self._tokenizer.spans(text, limit)

    def document_room(self, max_tokens: int | None = None) -> int:
        """Count the tokens of a document that fit beside [CLS], [SEP] and the prefix. Raises DataError."""
        limit = checked_limit(max_tokens, self.max_tokens, self.max_positions)
        (beside,) = self.count_tokens([self._prefixes["document"]])
        return limit - beside

    def _encode(self, engine: Engine, texts: Sequence[str], prefix: str, max_tokens: int | None) -> Vectors:
        limit = checked_limit(max_tokens, self.max_tokens, self.max_positions)
        ids = list(self._tokenizer.ids(prefixed(texts, prefix), limit))
        return encode_ids(ids, self.dim, engine.run, budget=engine.batch_tokens, threads=self._threads)


def load_encoder(
    folder: Path | str,
    *,
    precision: Arithmetic | None = None,
    backend: Backend | Literal["auto"] | None = None,
    threads: int | None = None,
) -> OnnxEncoder:
    """Open an encoder folder; with ONNX Runtime, and without torch, unless another `backend` is asked for.

    `precision` is that of documents (queries are fp32); None takes the one that the folder was exported for.
    `backend` "auto" takes the fastest that works here, which is measured once and remembered. `threads` None
    takes the physical cores. The graph and the tokenizer are compared with the sha256 in the manifest. Raises
    ModelError when the folder is missing, damaged or not an encoder, MissingExtra when the backend is not
    installed.
    """
    folder = Path(folder)
    record = verify_encoder(folder, precision)
    chosen, wanted = str(backend or "onnx"), precision or record["precision"]
    if chosen == "auto":
        from .trials import choose_backend

        chosen = choose_backend(folder, wanted)
    require_backend(chosen, wanted)
    if chosen != "onnx" and wanted != "fp32":
        from .trials import require_working

        require_working(folder, wanted, chosen)
    try:
        return OnnxEncoder(folder, record, precision=precision, backend=chosen, threads=threads)
    except HybridrError:
        raise
    except Exception as error:  # backends and tokenizers raise bare Exceptions
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"the encoder {folder} cannot be opened: {reason}", hint=AGAIN) from error


AGAIN = "make it again with `hybridr adapt` or `hybridr export`"


def verify_encoder(folder: Path, precision: str | None = None) -> dict[str, Any]:
    """Check graphs and tokenizer against the manifest and give the manifest's `encoder` record.

    Raises ModelError.
    """
    if not folder.is_dir():
        raise ModelError(f"there is no encoder folder {folder}", hint="hybridr adapt --index NAME --out DIR")
    record = encoder_record(folder)
    chosen = precision or record["precision"]
    outputs = (read_manifest(folder) or {}).get("outputs", {})
    known = {name for precisions in PRECISIONS.values() for name in precisions}
    if chosen not in known or graph_of(chosen) not in outputs:
        raise ModelError(
            f"the encoder {folder} has no {chosen} graph",
            hint=f"hybridr export {folder} --precision {chosen}",
        )
    for name in {graph_of(chosen), GRAPHS["fp32"], TOKENIZER_FILE}:
        path = folder / name
        if not path.is_file() or sha256_of(path) != outputs.get(name):
            found = "is missing" if not path.is_file() else "is not the file that was exported"
            raise ModelError(f"the encoder {folder} is damaged: {name} {found}", hint=AGAIN)
    return record


def encoder_record(folder: Path) -> dict[str, Any]:
    """Read the `encoder` entry of a folder's manifest. Raises ModelError when there is none."""
    try:
        manifest = read_manifest(folder)
    except HybridrError as error:
        raise ModelError(f"the encoder {folder} is damaged: {error.message}", hint=AGAIN) from error
    record = (manifest or {}).get("encoder")
    needed = {"dim", "similarity", "max_tokens", "max_positions", "fingerprint", "prefixes", "precision"}
    if not isinstance(record, dict) or not needed <= record.keys():
        found = "no manifest.json" if manifest is None else "a manifest without an encoder"
        raise ModelError(
            f"{folder} is not an encoder of hybridr: it has {found}",
            hint=f"a sentence-transformers model becomes one by `hybridr export {folder}`",
        )
    return record


def physical_cores() -> int:
    """Count the cores that this process may use, hyper-threads not counted twice."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def checked_texts(texts: Sequence[str]) -> Sequence[str]:
    """Give `texts` back; raise DataError when it is one string or holds something else than strings."""
    if isinstance(texts, str):
        raise DataError("a list of texts was needed, one string was given", hint="encode([text])")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {position} is a {type(text).__name__}, a string was needed")
    return texts


def prefixed(texts: Sequence[str], prefix: str) -> Sequence[str]:
    """Put `prefix` before every text. Raises DataError as `checked_texts` does."""
    return [prefix + text for text in checked_texts(texts)] if prefix else checked_texts(texts)


def checked_limit(max_tokens: int | None, default: int, longest: int) -> int:
    """Give the token limit to use; raise DataError when it leaves no token or is more than can be read."""
    if max_tokens is None:
        return default
    if not 3 <= max_tokens <= longest:
        raise DataError(f"max_tokens {max_tokens} is outside 3..{longest}, the encoder's range")
    return max_tokens


def batches(lengths: Sequence[int], budget: int = BATCH_TOKENS) -> Iterator[NDArray[np.int64]]:
    """Group positions by length so that no batch exceeds `budget` tokens with its padding.

    Every position comes once; a text longer than the budget is a batch of its own.
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * lengths[order[end]] > budget:
            yield order[start:end]
            start = end


def encode_ids(
    ids: Sequence[Sequence[int]], dim: int, run: Run, *, budget: int = BATCH_TOKENS, threads: int = 1
) -> Vectors:
    """Run token ids through `run(ids, mask)`, `threads` batches at once; `(n, dim)` in the order given."""
    vectors = np.zeros((len(ids), dim), dtype=np.float32)
    lengths = [len(row) for row in ids]
    share = max(LEAST_BATCH_TOKENS, -(-sum(lengths) // threads))  # few texts shall not wait for one thread
    work = list(batches(lengths, min(budget, share)))

    def fill(batch: NDArray[np.int64]) -> None:
        vectors[batch] = run(*padded([ids[position] for position in batch]))

    if threads == 1 or len(work) < 2:
        for batch in work:
            fill(batch)
    else:
        with ThreadPoolExecutor(min(threads, len(work))) as pool:
            for _ in pool.map(fill, work):
                pass
    return vectors


def padded(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give ids and mask, both int64 `(rows, longest)`; padding is 0 in both (the mask hides its id)."""
    longest = max(len(row) for row in rows)
    ids = np.zeros((len(rows), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for position, row in enumerate(rows):
        ids[position, : len(row)] = row
        mask[position, : len(row)] = 1
    return ids, mask
