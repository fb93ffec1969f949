"""Opens encoder folders, checked against their manifest, on ONNX Runtime, OpenVINO or torch.

A backend first encodes in bf16 in a child process, since it may crash on a processor that lists features
without having them (machine.py). The outcome is stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import DownloadError, HybridrError, ModelError, first_line
from ..files.local import (
    MANIFEST_FILE,
    fingerprint,
    read_manifest,
    read_within,
    require_own_files,
    sha256_of,
    text_within,
)
from ..files.remembered import change_state_file, read_state_file
from .contract import (
    ENCODED_TOGETHER,
    MAX_PROMPT_CHARACTERS,
    Arithmetic,
    Backend,
    Encoder,
    Offers,
    Reading,
    Usage,
    Vectors,
    checked_texts,
)
from .engines import GRAPHS, PACKAGES, PRECISIONS, STATES, Engine, open_engine, require_backend
from .machine import WITHOUT_AMX, installed_version, read_cpu, try_program
from .registry import MAX_TOKENS, encoder_languages
from .tokens import TOKENIZER_FILE, Compute, TextModel, TextTokenizer, checked_tokenizer, random_texts

GPU_DOCUMENTS = 4_096
FILE = "backends.json"
LENGTHS = (8, 16, 32, 64, 128, 250) * 4  # words of the texts in a trial
MIN_COSINE = 0.95  # to fp32: below it the processor computes wrong values
EXPORT_AGAIN = "make it again with `hybridr adapt` or `hybridr export`"
EVERYWHERE = "put the same encoder folder at the same path on every machine"
PROGRAM = "import sys; from hybridr.encoders.opening import run_trial; run_trial(*sys.argv[1:])"


class OnnxEncoder(TextModel):
    """An opened encoder folder; pooling and normalisation are inside its graph.

    `precision` is that of documents. Queries are always encoded in fp32, since they are few and short, and
    rounding them would lower ranking quality further.
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
    ) -> None:
        """Open the graph of a manifest entry `record`; `precision` None is that of the entry.

        Batches are cut for `threads`, on which the last bits of vectors depend; `at_once` of them run at a
        time (None: as many as threads).
        """
        self.folder = folder
        self.precision: str = precision or record["precision"]
        self.backend = backend
        self.precision_reason = ""
        self.usage = Usage("", record["similarity"], record["prefixes"], record["max_tokens"])
        self.fingerprint: str = record["fingerprint"]
        self.languages = encoder_languages(record)
        self._dim, self.max_positions = int(record["dim"]), int(record["max_positions"])
        self.threads = threads or physical_cores()
        self._at_once = at_once or self.threads
        self.tokenizer = open_tokenizer(folder, self.usage.max_tokens)
        self._documents = open_engine(folder, self.precision, backend, self._at_once)

    @cached_property
    def _queries(self) -> Engine:
        """The engine that encodes queries, always in fp32."""
        if self.precision == "fp32":
            return self._documents
        return open_engine(self.folder, "fp32", self.backend, self._at_once)

    @property
    def offers(self) -> Offers:
        """Return the abilities beyond `Encoder` for search and reindexing: folder, arithmetic, tokens.

        `width` is None if the graph has no output of token states; `hybridr export` adds one.
        """
        return Offers(
            languages=self.languages,
            folder=self.folder,
            precision=self.precision,
            backend=self.backend,
            precision_reason=self.precision_reason,
            calls_at_once=2,  # one pads and copies while the other computes
            documents_at_once=GPU_DOCUMENTS if self._documents.on_gpu else ENCODED_TOGETHER,
            counts=self.count_tokens,
            spans=self,
            width=self._documents.width,
        )

    def compute(self, side: str) -> Compute:
        """Return the functions and options for the texts of a side, "query" or "document"."""
        engine = self._queries if side == "query" else self._documents
        options = {} if engine.on_gpu else {"threads": self.threads, "at_once": self._at_once}
        return Compute(engine.run, engine.read, {"budget": engine.batch_tokens, **options})

    @property
    def dim(self) -> int:
        """Return the dimension of a vector."""
        return self._dim

    @property
    def width(self) -> int:
        """Return the dimension of a token's state; 0 if the graph does not output states."""
        return self._documents.width or 0

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text with [CLS] and [SEP], uncut and without a prefix."""
        return [len(ids) for ids in self.tokenizer.ids(checked_texts(texts), None)]

    def token_spans(self, text: str, limit: int) -> list[tuple[int, int, int | None]]:
        """Return the first `limit` tokens of a text as (start, end, word) in characters, without special
        ones.
        """
        return self.tokenizer.spans(text, limit)

    def _read(self, side: str, texts: Sequence[str], max_tokens: int | None) -> list[Reading]:
        if not self.width:
            raise ModelError(f"the graph of {self.folder} has no output {STATES}", hint=EXPORT_AGAIN)
        return super()._read(side, texts, max_tokens)


class Prefixes(BaseModel):
    """The texts put before a query and a document."""

    model_config = ConfigDict(strict=True)
    query: str = Field(max_length=MAX_PROMPT_CHARACTERS)
    document: str = Field(max_length=MAX_PROMPT_CHARACTERS)


class GraphEntry(BaseModel):
    """The fields of a manifest entry that every folder with a graph has."""

    model_config = ConfigDict(strict=True, extra="allow")
    max_tokens: int = Field(ge=3, le=1_000_000)
    max_positions: int = Field(ge=3, le=1_000_000)
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    precision: Literal["fp32", "int8"] = "fp32"


class EncoderEntry(GraphEntry):
    """The `encoder` entry of a manifest, as far as needed to open the folder."""

    dim: int = Field(ge=1, le=65_536)
    similarity: Literal["cosine", "ip"]
    prefixes: Prefixes
    precision: Literal["fp32", "int8"]


E = TypeVar("E", bound=GraphEntry)


def checked_entry(kind: type[E], entry: Any, folder: Path, name: str) -> E:
    """Return a manifest entry, validated. Raises ModelError that names the wrong field."""
    try:
        return kind.model_validate(entry)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, (name, *problem["loc"])))
        raise ModelError(
            f"{folder} is damaged: manifest.json: {place}: {problem['msg'].lower()}", hint=EXPORT_AGAIN
        ) from None


def read_encoder_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of an encoder folder. Raises ModelError for a missing or wrong `encoder` entry."""
    try:
        manifest = read_manifest(folder)
        if manifest is not None:
            require_own_files(folder)
    except (HybridrError, ValueError) as error:
        reason = error.message if isinstance(error, HybridrError) else error
        raise ModelError(f"the encoder {folder} is damaged: {reason}", hint=EXPORT_AGAIN) from error
    if manifest is None or "encoder" not in manifest:
        problem = "no manifest.json" if manifest is None else "no encoder in its manifest.json"
        raise ModelError(
            f"{folder} is not an encoder of hybridr: it has {problem}",
            hint=f"a sentence-transformers model becomes one by: hybridr export {quote(str(folder))}",
        )
    checked_entry(EncoderEntry, manifest["encoder"], folder, "encoder")
    return manifest


