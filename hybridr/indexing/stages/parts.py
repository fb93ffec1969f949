"""Parts: the Parquet files between the stages, written whole or not at all, and read only as they should be.

A part of texts has a row group for each page that was read of the index, so that what follows can make its
batches as a reindex does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ...errors import DataError, extra
from ...files.atomic import replacing, storing
from ...files.foreign import regular
from .bundle import Label, wrong_value

with extra("parquet", "Parquet"):
    import pyarrow as pa
    import pyarrow.parquet as pq

L = TypeVar("L", bound=Label)
LABEL = b"hybridr"
MOST_BYTES = 4 << 30  # of a part, unpacked; the largest that export-text writes has a small part of it
ROWS_AT_ONCE = 16  # what a page holds but once may be in each of its rows
PLAINLY = {"PLAIN", "RLE", "BIT_PACKED"}
"""Encodings that `write_part` writes; by all others a value is stored once and stands in a million rows."""
DIGEST_BYTES = 16
TEXTS = pa.schema(
    [("id", pa.string()), ("seq_no", pa.int64()), ("routing", pa.string()), ("text", pa.large_string())]
)
ROW_BYTES = 128  # of offsets and marks of missing values, in memory only
MAY_LACK = ("routing",)
FULL = "free some space, then run the same command again: finished parts stay"


def vectors_schema(dim: int) -> pa.Schema:
    """Name the columns of a part of vectors.

    A document has a vector for each span of its text, `start` to `end` in characters: one, or one a passage;
    without text none. `digest` tells the text, `whole` whether the spans reach its end.
    """
    spans = [(name, pa.list_(pa.int64())) for name in ("start", "end")]
    return pa.schema(
        [
            ("id", pa.string()),
            ("seq_no", pa.int64()),
            ("digest", pa.binary(DIGEST_BYTES)),
            ("whole", pa.bool_()),
            *spans,
            ("vectors", pa.list_(pa.list_(pa.float32(), dim))),
        ]
    )


def parquet_table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Make a table of columns by name."""
    return pa.Table.from_pydict(columns, schema=schema)


def lists_of_vectors(rows: Sequence[NDArray[np.float32]], dim: int) -> pa.Array:
    """Make a column of the vectors `(n, dim)` of each document."""
    flat = np.concatenate([*rows, np.zeros((0, dim), dtype=np.float32)])  # (vectors, dim)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), dim)
    return pa.ListArray.from_arrays(pa.array(offsets), vectors)


def vectors_in(table: pa.Table, dim: int) -> list[NDArray[np.float32]]:
    """Read the vectors `(n, dim)` of each document of a row group."""
    if not table.num_rows:
        return []
    lists = table["vectors"].combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    flat = lists.flatten().flatten().to_numpy().reshape(-1, dim)  # (vectors, dim)
    return np.split(flat, np.cumsum(np.diff(lists.offsets.to_numpy()))[:-1])


def digest_of_text(text: str) -> bytes:
    """Tell texts apart by 128 bits."""
    return hashlib.sha256(text.encode()).digest()[:DIGEST_BYTES]


def write_part(file: Path, label: Label, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write a part under another name and rename it; each table is a row group.

    Raises DownloadError when the disk is full or not writable.
    """
    labelled = schema.with_metadata({LABEL: json.dumps(label.to_json())})
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
def undamaged(file: Path, again: str) -> Iterator[None]:
    """Turn whatever a damaged file does to its reader into a DataError that says how to make it `again`."""
    try:
        yield
    except ValidationError as error:
        raise damaged_part(file, wrong_value(error), again) from None
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        raise damaged_part(file, str(error), again) from None


def damaged_part(file: Path, reason: str, again: str) -> DataError:
    """Say why a file cannot be read, and how it is made again."""
    first = next(iter(reason.strip().splitlines()), "it is damaged")
    return DataError(f"{file} cannot be read: {first}", hint=f"rm {file}; {again}")


def read_label(file: Path, kind: type[L], again: str) -> L:
    """Read what a part says of itself. Raises DataError."""
    with undamaged(file, again), pq.ParquetFile(regular(file)) as part:
        written = (part.schema_arrow.metadata or {}).get(LABEL)
        if written is None:
            raise ValueError("hybridr did not write it: it has no label")
        return kind.model_validate_json(written)


def count_rows(file: Path, again: str) -> int:
    """Count the documents of a part. Raises DataError."""
    with undamaged(file, again), pq.ParquetFile(regular(file)) as part:
        return int(part.metadata.num_rows)


def read_part(file: Path, schema: pa.Schema, again: str) -> Iterator[pa.Table]:
    """Yield the row groups of a part. Raises DataError for damage, and for other columns."""
    with (
        undamaged(file, again),
        pq.ParquetFile(regular(file), page_checksum_verification=True) as part,
    ):
        require_columns(part, schema)
        for number in range(part.num_row_groups):
            left = 2 * part.metadata.row_group(number).total_byte_size  # lists without offsets
            batches = []
            for batch in part.iter_batches(ROWS_AT_ONCE, [number], schema.names, use_threads=False):
                batch.validate(full=True)
                if empty := [n for n in schema.names if n not in MAY_LACK and batch[n].null_count]:
                    raise ValueError(f"its column '{empty[0]}' lacks values")
                left -= batch.nbytes - ROW_BYTES * len(batch)
                if left < 0:
                    raise ValueError("it unpacks to more than it declares")
                batches.append(batch)
            yield pa.Table.from_batches(batches).combine_chunks() if batches else schema.empty_table()


def require_columns(part: pq.ParquetFile, schema: pa.Schema) -> None:
    """Raise ValueError unless an open part has these columns, and no more than memory takes."""
    stored = part.schema_arrow
    for expected in schema:
        if expected.name not in stored.names:
            raise ValueError(f"it has no column '{expected.name}'")
        if stored.field(expected.name).type != expected.type:
            kind = stored.field(expected.name).type
            raise ValueError(f"its column '{expected.name}' is of {kind}, {expected.type} is needed")
    groups = [part.metadata.row_group(number) for number in range(part.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    if odd := {name for column in columns for name in column.encodings} - PLAINLY:
        raise ValueError(f"its columns are encoded as {min(odd)}, which may unpack to any size")
    if (size := sum(group.total_byte_size for group in groups)) > MOST_BYTES:
        raise ValueError(f"it unpacks to {size / 1e9:,.1f} GB, {MOST_BYTES / 1e9:,.1f} GB are the limit")
