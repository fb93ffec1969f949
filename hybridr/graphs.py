"""An encoder as an ONNX graph, traced from torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .backends import OUTPUT
from .errors import MissingExtra
from .retriever import Retriever

try:
    import onnx  # noqa: F401  # torch's exporter needs it
    import torch
except ImportError as missing:
    raise MissingExtra(missing.name or "onnx", "train", "exporting a model") from missing

OPSET = 17


def write_graph(retriever: Retriever, path: Path) -> None:
    """Trace the retriever into one self-contained ONNX file with free batch and token axes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = retriever.input_names
    ids = torch.randint(0, retriever.backbone.config.vocab_size, (2, 9), generator=torch.Generator())
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    example = (ids, mask, torch.zeros_like(ids))[: len(names)]
    outputs = ["last_hidden_state", OUTPUT]
    axes = {name: {0: "batch", 1: "tokens"} for name in [*names, outputs[0]]} | {OUTPUT: {0: "batch"}}
    device = retriever.device
    with torch.inference_mode(), silenced():
        torch.onnx.export(
            retriever.cpu().eval(), example, str(path), input_names=names, output_names=outputs,
            dynamic_axes=axes, opset_version=OPSET, dynamo=False,
        )  # fmt: skip
    retriever.to(device)


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
