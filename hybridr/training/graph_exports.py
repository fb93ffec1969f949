"""Writes graph folders: a model traced by torch to ONNX, described in a manifest, and compared with the
original.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..encoders.contract import Precision, base_of
from ..encoders.engines import GRAPHS, OUTPUT, STATES
from ..encoders.export.graphs import OPSET
from ..encoders.graph_folders import GraphFolder
from ..encoders.quantization import quantize
from ..encoders.tokens import TOKENIZER_FILE
from ..errors import ModelError, extra
from ..files.atomic import staged_folder
from ..files.manifest import write_manifest
from .torch_models import BackboneModel

with extra("train", "exporting a model"):
    import torch


@dataclass(frozen=True)
class GraphExport:
    """What to export: a torch model (a `BackboneModel`), its tokenizer as JSON, and details for the manifest.

    `parity` compares the opened folder with the model; `files` are further files by name.
    """

    model: Any
    definition: str | None
    opened: type[GraphFolder]
    details: Mapping[str, Any]
    parity: Callable[[Any], dict[str, Any]]
    inputs: Sequence[str] = ("input_ids", "attention_mask")
    opset: int = OPSET
    files: Mapping[str, bytes] = field(default_factory=dict)


def write_graph_folder(exported: GraphExport, folder: Path, precision: Precision = "fp32") -> Path:
    """Export a model into `folder`, which is replaced as a whole, and return its path. Raises ModelError."""
    if exported.definition is None:
        raise ModelError("the DAM has no tokenizer, which an encoder needs", hint="add its tokenizer.json")
    with staged_folder(folder) as staged:
        (staged / TOKENIZER_FILE).write_text(exported.definition, encoding="utf-8")
        for name, held in exported.files.items():
            (staged / name).write_bytes(held)
        graph = staged / GRAPHS["fp32"]
        graph.parent.mkdir()
        trace(exported.model.eval(), graph, list(exported.inputs), [OUTPUT], exported.opset)
        if precision == "int8":
            quantize(graph, staged / GRAPHS["int8"])
        model = exported.model
        entry = {
            "max_tokens": model.max_tokens,
            "max_positions": model.max_positions,
            "precision": precision,
            "base": base_of(model.folder),
            **exported.details,
        }
        origins = {"assembly": model.origins} if hasattr(model, "origins") else {}  # of DAM and REM
        manifest: dict[str, Any] = {
            "stage": "export",
            "settings": {"precision": precision, "opset": exported.opset},
            "inputs": {"model": entry["base"]},
            "outputs": [path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file()],
        }
        records = {exported.opened.entry: entry, **origins}
        write_manifest(staged, **manifest, extra=records)
        parity = exported.parity(exported.opened(staged))
        write_manifest(staged, **manifest, extra={**records, "parity": parity})
    return folder


def trace(model: BackboneModel, path: Path, names: list[str], outputs: list[str], opset: int = OPSET) -> None:
    """Run a model once in torch and write it as an ONNX graph with these inputs and outputs."""
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
    """Run the block without torch's warnings and log lines about tracing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
