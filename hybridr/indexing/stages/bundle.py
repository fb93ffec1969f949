"""The folder between the stages of a reindex: Parquet files of texts and of vectors, their labels, and locks
on them.

`texts/` and `vectors/` each get a manifest when their stage is done: it names the parts with their sha256. A
part is written whole or not at all. A part of texts has a row group for each page that was read from the
index, so that the next stage makes the same batches as a reindex.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...cluster.reading import Position, Share
from ...encoders.contract import offers_of
from ...errors import DataError, FingerprintMismatch, extra, quantity
from ...files.local import (
    MANIFEST_FILE,
    acquire_lock,
    child_path,
    read_manifest,
    replacing,
    require_own_files,
    require_regular,
    sha256_of,
    storing,
)
from ...records import Windows
from ..recipe import TextRecipe

with extra("parquet", "Parquet"):
    import pyarrow as pa
    import pyarrow.parquet as pq

L = TypeVar("L", bound="Label")
FINGERPRINT_FORM = r"^[0-9a-f]{64}$"
LOCKING = "machines that share the folder need a file system that locks for all of them, such as NFS 4"
PART = re.compile(r"\d{5}-\d{6}\.parquet")  # shard, running number
LABEL = b"hybridr"
MAX_PART_BYTES = 4 << 30  # of a part, unpacked; far more than export-text writes
ROWS_AT_ONCE = 16  # few, because a page may store once what all of its rows repeat
PLAINLY = {"PLAIN", "RLE", "BIT_PACKED"}
"""Encodings that `write_part` uses. Any other could store a value once for a million rows."""
DIGEST_BYTES = 16
TEXTS = pa.schema(
    [("id", pa.string()), ("seq_no", pa.int64()), ("routing", pa.string()), ("text", pa.large_string())]
)
ROW_BYTES = 128  # of offsets and null flags, in memory only
MAY_LACK = ("routing",)
FULL = "free some space, then run the same command again: finished parts stay"


class Label(BaseModel):
    """Base of the metadata that Parquet parts carry: immutable, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Origin(Label):
    """Origin of texts: the index, its uuid, and the fields they were joined from.

    `settled` is the last `_seq_no` read of each shard; later operations were not read. None where the cluster
    does not tell.
    """

    index: str
    uuid: str
    fields: tuple[str, ...]
    settled: dict[int, int] | None = None

    @property
    def position(self) -> Position | None:
        """Return `settled` as a position from which to read on."""
        return None if self.settled is None else Position(dict(self.settled))


class Making(Label):
    """How vectors were made: fingerprint, dimension, similarity, arithmetic, length limit, passages."""

    encoder: str = Field(pattern=FINGERPRINT_FORM)
    dim: int = Field(ge=1, le=65_536)
    similarity: Literal["cosine", "ip"]
    precision: Literal["fp32", "bf16", "int8"]
    backend: Literal["onnx", "openvino", "torch"]
    max_tokens: int | None = None
    windows: Windows | None = None

    @classmethod
    def of(cls, recipe: TextRecipe) -> Making:
        """Return how a recipe makes vectors."""
        encoder, limit = recipe.encoder, recipe.settings.max_tokens
        values = {"encoder": encoder.fingerprint, "dim": encoder.dim, "similarity": encoder.similarity}
        values |= {"max_tokens": limit, "windows": recipe.windows, **offers_of(encoder).arithmetic}
        return cls.model_validate(values)


class TextsLabel(Label):
    """Label of a part of texts: the documents of one shard with `since` < `_seq_no` <= `until`."""

    hybridr: str
    origin: Origin
    shard: int = Field(ge=0)
    since: int = Field(ge=-1)
    until: int = Field(ge=0)

    @property
    def share(self) -> Share:
        """Return the range of the index that this part was read from."""
        return Share(since=Position({self.shard: self.since}), until=Position({self.shard: self.until}))


class VectorsLabel(TextsLabel):
    """Label of a part of vectors: range, how the vectors were made, and the sha256 of the part of texts."""

    making: Making
    texts: str = Field(pattern=FINGERPRINT_FORM)


def check_making(stored: Making, expected: Making, place: str, remedy: str) -> None:
    """Raise an error if stored vectors were made in another way than this run makes them.

    FingerprintMismatch for another encoder, DataError for other settings. The message names
    their `place`, and the `remedy`: the command that makes them again.
    """
    if stored.encoder != expected.encoder:
        raise FingerprintMismatch(
            f"{place} was made by encoder {stored.encoder[:12]}, the encoder here is {expected.encoder[:12]}",
            hint=f"--encoder FOLDER of {stored.encoder[:12]}, or {remedy}",
        )
    differing = [name for name in Making.model_fields if getattr(stored, name) != getattr(expected, name)]
    if differing:
        name = differing[0]
        raise DataError(
            f"{place} was made with {name} {getattr(stored, name)}, {getattr(expected, name)} is wanted",
            hint=f"give the options that it was made with, or {remedy}",
        )


def wrong_value(error: ValidationError) -> str:
    """Return a line about the first wrong value of a label."""
    first = error.errors()[0]
    return f"its label has a wrong '{'.'.join(map(str, first['loc']))}': {first['msg'].lower()}"


