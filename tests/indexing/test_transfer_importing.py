"""What a part may say of a document, before its vector is taken for one of the live index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridr.encoders.passages import Split
from hybridr.indexing.stages.bundle import digest_of_text, lists_of_vectors, parquet_table, vectors_schema
from hybridr.indexing.stages.transfer import Row, read_rows

ONE = np.ones((1, 2), dtype=np.float32)


@pytest.mark.parametrize(
    ("text", "made_of", "spans", "fits"),
    [
        ("a text", "a text", ((0, 6),), True),
        ("", "", (), True),
        ("a text", "another", ((0, 6),), False),
        ("a text", "a text", (), False),
        ("", "", ((0, 1),), False),
        ("a text", "a text", ((0, 7),), False),
        ("a text", "a text", ((3, 3),), False),
        ("a text", "a text", ((-1, 3),), False),
    ],
)
def test_a_row_fits_the_text_that_it_was_made_of(text, made_of, spans, fits):
    vectors = np.ones((len(spans), 2), dtype=np.float32)
    assert Row(digest_of_text(made_of), vectors, Split(spans)).fits(text) is fits


@pytest.mark.parametrize(
    "wrong", [{"start": [[0, 1]]}, {"end": [[]], "start": [[]]}, {"rows": [ONE * np.nan]}]
)
def test_rows_that_encode_never_writes_are_refused(wrong: dict[str, Any]) -> None:
    rows = wrong.get("rows", [ONE])
    columns = {
        "id": ["a"],
        "seq_no": [0],
        "digest": [digest_of_text("a")],
        "whole": [True],
        "start": wrong.get("start", [[0]]),
        "end": wrong.get("end", [[1]]),
        "vectors": lists_of_vectors(rows, 2),
    }
    with pytest.raises(ValueError, match="document 'a'|zip"):
        read_rows(parquet_table(columns, vectors_schema(2)), 2)
