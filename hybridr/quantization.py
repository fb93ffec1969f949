"""A graph's matrix products in int8, so that a document has the same vector in whatever batch it comes.

Weights have one scale per channel, fixed. Activations have one scale per row (a token of a text), measured
when the graph runs: the usual one per batch makes a vector depend on its neighbours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import MissingExtra

try:
    import onnx
    from onnx import helper, numpy_helper
except ImportError as missing:
    raise MissingExtra(missing.name or "onnx", "train", "exporting a model") from missing

STEPS = 127  # of a sign; the rows' bytes are unsigned around 128, as the fast kernels of x86 want them
LEAST = 1e-12  # a row of nothing but zeros has this scale
PRODUCT, DOMAIN = (
    "MatMulIntegerToFloat",
    "com.microsoft",
)  # ONNX Runtime's; MatMulInteger takes two more passes
CONSTANTS: dict[str, NDArray[np.generic]] = {
    "int8_one": np.array(1, dtype=np.float32),
    "int8_step": np.array(1 / STEPS, dtype=np.float32),
    "int8_least": np.array(LEAST, dtype=np.float32),
    "int8_middle": np.array(128, dtype=np.uint8),
    "int8_zero": np.array(0, dtype=np.int8),
}


def quantize(graph: Path, target: Path) -> None:
    """Write `graph` with every product by a constant matrix in int8; all else stays fp32."""
    model = onnx.load(str(graph))
    quantized = Quantized(model.graph)
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(quantized.nodes)
    model.graph.initializer.extend(quantized.tensors.values())
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    onnx.save(model, str(target))


class Quantized:
    """The nodes and tensors of a graph while its products are replaced."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._rows: dict[str, tuple[str, str]] = {}
        values = {name: numpy_helper.to_array(tensor) for name, tensor in self.tensors.items()}
        for name, value in CONSTANTS.items():
            self.add_tensor(name, value)
        replaced = set()
        for node in graph.node:
            weights = values.get(node.input[1]) if node.op_type == "MatMul" else None
            if weights is None or weights.ndim != 2:
                self.nodes.append(node)
            else:
                self.add_product(node, weights)
                replaced.add(node.input[1])
        for name in replaced - {used for node in self.nodes for used in node.input}:
            del self.tensors[name]

    def add_tensor(self, name: str, value: NDArray[np.generic]) -> str:
        """Add a constant and give its name."""
        self.tensors[name] = numpy_helper.from_array(value, name)
        return name

    def add(self, kind: str, inputs: list[str], output: str, **options: Any) -> str:
        """Add a node and give the name of its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], **options))
        return output

    def add_product(self, node: onnx.NodeProto, weights: NDArray[np.float32]) -> None:
        """Add the product of a row's bytes and a channel's, times both scales."""
        rows, scale = self.quantized_rows(node.input[0])
        steps, scales = quantized_channels(weights)
        matrix = self.add_tensor(f"{node.input[1]}_int8", steps)
        factors = self.add_tensor(f"{node.input[1]}_scale", scales)
        inputs = [rows, matrix, "int8_one", factors, "int8_middle", "int8_zero"]
        whole = self.add(PRODUCT, inputs, f"{node.output[0]}_rows", domain=DOMAIN)
        self.add("Mul", [whole, scale], node.output[0])

    def quantized_rows(self, values: str) -> tuple[str, str]:
        """Name the bytes and the scales of `values`, made once for all products that read them."""
        if values not in self._rows:
            sizes = self.add("Abs", [values], f"{values}_abs")
            highest = self.add("ReduceMax", [sizes], f"{values}_max", axes=[-1], keepdims=1)
            bound = self.add("Max", [highest, "int8_least"], f"{values}_bound")
            scale = self.add("Mul", [bound, "int8_step"], f"{values}_scale")
            steps = self.add("Div", [values, scale], f"{values}_steps")
            rows = self.add("QuantizeLinear", [steps, "int8_one", "int8_middle"], f"{values}_bytes")
            self._rows[values] = rows, scale
        return self._rows[values]


def quantized_channels(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Give int8 steps `(inputs, channels)` and the scales `(channels,)` of fp32 weights."""
    scales = np.maximum(np.abs(weights).max(axis=0), LEAST).astype(np.float32) / np.float32(STEPS)
    return np.rint(weights / scales).astype(np.int8), scales
