"""The backend torch: what runs the weights of an encoder, on the GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..encoders.contract import Vectors
from ..encoders.engines import Engine
from ..errors import ModelError, extra
from .torch_models import read_retriever

with extra("train", "the backend torch"):
    import torch


def open_torch(folder: Path, precision: str) -> Engine:
    """Open the weights with torch, on the GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = read_retriever(folder).to(device)

    @contextmanager
    def computing() -> Iterator[None]:
        try:
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                yield
        except torch.cuda.OutOfMemoryError as error:
            raise ModelError(
                f"the memory of the GPU is too small: {str(error).splitlines()[0]}",
                hint="fewer tokens need less (--max-tokens), so do fewer workers on one GPU",
            ) from error

    def run(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        with computing():
            return model.run(ids, mask)

    def read(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> tuple[Vectors, Vectors]:
        with computing():
            return model.read(ids, mask)

    return Engine(run, read, model.width, model.batch_tokens, on_gpu=device == "cuda")