def part_name(shard: int, number: int) -> str:
    """Return the file name of a part of a shard."""
    return f"{shard:05d}-{number:06d}.parquet"


@dataclass(frozen=True)
class StageFolder:
    """The folder of a stage's Parquet parts, and the command that writes them."""

    folder: Path
    command: str

    @classmethod
    def texts(cls, bundle: Path, index: str = "NAME") -> StageFolder:
        """Return the folder of the first stage, texts."""
        return cls(bundle / "texts", f"hybridr export-text {quote(index)} --out {quote(str(bundle))}")

    @classmethod
    def vectors(cls, bundle: Path) -> StageFolder:
        """Return the folder of the second stage, vectors."""
        return cls(bundle / "vectors", f"hybridr encode {quote(str(bundle))}")

    def file(self, part: str) -> Path:
        """Return the path of a part."""
        return child_path(self.folder, part)

    def parts(self) -> list[str]:
        """Return the sorted names of the part files. Raises DataError for a link out of the folder."""
        if not self.folder.is_dir():
            return []
        try:
            require_own_files(self.folder)
        except ValueError as error:
            reason = f"{self.folder} cannot be read: {error}"
            raise DataError(reason, hint="copy the files themselves") from None
        return sorted(path.name for path in self.folder.iterdir() if PART.fullmatch(path.name))

    def finished(self) -> dict[str, Any]:
        """Return the manifest of the finished stage. Raises DataError if the stage is not done or parts
        differ from the manifest.
        """
        parts, manifest, folder = self.parts(), self.manifest(), self.folder
        if manifest is None:
            problem = f"{folder} has {quantity(len(parts), 'part')} and no manifest: that stage has not ended"
            raise DataError(problem if parts else f"there is nothing in {folder}", hint=self.command)
        named = set(manifest.get("outputs", ["its outputs"]))
        if missing := sorted(named.difference(parts)):
            raise DataError(f"{folder} lacks {missing[0]}, which its manifest names", hint=self.command)
        if strange := [name for name in parts if name not in named]:
            file = folder / strange[0]
            raise DataError(f"{file} is not in the manifest", hint=f"rm {quote(str(file))}")
        return manifest

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest, None if there is none. Raises DataError for a damaged one."""
        try:
            return read_manifest(self.folder)
        except DataError as error:
            raise DataError(
                str(error), hint=f"rm {quote(str(self.folder / MANIFEST_FILE))}; {self.command}"
            ) from None

    def entry(self, manifest: Mapping[str, Any], name: str, kind: type[L]) -> L:
        """Return the label stored under `name` in the manifest. Raises DataError for a wrong value."""
        file = self.folder / MANIFEST_FILE
        try:
            return kind.model_validate(manifest.get(name))
        except ValidationError as error:
            raise DataError(
                f"{file}: {wrong_value(error)}", hint=f"rm {quote(str(file))}; {self.command}"
            ) from None

    def unchanged(self, part: str, digest: str) -> Path:
        """Return the file of a part. Raises DataError unless its sha256 is `digest`."""
        file = self.file(part)
        with storing(file):
            sha256 = sha256_of(file)
        if sha256 != digest:
            problem = f"{file} is not the file that was written: it is damaged, or another"
            raise DataError(problem, hint=f"rm {quote(str(file))}; {self.command}")
        return file

    def compare(self) -> None:
        """Raise DataError if a part is not the file that an existing manifest names."""
        digests = (self.manifest() or {}).get("outputs", {})
        for name in self.parts():
            if name in digests:
                self.unchanged(name, digests[name])

    def reopen(self) -> None:
        """Delete the manifest while parts are being written."""
        (self.folder / MANIFEST_FILE).unlink(missing_ok=True)

    def drop_behind_gaps(self) -> None:
        """Delete parts after a missing one: they are written again, so that parts do not overlap."""
        numbers: Counter[str] = Counter()
        for name in self.parts():
            shard = name.partition("-")[0]
            if name == part_name(int(shard), numbers[shard]):
                numbers[shard] += 1
            else:
                (self.folder / name).unlink()


@contextmanager
def claimed(file: Path) -> Iterator[bool]:
    """Lock a file that is to be written, for this block; yield False if another process has the lock.

    Leftovers of a killed process are deleted, and the lock file at the end. Raises DownloadError if the file
    system cannot lock.
    """
    if sys.platform == "win32":
        yield True
        return
    lock = file.with_name(f".{file.name}.lock")
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with storing(lock):
        lock.touch()
    stream = None
    with storing(lock, LOCKING), suppress(BlockingIOError):
        stream = acquire_lock(lock, wait=False)
    if stream is None:
        yield False
        return
    with stream:
        for leftover in file.parent.glob(f".{file.name}.*"):
            if leftover != lock:
                leftover.unlink(missing_ok=True)
        try:
            yield True
        finally:
            lock.unlink(missing_ok=True)


def vectors_schema(dim: int) -> pa.Schema:
    """Return the columns of a part of vectors.

    A document has a vector for each span of its text (`start` to `end` in characters): one, one a passage, or
    none without text. `digest` identifies the text; `whole` says whether the spans reach its end.
    """
    document = [("id", pa.string()), ("seq_no", pa.int64())]
    text = [("digest", pa.binary(DIGEST_BYTES)), ("whole", pa.bool_())]
    spans = [(name, pa.list_(pa.int64())) for name in ("start", "end")]
    return pa.schema([*document, *text, *spans, ("vectors", pa.list_(pa.list_(pa.float32(), dim)))])


def parquet_table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return a Parquet table of columns by name."""
    return pa.Table.from_pydict(columns, schema=schema)


