"""How large the rows get that a graph multiplies with weights: seen once, over random tokens.

Random ones serve as well as text (docs/measured/encoding.md), and every graph reads them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from .sessions import feed, open_session, session_outputs

SEQUENCES, TOKENS = 32, 32
NEARLY_ALL = 0.99  # of a channel's values are no larger than its usual size


class Activations(NamedTuple):
    """What one input of products held."""

    usual: NDArray[np.float32]
    """The size of each channel, `(channels,)`."""
    lowest: float
    highest: float


def measure_activations(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, Activations]:
    """Measure values `(sequences, tokens, channels)` of a graph by name; none where it looks no tokens up.

    Raises ModelError when the graph fails.
    """
    words = vocabulary(model.graph)
    if not words:
        return {}
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    seen.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    ids = np.random.default_rng(0).integers(words, size=(SEQUENCES, TOKENS))
    with tempfile.TemporaryDirectory() as scratch:
        onnx.save(seen, str(graph := Path(scratch) / "seen.onnx"))
        session = open_session(graph)
        inputs = {value.name for value in session.get_inputs()}
        values = session_outputs(session, list(names), feed(inputs, ids, np.ones_like(ids)))
    return {name: activations(held) for name, held in zip(names, values, strict=True) if held.ndim == 3}


def vocabulary(graph: onnx.GraphProto) -> int:
    """Count the tokens that a graph looks up; 0 where it looks up none."""
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    nodes = (
        rows.get(node.input[0], 0)
        for node in graph.node
        if node.op_type == "Gather" and node.input[1] == "input_ids"
    )
    return next(nodes, 0)


def activations(values: NDArray[np.float32]) -> Activations:
    """Sum values `(sequences, tokens, channels)` up."""
    usual = np.quantile(np.abs(values), NEARLY_ALL, axis=(0, 1))
    return Activations(usual, float(values.min()), float(values.max()))
