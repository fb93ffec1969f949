"""A graph's matrix products in int8, so that a document has the same vector in whatever batch it comes.

Weights have one scale per channel, fixed. Activations have one scale per row (a token of a text), measured
when the graph runs: the usual one per batch makes a vector depend on its neighbours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

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
GELU_LEAST = 0.17  # GELU gives nothing below its negative: with zero at this end the bytes are twice as fine
DEVIATIONS = 4  # how far a normalised value goes, about
CONSTANTS: dict[str, NDArray[np.generic]] = {
    "int8_one": np.array(1, dtype=np.float32),
    "int8_step": np.array(1 / STEPS, dtype=np.float32),
    "int8_step_of_gelu": np.array(1 / (2 * STEPS + 1), dtype=np.float32),
    "int8_least": np.array(LEAST, dtype=np.float32),
    "int8_gelu_least": np.array(GELU_LEAST, dtype=np.float32),
    "int8_middle": np.array(128, dtype=np.uint8),
    "int8_bottom": np.array(0, dtype=np.uint8),
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


class Rows(NamedTuple):
    """The names of a product's left side: bytes, their zero, the scale of each row."""

    bytes: str
    zero: str
    scale: str


class Quantized:
    """The nodes and tensors of a graph while its products are replaced."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._values = {name: numpy_helper.to_array(tensor) for name, tensor in self.tensors.items()}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._rows: dict[str, Rows] = {}
        products = [node for node in graph.node if self.is_product(node)]
        self._strengths: dict[str, NDArray[np.float32]] = {}
        for node in products:
            highest = np.abs(self._values[node.input[1]]).max(axis=1)
            self._strengths[node.input[0]] = np.maximum(self._strengths.get(node.input[0], LEAST), highest)
        for name, value in CONSTANTS.items():
            self.add_tensor(name, value)
        for node in graph.node:
            if node in products:
                self.add_product(node)
            else:
                self.nodes.append(node)
        for name in {node.input[1] for node in products} - {
            used for node in self.nodes for used in node.input
        }:
            del self.tensors[name]

    def is_product(self, node: onnx.NodeProto) -> bool:
        """Tell whether a node multiplies by a constant matrix."""
        return node.op_type == "MatMul" and getattr(self._values.get(node.input[1]), "ndim", 0) == 2

    def add_tensor(self, name: str, value: NDArray[np.generic]) -> str:
        """Add a constant and give its name."""
        self.tensors[name] = numpy_helper.from_array(value, name)
        return name

    def add(self, kind: str, inputs: list[str], output: str, **options: Any) -> str:
        """Add a node and give the name of its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], **options))
        return output

    def add_product(self, node: onnx.NodeProto) -> None:
        """Add the product of a row's bytes and a channel's, times both scales."""
        values, weights = node.input
        name, matrix = node.output[0], self._values[weights]
        rows = self.quantized_rows(values)
        if (even := self.evening(values)) is not None:
            matrix = matrix * even[:, None]
        steps, scales = quantized_channels(matrix)
        whole = self.add(
            PRODUCT,
            [rows.bytes, self.add_tensor(f"{weights}_int8", steps), "int8_one",
             self.add_tensor(f"{weights}_scale", scales), rows.zero, "int8_zero"],
            f"{name}_rows", domain=DOMAIN,
        )  # fmt: skip
        if not self.is_gelu(values):
            self.add("Mul", [whole, rows.scale], name)
            return
        lifted = self.add("Mul", [whole, rows.scale], f"{name}_lifted")
        lift = (GELU_LEAST * steps.sum(axis=0) * scales).astype(np.float32)
        self.add("Sub", [lifted, self.add_tensor(f"{weights}_lift", lift)], name)

    def quantized_rows(self, values: str) -> Rows:
        """Name the bytes and scales of `values`, made once for all products that read them."""
        if values in self._rows:
            return self._rows[values]
        gelu, even = self.is_gelu(values), self.evening(values)
        real = values
        if gelu:
            real = sizes = self.add("Add", [values, "int8_gelu_least"], f"{values}_lifted")
        else:
            if even is not None:
                factors = self.add_tensor(f"{values}_factors", (1 / even).astype(np.float32))
                real = self.add("Mul", [values, factors], f"{values}_even")
            sizes = self.add("Abs", [real], f"{values}_abs")
        highest = self.add("ReduceMax", [sizes], f"{values}_max", axes=[-1], keepdims=1)
        bound = self.add("Max", [highest, "int8_least"], f"{values}_bound")
        scale = self.add("Mul", [bound, "int8_step_of_gelu" if gelu else "int8_step"], f"{values}_scale")
        steps = self.add("Div", [real, scale], f"{values}_steps")
        zero = "int8_bottom" if gelu else "int8_middle"
        self._rows[values] = Rows(
            self.add("QuantizeLinear", [steps, "int8_one", zero], f"{values}_bytes"), zero, scale
        )
        return self._rows[values]

    def is_gelu(self, values: str) -> bool:
        """Tell whether values come out of x (1 + erf(x / 1.41)) / 2, whatever the order of the products."""
        parents = [values]
        for _ in range(4):
            made = [self._makers[name] for name in parents if name in self._makers]
            if any(node.op_type == "Erf" for node in made):
                return True
            parents = [name for node in made if node.op_type in ("Mul", "Add") for name in node.input]
        return False

    def evening(self, values: str) -> NDArray[np.float32] | None:
        """Give what each channel of a LayerNorm's output is divided by, and its weights multiplied.

        A few channels are many times as large as all others and would take the scale of the row. As in
        SmoothQuant (Xiao et al. 2023) both sides share the burden, by half each; the sizes come from the
        LayerNorm's own weights, so that no documents are needed. None for other values.
        """
        maker = self._makers.get(values)
        if maker is None or maker.op_type != "LayerNormalization" or len(maker.input) < 3:
            return None
        gain, shift = (self._values.get(name) for name in maker.input[1:3])
        if gain is None or shift is None:
            return None
        sizes = np.maximum(DEVIATIONS * np.abs(gain) + np.abs(shift), LEAST)
        even: NDArray[np.float32] = np.sqrt(sizes / np.maximum(self._strengths[values], LEAST))
        return even.astype(np.float32)


def quantized_channels(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Give int8 steps `(inputs, channels)` and the scales `(channels,)` of fp32 weights."""
    scales = np.maximum(np.abs(weights).max(axis=0), LEAST).astype(np.float32) / np.float32(STEPS)
    return np.rint(weights / scales).astype(np.int8), scales
