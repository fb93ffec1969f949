"""Parts of others and damaged ones: each is refused by its name, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hybridr.errors import DataError
from hybridr.indexing.stages import bundle
from hybridr.indexing.stages.bundle import (
    TEXTS,
    TextsLabel,
    lists_of_vectors,
    parquet_table,
    read_label,
    read_part,
    vectors_in,
    vectors_schema,
)
from support.stages import ORIGIN, write_texts

LABEL = TextsLabel(hybridr="0", origin=ORIGIN, shard=0, since=-1, until=1)
TWO = {"id": ["a", "b"], "seq_no": [0, 1], "routing": [None, "r"], "text": ["one", "two"]}


def foreign(table: pa.Table, label: bytes | None) -> Callable[[Path], None]:
    """Write a file as somebody else would."""
    metadata = {bundle.LABEL: label} if label is not None else {}

    def write(file: Path) -> None:
        pq.write_table(table.replace_schema_metadata(metadata), file, use_dictionary=False)

    return write


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[60] ^= 0xFF  # within the first page
    file.write_bytes(content)


GOOD = LABEL.model_dump_json().encode()
WRONG_LABEL = GOOD.replace(b'"since":-1', b'"since":"x"')
FULL = pa.Table.from_pydict(TWO, schema=TEXTS)
CASES = {
    "empty": (lambda file: file.write_bytes(b""), "cannot be read"),
    "cut": (cut, "cannot be read"),
    "flipped": (flipped, "cannot be read"),
    "another kind of file": (lambda file: file.write_text("id,text\n"), "cannot be read"),
    "no label": (foreign(FULL, None), "hybridr did not write it"),
    "no JSON": (foreign(FULL, b"{"), "its label has a wrong ''"),
    "wrong label": (foreign(FULL, WRONG_LABEL), "its label has a wrong 'since'"),
    "no text": (foreign(FULL.drop_columns("text"), GOOD), "it has no column 'text'"),
    "numbers as text": (
        foreign(FULL.set_column(1, "seq_no", pa.array(["0", "1"])), GOOD),
        "its column 'seq_no' is of string, int64 is needed",
    ),
    "an id is missing": (foreign(FULL.set_column(0, "id", pa.array(["a", None])), GOOD), "'id' lacks values"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_part_is_refused(case: str, tmp_path: Path) -> None:
    spoil, message = CASES[case]
    file = write_texts(tmp_path) / "texts" / "00000-000000.parquet"
    spoil(file)

    def read() -> None:
        read_label(file, TextsLabel, "hybridr encode out")
        list(read_part(file, TEXTS, "hybridr encode out"))

    with pytest.raises(DataError, match=f"{file.name}.*{message}") as refused:
        read()
    assert refused.value.hint == f"rm {file}; hybridr encode out"


def test_a_part_that_would_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_PART_BYTES", 100)
    file = write_texts(tmp_path) / "texts" / "00000-000000.parquet"
    with pytest.raises(DataError, match="GB are the limit"):
        list(read_part(file, TEXTS, ""))


def test_vectors_come_back_to_the_bit() -> None:
    dice = np.random.default_rng(1)
    rows = [dice.normal(size=(count, 3)).astype(np.float32) for count in (2, 0, 1, 3)]
    columns = {
        "id": list("abcd"),
        "seq_no": [0, 1, 2, 3],
        "digest": [bytes(16)] * 4,
        "whole": [True] * 4,
        "start": [[0, 1], [], [0], [0, 1, 2]],
        "end": [[1, 2], [], [1], [1, 2, 3]],
        "vectors": lists_of_vectors(rows, 3),
    }
    table = parquet_table(columns, vectors_schema(3))
    for expected, found in zip(rows, vectors_in(table, 3), strict=True):
        np.testing.assert_array_equal(expected, found)
    assert [len(found) for found in vectors_in(table.slice(1, 2), 3)] == [0, 1]
    assert vectors_in(table.slice(4), 3) == []
