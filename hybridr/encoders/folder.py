"""An encoder folder on ONNX Runtime, OpenVINO or torch: loading it needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import HybridrError, ModelError
from ..files.foreign import read_within, require_own_files
from ..files.manifest import FILE_NAME, read_manifest, sha256_of
from .contract import (
    ENCODED_TOGETHER,
    MOST_PROMPT,
    Offers,
    Reading,
    Usage,
    checked_texts,
)
from .engines import GRAPHS, PRECISIONS, STATES, Engine, graph_of, open_engine
from .foreign_tokenizers import checked_tokenizer
from .packaged import MAX_TOKENS
from .registry import languages_of
from .tokens import TOKENIZER_FILE, Compute, TextModel, TextTokenizer

GPU_DOCUMENTS = 4_096
E = TypeVar("E", bound="GraphEntry")
AGAIN = "make it again with `hybridr adapt` or `hybridr export`"


class OnnxEncoder(TextModel):
    """An encoder folder at work; pooling and normalisation are inside its graph.

    `precision` is that of documents. Queries are fp32 always: they are few and short, and a rounded query
    would cost ranking once more.
    """

    folder: Path

    def __init__(
        self,
        folder: Path,
        record: dict[str, Any],
        *,
        precision: str | None = None,
        backend: str = "onnx",
        threads: int | None = None,
        at_once: int | None = None,
        chosen: str = "",
    ) -> None:
        """Take the `encoder` record of a manifest; `precision` None is the recorded one, `chosen` says why.

        Batches are cut for `threads`, which decides the last bits of vectors; `at_once` of them run, None: as
        many.
        """
        self.folder = folder
        self.precision: str = precision or record["precision"]
        self.backend = backend
        self.chosen = chosen
        self.usage = Usage("", record["similarity"], record["prefixes"], record["max_tokens"])
        self.fingerprint: str = record["fingerprint"]
        self.languages = languages_of(record)
        self._dim, self._positions = int(record["dim"]), int(record["max_positions"])
        self.threads = threads or physical_cores()
        self._at_once = at_once or self.threads
        self.tokenizer = tokenizer_in(folder)
        self._documents = open_engine(folder, self.precision, backend, self._at_once)

    @cached_property
    def _queries(self) -> Engine:
        if self.precision == "fp32":
            return self._documents
        return open_engine(self.folder, "fp32", self.backend, self._at_once)

    @property
    def offers(self) -> Offers:
        """What it offers beside vectors; where its graph does not show states, `hybridr export` makes one
        that does."""
        return Offers(
            languages=self.languages,
            folder=self.folder,
            precision=self.precision,
            backend=self.backend,
            chosen=self.chosen,
            calls_at_once=2,  # while one pads and copies, the other keeps the cores busy
            documents_at_once=GPU_DOCUMENTS if self._documents.on_gpu else ENCODED_TOGETHER,
            counts=self.count_tokens,
            spans=self,
            width=self._documents.width,
        )

    def way(self, side: str) -> Compute:
        """Say how "query" or "document" is computed."""
        engine = self._queries if side == "query" else self._documents
        cut = {} if engine.on_gpu else {"threads": self.threads, "at_once": self._at_once}
        return Compute(engine.run, engine.read, {"budget": engine.batch_tokens, **cut})

    @property
    def dim(self) -> int:
        """Size of a vector."""
        return self._dim

    @property
    def max_positions(self) -> int:
        """The longest input that the graph has positions for."""
        return self._positions

    @property
    def width(self) -> int:
        """Size of a token's state; 0 where the graph does not show states."""
        return self._documents.width or 0

    @property
    def query_prefix(self) -> str:
        """What is put before every query; empty for most."""
        return self.usage.prefixes["query"]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count each text's tokens with [CLS] and [SEP], uncut and without a prefix."""
        return [len(ids) for ids in self.tokenizer.ids(checked_texts(texts), None)]

    def token_spans(self, text: str, limit: int) -> list[tuple[int, int, int | None]]:
        """Give the first `limit` tokens of a text as (start, end, word), in characters, no special ones."""
        return self.tokenizer.spans(text, limit)

    def document_room(self, max_tokens: int | None = None) -> int:
        """Count the tokens of a document that fit beside [CLS], [SEP] and the prefix. Raises DataError."""
        limit = self.limit(max_tokens)
        (prefix_tokens,) = self.count_tokens([self.usage.prefixes["document"]])
        return limit - prefix_tokens

    def _read(self, side: str, texts: Sequence[str], max_tokens: int | None) -> list[Reading]:
        if not self.width:
            raise ModelError(f"the graph of {self.folder} has no output {STATES}", hint=AGAIN)
        return super()._read(side, texts, max_tokens)


