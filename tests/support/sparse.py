"""Sparse encoders of random weights, of the golden rankers."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from support.golden_ddr import SOURCE, rem_of

QUERIES = ["the river and the sea", "a bank of the river", "stone by stone", "over the long night"]


@cache
def exported(ranker: str = "splade") -> Path:
    """Export a golden ranker once for all tests of a process."""
    from hybridr.encoders.export.exporting import export

    folder = Path(mkdtemp(prefix=f"hybridr-{ranker}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return export(golden(ranker), folder / "encoder")


@cache
def golden(ranker: str) -> Any:
    from hybridr.training.rankers import assemble

    made = assemble(SOURCE, rem_of(f"{ranker}_lora192-pa4"), ranker=ranker)
    if ranker == "unicoil":  # as it is, its random head gives no token of a query a weight
        made.head.bias.data += 1.0
    return made


def dense_rows(rows: list[dict[str, float]], tokens: list[str]) -> np.ndarray:
    """Give weights by token as an array `(n, vocabulary)`."""
    return np.array([[row.get(token, 0.0) for token in tokens] for row in rows], dtype=np.float32)
