"""What the first stage leaves, made without a cluster; and an encoder whose process dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridr.files.local import write_manifest
from hybridr.indexing.stages.bundle import TEXTS, Origin, TextsLabel, parquet_table, write_part
from support.corpus import text_number
from support.hashing import HashingEncoder

ORIGIN = Origin(index="docs", uuid="u1", fields=("text",), settled={0: 59})


def write_texts(folder: Path, documents: int = 60, part: int = 20, page: int = 5) -> Path:
    """Write parts of texts with their manifest; the fourth document has no text."""
    texts, names = folder / "texts", []
    for number, start in enumerate(range(0, documents, part)):
        label = TextsLabel(hybridr="0", origin=ORIGIN, shard=0, since=start - 1, until=start + part - 1)
        pages = [range(first, first + page) for first in range(start, start + part, page)]
        names.append(f"00000-{number:06d}.parquet")
        tables = (
            parquet_table(
                {
                    "id": [f"d{n}" for n in numbers],
                    "seq_no": list(numbers),
                    "routing": [None] * len(numbers),
                    "text": ["" if n == 3 else text_number(n) for n in numbers],
                },
                TEXTS,
            )
            for numbers in pages
        )
        write_part(texts / names[-1], label, TEXTS, tables)
    extra = {"origin": ORIGIN.model_dump(mode="json")}
    write_manifest(texts, stage="export-text", settings={}, inputs={}, outputs=names, extra=extra)
    return folder


class DyingEncoder(HashingEncoder):
    """The encoder of the tests in a process that is killed at a text of the third part."""

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        if text_number(45) in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_documents(texts, max_tokens=max_tokens)
