"""ONNX graphs of models in torch, traced."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..encoders.engines import OUTPUT, STATES
from ..encoders.export.graphs import OPSET
from ..errors import extra
from .retriever import BackboneModel

with extra("train", "exporting a model"):
    import torch


def trace(model: BackboneModel, path: Path, names: list[str], outputs: list[str], opset: int = OPSET) -> None:
    """Let torch run a model once, and write down what it does with inputs of these names."""
    ids = torch.randint(0, model.config.vocab_size, (2, 9), generator=torch.Generator())
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    example = (ids, mask, torch.zeros_like(ids))[: len(names)]
    axes = {name: {0: "batch", 1: "tokens"} for name in [*names, STATES]} | {OUTPUT: {0: "batch"}}
    device = model.device
    with torch.inference_mode(), silenced():
        torch.onnx.export(
            model.cpu().eval(),
            example,
            str(path),
            input_names=names,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=opset,
            dynamo=False,
        )
    model.to(device)


@contextmanager
def silenced() -> Iterator[None]:
    """Hide what torch remarks while it traces: the parity check judges the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
