"""The int8 form of a graph: products by constant matrices in bytes, all else as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

STEPS = 127  # of a sign; the rows' bytes are unsigned around 128, as the fast kernels of x86 want them
FINE = 2 * STEPS  # parts of a step that a remainder, at most half a step, is counted in
LEAST = 1e-12  # a row of nothing but zeros has this scale
PRODUCT, DOMAIN = "MatMulIntegerToFloat", "com.microsoft"  # MatMulInteger takes two more passes
PASSING = ("Add", "Reshape", "Transpose")  # between a product and the softmax that weighs it
CONSTANTS: dict[str, NDArray[np.generic]] = {
    "int8_one": np.array(1, dtype=np.float32),
    "int8_steps": np.array(STEPS, dtype=np.float32),
    "int8_step": np.array(1 / STEPS, dtype=np.float32),
    "int8_fine": np.array(1 / FINE, dtype=np.float32),
    "int8_least": np.array(LEAST, dtype=np.float32),
    "int8_middle": np.array(128, dtype=np.uint8),
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
        replaced, averaged = set(), averaged_products(graph)
        for node in graph.node:
            weights = values.get(node.input[1]) if node.op_type == "MatMul" else None
            if weights is None or weights.ndim != 2:
                self.nodes.append(node)
            else:
                self.add_product(node, weights, fine=node.output[0] in averaged)
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

    def add_product(self, node: onnx.NodeProto, weights: NDArray[np.float32], *, fine: bool) -> None:
        """Add the product of a row's bytes and a channel's, times both scales; `fine` adds remainders."""
        rows, scale = self.quantized_rows(node.input[0])
        steps, scales = quantized_channels(weights)
        matrix = self.add_tensor(f"{node.input[1]}_int8", steps)
        factors = self.add_tensor(f"{node.input[1]}_scale", scales)
        whole = self.multiply(rows, matrix, factors, f"{node.output[0]}_rows")
        if fine:
            factors = self.add_tensor(f"{node.input[1]}_fine", scales / np.float32(FINE))
            matrix = self.add_tensor(f"{node.input[1]}_int8_again", steps)
            rest = self.multiply(self.remainders(node.input[0]), matrix, factors, f"{node.output[0]}_rest")
            whole = self.add("Add", [whole, rest], f"{node.output[0]}_whole")
        self.add("Mul", [whole, scale], node.output[0])

    def multiply(self, rows: str, matrix: str, factors: str, output: str) -> str:
        """Multiply bytes with a matrix in int8, and each channel with its factor.

        No two products share a matrix or its zero: where bytes need another kernel (EXACT_BYTES of
        encoding/engines.py), ONNX Runtime writes both anew, which it can do only once.
        """
        zero = self.add_tensor(f"{output}_zero", np.array(0, dtype=np.int8))
        inputs = [rows, matrix, "int8_one", factors, "int8_middle", zero]
        return self.add(PRODUCT, inputs, output, domain=DOMAIN)

    def quantized_rows(self, values: str) -> tuple[str, str]:
        """Name the bytes and the scales of `values`, made once for all products that read them."""
        if values not in self._rows:
            sizes = self.add("Abs", [values], f"{values}_abs")
            highest = self.add("ReduceMax", [sizes], f"{values}_max", axes=[-1], keepdims=1)
            bound = self.add("Max", [highest, "int8_least"], f"{values}_bound")
            scale = self.add("Mul", [bound, "int8_step"], f"{values}_scale")
            inverse = self.add("Div", ["int8_steps", bound], f"{values}_inverse")
            steps = self.add("Mul", [values, inverse], f"{values}_steps")
            rows = self.add("QuantizeLinear", [steps, "int8_one", "int8_middle"], f"{values}_bytes")
            self._rows[values] = rows, scale
        return self._rows[values]

    def remainders(self, values: str) -> str:
        """Name the bytes of what rounding to `quantized_rows` took away."""
        rounded = [f"{values}_bytes", "int8_one", "int8_middle"]
        back = self.add("DequantizeLinear", rounded, f"{values}_back")
        rest = self.add("Sub", [f"{values}_steps", back], f"{values}_rest")
        return self.add("QuantizeLinear", [rest, "int8_fine", "int8_middle"], f"{values}_rest_bytes")


def averaged_products(graph: onnx.GraphProto) -> set[str]:
    """Name the outputs of the products that a softmax weighs: the values of attention."""
    made = {output: node for node in graph.node for output in node.output}
    weighed = [
        node
        for node in graph.node
        if node.op_type == "MatMul" and getattr(made.get(node.input[0]), "op_type", "") == "Softmax"
    ]
    products = (product_behind(made.get(node.input[1]), made) for node in weighed)
    return {product.output[0] for product in products if product is not None}


def product_behind(node: onnx.NodeProto | None, made: dict[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    """Walk back over shapes and biases to the product that they were made of."""
    while node is not None and node.op_type in PASSING:
        before = [made[name] for name in node.input if name in made]
        node = next((one for one in before if one.op_type in (*PASSING, "MatMul")), None)
    return node


def quantized_channels(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Give int8 steps `(inputs, channels)` and the scales `(channels,)` of fp32 weights."""
    scales = np.maximum(np.abs(weights).max(axis=0), LEAST).astype(np.float32) / np.float32(STEPS)
    return np.rint(weights / scales).astype(np.int8), scales