def is_encoder(folder: Path) -> bool:
    """Return whether a folder is an encoder folder."""
    try:
        read_encoder_manifest(folder)
    except ModelError:
        return False
    return True


def verify_encoder(folder: Path, precision: str | None = None) -> dict[str, Any]:
    """Compare graphs and tokenizer with their sha256 in the manifest; return the manifest's `encoder` record.

    Raises ModelError.
    """
    if not folder.is_dir():
        raise ModelError(f"there is no encoder folder {folder}", hint="hybridr adapt --index NAME --out DIR")
    manifest = read_encoder_manifest(folder)
    record: dict[str, Any] = manifest["encoder"]
    precision = precision or record["precision"]
    names = {name for precisions in PRECISIONS.values() for name in precisions}
    if precision not in names:
        raise ModelError(f"there is no precision '{precision}'", hint=f"one of {', '.join(sorted(names))}")
    files = {GRAPHS["fp32"], TOKENIZER_FILE}
    if precision == "int8" and GRAPHS["int8"] in manifest.get("outputs", {}):
        files.add(GRAPHS["int8"])  # else it is made from the fp32 graph
    require_outputs(folder, manifest, files)
    return record


def require_outputs(folder: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise ModelError if one of these files differs from its sha256 in the folder's manifest."""
    outputs = manifest.get("outputs", {})
    for name in names:
        path = folder / name
        if not path.is_file() or sha256_of(path) != outputs.get(name):
            problem = "is missing" if not path.is_file() else "is not the file that was exported"
            raise ModelError(f"the encoder {folder} is damaged: {name} {problem}", hint=EXPORT_AGAIN)


def physical_cores() -> int:
    """Return the number of cores that this process may use, not counting hyper-threads twice."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def open_tokenizer(folder: Path, limit: int | None = None) -> TextTokenizer:
    """Return the tokenizer of a folder, tried with a limit of tokens. Raises ModelError."""
    try:
        definition = read_within(folder / TOKENIZER_FILE).decode()
        checked_tokenizer(definition)
        tokenizer = TextTokenizer(definition)
        list(tokenizer.ids([""], limit))
    except Exception as error:  # tokenizers raises bare Exceptions
        raise ModelError(f"the tokenizer of {folder} cannot be read: {error}", hint=EXPORT_AGAIN) from error
    return tokenizer


class FolderTokens:
    """The tokenizer of a model folder, opened without its weights."""

    def __init__(self, folder: Path) -> None:
        if not (folder / TOKENIZER_FILE).is_file():
            raise ModelError(f"{folder} has no {TOKENIZER_FILE}", hint="name the folder of an encoder")
        self.max_tokens: int = MAX_TOKENS
        if (folder / MANIFEST_FILE).is_file():
            self.max_tokens = read_encoder_manifest(folder)["encoder"]["max_tokens"]
        self._tokenizer = open_tokenizer(folder)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text with [CLS] and [SEP], uncut."""
        return [len(ids) for ids in self._tokenizer.ids(texts, None)]


def load_encoder(
    folder: Path | str,
    *,
    precision: Arithmetic | None = None,
    backend: Backend | None = None,
    threads: int | None = None,
) -> OnnxEncoder:
    """Open an encoder folder; by ONNX Runtime, without torch, unless another `backend` is named.

    `precision` is that of documents (queries are fp32); None takes the one that the folder was exported for.
    `threads` None takes the physical cores. The graph and the tokenizer are compared with the sha256 in the
    manifest. Raises ModelError when the folder is missing, damaged or not an encoder, MissingExtra when the
    backend is not installed.

    >>> encoder = hybridr.load_encoder("docs-encoder")
    >>> encoder.encode_queries(["side effects of statins"]).shape
    (1, 384)
    """
    folder = Path(folder)
    record = verify_encoder(folder, precision)
    backend_name, arithmetic = str(backend or "onnx"), precision or record["precision"]
    require_backend(backend_name, arithmetic)
    if backend_name != "onnx" and arithmetic != "fp32":
        require_working(folder, arithmetic, backend_name)
    try:
        return OnnxEncoder(folder, record, precision=precision, backend=backend_name, threads=threads)
    except HybridrError:
        raise
    except Exception as error:  # backends and tokenizers raise bare Exceptions
        raise ModelError(
            f"the encoder {folder} cannot be opened: {first_line(error)}", hint=EXPORT_AGAIN
        ) from error


def cosines_of(first: Vectors, second: Vectors) -> Vectors:
    """Return the cosines `(n,)` of two arrays `(n, dim)`, row by row."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines: Vectors = (first * second).sum(axis=1) / np.maximum(lengths, 1e-12)
    return cosines


class PackedEncoder(NamedTuple):
    """An encoder in the form for another process, which opens the same folder; see `pack_encoder`."""

    folder: Path
    precision: str
    backend: str
    threads: int
    fingerprint: str

    def open(self, at_once: int) -> OnnxEncoder:
        """Open the encoder for `at_once` batches at once, with the same batches as in the sending process.

        Raises ModelError if the folder is missing or holds another encoder, MissingExtra.
        """
        try:
            record = verify_encoder(self.folder, self.precision)
        except ModelError as error:
            raise ModelError(error.message, hint=EVERYWHERE) from None
        if record["fingerprint"] != self.fingerprint:
            raise ModelError(
                f"{self.folder} holds encoder {record['fingerprint'][:12]}, not {self.fingerprint[:12]}",
                hint=EVERYWHERE,
            )
        options: dict[str, Any] = {"precision": self.precision, "backend": self.backend}
        return OnnxEncoder(self.folder, record, **options, threads=self.threads, at_once=at_once)


def pack_encoder(encoder: Encoder) -> PackedEncoder | Encoder:
    """Return the data with which another process opens an encoder; without a folder, the encoder."""
    if not isinstance(encoder, OnnxEncoder):
        return encoder
    folder = encoder.folder.absolute()
    return PackedEncoder(folder, encoder.precision, encoder.backend, encoder.threads, encoder.fingerprint)


def require_working(folder: Path, precision: str, backend: str) -> None:
    """Raise ModelError if a backend fails in a precision on this machine, by a trial whose result is stored.

    A backend that is not installed is not checked here.
    """
    if find_spec(PACKAGES[backend]) is None:
        return
    cpu = read_cpu()
    packages = {name: installed_version(package) for name, package in PACKAGES.items()}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limits = os.environ.get(WITHOUT_AMX[0]), cores
    encoder = read_encoder_manifest(folder)["encoder"]["fingerprint"]
    key = fingerprint([cpu.model, sorted(cpu.flags), packages, limits, encoder, precision, backend])
    answers = read_state_file(FILE)
    if key not in answers:
        answers[key] = try_program(PROGRAM, str(folder), precision, backend)
        with suppress(DownloadError), change_state_file(FILE) as entries:  # else the next call tries again
            entries[key] = answers[key]
    if reason := answers[key]:
        raise ModelError(
            f"{precision} of the backend {backend} does not work on this machine: {reason}",
            hint="HYBRIDR_REINDEX_PRECISION=fp32 before the same command; where AMX is broken: "
            f"export {'='.join(WITHOUT_AMX)}",
        )


def run_trial(path: str, precision: str, backend: str) -> None:
    """Encode texts in this (child) process. Raises SystemExit if a vector's cosine to fp32 is too low."""
    folder = Path(path)
    record = read_encoder_manifest(folder)["encoder"]
    texts = random_texts(text_within(folder / TOKENIZER_FILE), LENGTHS)
    reference = OnnxEncoder(folder, record, precision="fp32").encode_documents(texts)
    encoder = OnnxEncoder(folder, record, precision=precision, backend=backend)
    cosine = float(cosines_of(encoder.encode_documents(texts), reference).min())
    if not cosine >= MIN_COSINE:
        raise SystemExit(f"its vectors have a cosine of {cosine:.3f} to fp32")