def verify_encoder(folder: Path, precision: str | None = None) -> dict[str, Any]:
    """Check graphs and tokenizer against the manifest and give the manifest's `encoder` record.

    Raises ModelError.
    """
    if not folder.is_dir():
        raise ModelError(f"there is no encoder folder {folder}", hint="hybridr adapt --index NAME --out DIR")
    record = encoder_record(folder)
    chosen = precision or record["precision"]
    outputs = (read_manifest(folder) or {}).get("outputs", {})
    names = {name for precisions in PRECISIONS.values() for name in precisions}
    if chosen not in names:
        raise ModelError(f"there is no precision '{chosen}'", hint=f"one of {', '.join(sorted(names))}")
    own = {graph_of(chosen)} & outputs.keys()  # without one in int8 that of fp32 makes it
    require_outputs(folder, {*own, GRAPHS["fp32"], TOKENIZER_FILE})
    return record


def require_outputs(folder: Path, names: Iterable[str]) -> None:
    """Raise ModelError when one of these files is not what the manifest says was exported."""
    outputs = (read_manifest(folder) or {}).get("outputs", {})
    for name in names:
        path = folder / name
        if not path.is_file() or sha256_of(path) != outputs.get(name):
            problem = "is missing" if not path.is_file() else "is not the file that was exported"
            raise ModelError(f"the encoder {folder} is damaged: {name} {problem}", hint=AGAIN)


class Prefixes(BaseModel):
    """What is put before a query and a document."""

    model_config = ConfigDict(strict=True)
    query: str = Field(max_length=MOST_PROMPT)
    document: str = Field(max_length=MOST_PROMPT)


class GraphEntry(BaseModel):
    """What a manifest says of a folder with a graph, whatever that gives."""

    model_config = ConfigDict(strict=True, extra="allow")
    max_tokens: int = Field(ge=3, le=1_000_000)
    max_positions: int = Field(ge=3, le=1_000_000)
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    precision: Literal["fp32", "int8"] = "fp32"


class EncoderEntry(GraphEntry):
    """The `encoder` entry of a manifest, as far as it is needed to open the folder."""

    dim: int = Field(ge=1, le=65_536)
    similarity: Literal["cosine", "ip"]
    prefixes: Prefixes
    precision: Literal["fp32", "int8"]


def checked_entry(kind: type[E], entry: Any, folder: Path, name: str) -> E:
    """Read an entry of a manifest by its `name`. Raises ModelError that names what is wrong with it."""
    try:
        return kind.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (name, *first["loc"])))
        raise ModelError(
            f"{folder} is damaged: manifest.json: {place}: {first['msg'].lower()}", hint=AGAIN
        ) from None


def is_encoder(folder: Path) -> bool:
    """Tell whether a folder is an encoder already."""
    try:
        encoder_record(folder)
    except ModelError:
        return False
    return True


def encoder_record(folder: Path) -> dict[str, Any]:
    """Read the `encoder` entry of a folder's manifest. Raises ModelError for none, or a wrong one."""
    try:
        manifest = read_manifest(folder)
        if manifest is not None:
            require_own_files(folder)
    except (HybridrError, ValueError) as error:
        reason = error.message if isinstance(error, HybridrError) else error
        raise ModelError(f"the encoder {folder} is damaged: {reason}", hint=AGAIN) from error
    if "encoder" not in (manifest or {}):
        lack = "no manifest.json" if manifest is None else "a manifest without an encoder"
        raise ModelError(
            f"{folder} is not an encoder of hybridr: it has {lack}",
            hint=f"a sentence-transformers model becomes one by `hybridr export {folder}`",
        )
    entry: dict[str, Any] = (manifest or {})["encoder"]
    checked_entry(EncoderEntry, entry, folder, "encoder")
    return entry


def physical_cores() -> int:
    """Count the cores that this process may use, hyper-threads not counted twice."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def tokenizer_in(folder: Path) -> TextTokenizer:
    """Open the tokenizer of a folder. Raises ModelError."""
    try:
        definition = read_within(folder / TOKENIZER_FILE).decode()
        checked_tokenizer(definition)
        tokenizer = TextTokenizer(definition)
        list(tokenizer.ids([""], None))
    except Exception as error:  # tokenizers raises bare Exceptions
        raise ModelError(f"the tokenizer of {folder} cannot be read: {error}", hint=AGAIN) from error
    return tokenizer


class FolderTokens:
    """The tokenizer of a model folder, without its weights."""

    def __init__(self, folder: Path) -> None:
        path = folder / TOKENIZER_FILE
        if not path.is_file():
            raise ModelError(f"{folder} has no {TOKENIZER_FILE}", hint="name the folder of an encoder")
        is_file_tokenizer = (folder / FILE_NAME).is_file()
        self.max_tokens: int = encoder_record(folder)["max_tokens"] if is_file_tokenizer else MAX_TOKENS
        self._tokenizer = tokenizer_in(folder)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count each text's tokens with [CLS] and [SEP], uncut."""
        return [len(ids) for ids in self._tokenizer.ids(texts, None)]
