"""Sparse encoders of random weights: of the golden rankers, and as sentence-transformers writes them."""

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


def written(folder: Path, *, free: bool = False, activation: str = "relu", pooling: str = "max") -> Any:
    """Have sentence-transformers write a SparseEncoder; a `free` one weighs queries by a table."""
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder import modules
    from transformers import AutoTokenizer

    shutil.copytree(SOURCE, folder / "backbone", copy_function=shutil.copyfile)
    backbone = str(folder / "backbone")
    documents = [modules.MLMTransformer(backbone), modules.SpladePooling(pooling, activation)]
    made = documents
    if free:
        tokenizer = AutoTokenizer.from_pretrained(backbone)
        weight = torch.from_numpy(np.random.default_rng(3).random(len(tokenizer), dtype=np.float32))
        table = modules.SparseStaticEmbedding(tokenizer, weight)
        made = [modules.Router.for_query_document(query_modules=[table], document_modules=documents)]
    model = SparseEncoder(modules=made)
    model.save(str(folder / "model"))
    return model


def dense_rows(rows: list[dict[str, float]], tokens: list[str]) -> np.ndarray:
    """Give weights by token as an array `(n, vocabulary)`."""
    return np.array([[row.get(token, 0.0) for token in tokens] for row in rows], dtype=np.float32)