def lists_of_vectors(rows: Sequence[NDArray[np.float32]], dim: int) -> pa.Array:
    """Return a Parquet column of the vectors `(n, dim)` of each document."""
    flat = np.concatenate([*rows, np.zeros((0, dim), dtype=np.float32)])  # (vectors, dim)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), dim)
    return pa.ListArray.from_arrays(pa.array(offsets), vectors)


def vectors_in(table: pa.Table, dim: int) -> list[NDArray[np.float32]]:
    """Return the vectors `(n, dim)` of each document of a row group."""
    if not table.num_rows:
        return []
    lists = table["vectors"].combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    flat = lists.flatten().flatten().to_numpy().reshape(-1, dim)  # (vectors, dim)
    return np.split(flat, np.cumsum(np.diff(lists.offsets.to_numpy()))[:-1])


def digest_of_text(text: str) -> bytes:
    """Return the first 128 bits of a text's sha256."""
    return hashlib.sha256(text.encode()).digest()[:DIGEST_BYTES]


def write_part(file: Path, label: Label, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write a Parquet part under a temporary name and rename it; each table is a row group.

    Raises DownloadError if the disk is full or not writable.
    """
    labelled = schema.with_metadata({LABEL: label.model_dump_json()})
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_page_checksum": True}
    with (
        storing(file, FULL),
        replacing(file, private=True) as temporary,
        temporary.open("wb") as stream,
        pq.ParquetWriter(stream, labelled, **options) as writer,
    ):
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))


@contextmanager
def undamaged(file: Path, remedy: str) -> Iterator[None]:
    """Turn errors of reading a damaged file into a DataError; `remedy` is the command that writes it."""
    try:
        yield
        return
    except ValidationError as error:
        reason = wrong_value(error)
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        reason = str(error)
    first = next(iter(reason.strip().splitlines()), "it is damaged")
    raise DataError(f"{file} cannot be read: {first}", hint=f"rm {quote(str(file))}; {remedy}") from None


def read_label(file: Path, kind: type[L], remedy: str) -> L:
    """Return the label of a part. Raises DataError."""
    with undamaged(file, remedy), pq.ParquetFile(require_regular(file)) as part:
        label = (part.schema_arrow.metadata or {}).get(LABEL)
        if label is None:
            raise ValueError("hybridr did not write it: it has no label")
        return kind.model_validate_json(label)


def count_rows(file: Path, remedy: str) -> int:
    """Return the number of documents of a part. Raises DataError."""
    with undamaged(file, remedy), pq.ParquetFile(require_regular(file)) as part:
        return int(part.metadata.num_rows)


def read_part(file: Path, schema: pa.Schema, remedy: str) -> Iterator[pa.Table]:
    """Yield the row groups of a part as tables; `remedy` is the command that writes it again.

    Raises DataError for damage, other columns, missing values, and more data than the part declares.
    """
    with (
        undamaged(file, remedy),
        pq.ParquetFile(require_regular(file), page_checksum_verification=True) as part,
    ):
        stored = part.schema_arrow
        for expected in schema:
            if expected.name not in stored.names:
                raise ValueError(f"it has no column '{expected.name}'")
            if (kind := stored.field(expected.name).type) != expected.type:
                raise ValueError(f"its column '{expected.name}' is of {kind}, {expected.type} is needed")
        groups = [part.metadata.row_group(number) for number in range(part.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        if odd := {name for column in columns for name in column.encodings} - PLAINLY:
            raise ValueError(f"its columns are encoded as {min(odd)}, which may unpack to any size")
        if (size := sum(group.total_byte_size for group in groups)) > MAX_PART_BYTES:
            raise ValueError(
                f"it unpacks to {size / 1e9:,.1f} GB, {MAX_PART_BYTES / 1e9:,.1f} GB are the limit"
            )
        for number in range(part.num_row_groups):
            remaining = 2 * part.metadata.row_group(number).total_byte_size  # lists without offsets
            batches = []
            for batch in part.iter_batches(ROWS_AT_ONCE, [number], schema.names, use_threads=False):
                batch.validate(full=True)
                if empty := [n for n in schema.names if n not in MAY_LACK and batch[n].null_count]:
                    raise ValueError(f"its column '{empty[0]}' lacks values")
                remaining -= batch.nbytes - ROW_BYTES * len(batch)
                if remaining < 0:
                    raise ValueError("it unpacks to more than it declares")
                batches.append(batch)
            yield pa.Table.from_batches(batches).combine_chunks() if batches else schema.empty_table()
