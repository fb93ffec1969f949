"""An encoder as an ONNX graph: traced from torch, and quantised to int8."""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .encoder import OUTPUT
from .errors import MissingExtra
from .retriever import Retriever

try:
    import onnx  # noqa: F401  # torch's exporter and the quantiser need it
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


def quantize(graph: Path, target: Path) -> None:
    """Quantise the matrix products to int8: weights per channel, activations per batch."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with silenced(), tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / target.name
        quantize_dynamic(
            str(graph), str(written), per_channel=True, weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"], extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip
        shutil.copyfile(written, target)


@contextmanager
def silenced() -> Iterator[None]:
    """Hide what torch and the quantiser remark while they trace: the parity check judges the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
