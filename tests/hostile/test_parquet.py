"""Parquet of some kilobytes that unpacks to any size: read in a child that may have 3 GB."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hybridr.indexing.stages import bundle
from hybridr.indexing.stages.bundle import TextsLabel
from support.stages import ORIGIN

LABEL = TextsLabel(hybridr="0", origin=ORIGIN, shard=0, since=-1, until=1).model_dump_json().encode()
ROWS, LETTERS = 1_500, 4_000_000
READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from pathlib import Path
from hybridr.errors import DataError
from hybridr.indexing.stages import bundle
bundle.PLAINLY = {*bundle.PLAINLY, *sys.argv[2:]}
try:
    for table in bundle.read_part(Path(sys.argv[1]), bundle.TEXTS, "again"):
        print(table.num_rows)
except DataError as error:
    print(error.message)
"""


def bomb(file: Path) -> Path:
    """Write a text once that all rows have: 6 GB in some kilobytes."""
    once = pa.array(["a" * LETTERS], pa.large_string())
    columns = {
        "id": pa.array([str(number) for number in range(ROWS)]),
        "seq_no": pa.array(range(ROWS), pa.int64()),
        "routing": pa.nulls(ROWS, pa.string()),
        "text": pa.chunked_array([once] * ROWS),
    }
    table = pa.table(columns).replace_schema_metadata({bundle.LABEL: LABEL})
    pq.write_table(table, file, compression="zstd", dictionary_pagesize_limit=2 * LETTERS)
    return file


def read(file: Path, *trusted: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(file), *trusted],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"},
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.attack(95)
def test_a_text_that_stands_in_every_row_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = bomb(tmp_path / "part.parquet")
    assert file.stat().st_size < 50_000
    assert "encoded as RLE_DICTIONARY, which may unpack to any size" in read(file)


@pytest.mark.attack(95)
def test_what_unpacks_to_more_than_it_declares_is_left_at_its_first_rows(tmp_path: Path) -> None:
    """A file may lie of its encodings: then what it gives is counted."""
    file = bomb(tmp_path / "part.parquet")
    assert "it unpacks to more than it declares" in read(file, "RLE_DICTIONARY", "PLAIN_DICTIONARY")
