"""Makes the int8 form of a graph: products by constant matrices in bytes, everything else unchanged.

A row has one scale, so a channel that is always large leaves few steps for the others. Such channels are
divided by a power of two, and their weights multiplied by it (Xiao et al. 2022, SmoothQuant, section 4). Rows
after an activation like GELU are wide and have almost no negative values. They are shifted, and cut into
parts, each with a separate scale.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from .sessions import graph_inputs, open_session, session_outputs

SEQUENCES, TOKENS = 32, 32  # random ids measure sizes as well as text does (docs/measured/encoding.md)
USUAL_QUANTILE = 0.99  # share of a channel's values that are no larger than its usual size


class Activations(NamedTuple):
    """The measured values of one input of products."""

    usual: NDArray[np.float32]
    """The size of each channel, `(channels,)`."""
    lowest: float
    highest: float


def measure_activations(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, Activations]:
    """Run a graph on random tokens; return the channels' usual sizes and the range of values, by name.

    Tensors of another shape than `(sequences, tokens, channels)` are left out. The result is empty for a
    graph without a table of tokens. Raises ModelError if the graph fails.
    """
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    tables = [
        node.input[0]
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[1] == "input_ids" and node.input[0] in rows
    ]
    if not tables:
        return {}
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    ids = np.random.default_rng(0).integers(rows[tables[0]], size=(SEQUENCES, TOKENS))
    with tempfile.TemporaryDirectory() as scratch:
        onnx.save(probe, str(graph := Path(scratch) / "probe.onnx"))
        session = open_session(graph)
        inputs = {value.name for value in session.get_inputs()}
        values = session_outputs(session, list(names), graph_inputs(inputs, ids, np.ones_like(ids)))
    return {
        name: Activations(
            np.quantile(np.abs(value), USUAL_QUANTILE, axis=(0, 1)), float(value.min()), float(value.max())
        )
        for name, value in zip(names, values, strict=True)
        if value.ndim == 3
    }


STEPS = 127  # of each sign; bytes of rows are unsigned around 128, which the fast kernels of x86 need
FINE = 2 * STEPS  # units per step in which a remainder, at most half a step, is counted
MIN_SCALE = 1e-12  # the scale of a row of zeros
ALL_STEPS = 255  # of a row with one sign only
CUTS = 4  # parts into which such a row is cut
SIDE = 0.1  # negative values down to this share of the highest count as one sign
GRID = 64  # units per 1 in which the lift of such a row is counted
PRODUCT, DOMAIN = "MatMulIntegerToFloat", "com.microsoft"  # MatMulInteger takes two more passes
PASS_THROUGH = ("Add", "Reshape", "Transpose")  # between a product and the softmax that weighs it
CONSTANTS: dict[str, NDArray[np.generic]] = {
    "int8_one": np.array(1, dtype=np.float32),
    "int8_steps": np.array(STEPS, dtype=np.float32),
    "int8_step": np.array(1 / STEPS, dtype=np.float32),
    "int8_fine": np.array(1 / FINE, dtype=np.float32),
    "int8_least": np.array(MIN_SCALE, dtype=np.float32),
    "int8_middle": np.array(128, dtype=np.uint8),
    "int8_all_steps": np.array(ALL_STEPS, dtype=np.float32),
    "int8_part_step": np.array(1 / ALL_STEPS, dtype=np.float32),
    "int8_bottom": np.array(0, dtype=np.uint8),
    "int8_parts": np.ones(CUTS, dtype=np.int64),
    "int8_cut": np.array([0, 0, CUTS, -1], dtype=np.int64),
    "int8_whole": np.array([0, 0, -1], dtype=np.int64),
}


def quantize(graph: Path, target: Path) -> None:
    """Write `graph` with every product by a constant matrix in int8; everything else stays fp32.

    Raises ModelError if the graph does not run.
    """
    model = onnx.load(str(graph))
    names = dict.fromkeys(node.input[0] for node in products(model.graph))
    quantized = Quantized(model.graph, measure_activations(model, list(names)))
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(quantized.nodes)
    model.graph.initializer.extend(quantized.tensors.values())
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    onnx.save(model, str(target))


class ByteRows(NamedTuple):
    """A product's input in bytes: each part of a row with its scale."""

    parts: list[tuple[str, str]]
    divisors: NDArray[np.float32]
    """Divisor of each channel, `(channels,)`."""
    lift: float
    """Offset added to each value; 0 for signed bytes."""


class Quantized:
    """The nodes and tensors of a graph while its products are replaced."""

    def __init__(self, graph: onnx.GraphProto, activations: Mapping[str, Activations]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._activations, self._rows = activations, dict[str, ByteRows]()
        for name, value in CONSTANTS.items():
            self.add_tensor(name, value)
        replaced, averaged = {node.output[0] for node in products(graph)}, averaged_products(graph)
        for node in graph.node:
            if node.output[0] not in replaced:
                self.nodes.append(node)
            else:
                weights = numpy_helper.to_array(self.tensors[node.input[1]])
                self.add_product(node, weights, fine=node.output[0] in averaged)
        for name in self.tensors.keys() - {used for node in self.nodes for used in node.input}:
            del self.tensors[name]

    def add_tensor(self, name: str, value: NDArray[np.generic]) -> str:
        """Add a constant; return its name."""
        self.tensors[name] = numpy_helper.from_array(value, name)
        return name

    def add(self, kind: str, inputs: list[str], output: str, **options: Any) -> str:
        """Add a node; return the name of its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], **options))
        return output

    def add_product(self, node: onnx.NodeProto, weights: NDArray[np.float32], *, fine: bool) -> None:
        """Add the int8 product of rows and channels, times both scales; `fine` adds rounding remainders."""
        values, output = node.input[0], node.output[0]
        rows = self.quantized_rows(values, len(weights))
        if rows.lift:  # sum of the products of a row's parts, minus the contribution of the lift
            summands, lifted = [], np.zeros(weights.shape[1])
            parts = zip(rows.parts, np.split(weights, CUTS), strict=True)
            for number, ((steps, scale), part) in enumerate(parts):
                matrix, factors = quantized_channels(part)
                product = self.multiply(steps, matrix, factors, f"{output}_{number}", zero="int8_bottom")
                summands.append(self.add("Mul", [product, scale], f"{output}_{number}_scaled"))
                lifted += rows.lift * (matrix * factors.astype(np.float64)).sum(axis=0)
            total = self.add("Sum", summands, f"{output}_sum")
            sums = self.add("Reshape", [total, "int8_whole"], f"{output}_lifted")
            lift = self.add_tensor(f"{output}_lift", lifted.astype(np.float32))
            self.add("Sub", [sums, lift], output)
            return
        [(steps, scale)] = rows.parts
        matrix, factors = quantized_channels(weights * rows.divisors[:, None])
        sums = self.multiply(steps, matrix, factors, f"{output}_rows")
        if fine:
            rounded = [f"{values}_bytes", "int8_one", "int8_middle"]
            nearest = self.add("DequantizeLinear", rounded, f"{values}_back")
            gap = self.add("Sub", [f"{values}_steps", nearest], f"{values}_rest")
            steps = self.add("QuantizeLinear", [gap, "int8_fine", "int8_middle"], f"{values}_rest_bytes")
            gaps = self.multiply(steps, matrix, factors / np.float32(FINE), f"{output}_rest")
            sums = self.add("Add", [sums, gaps], f"{output}_whole")
        self.add("Mul", [sums, scale], output)

    def multiply(
        self,
        rows: str,
        matrix: NDArray[np.int8],
        factors: NDArray[np.float32],
        output: str,
        zero: str = "int8_middle",
    ) -> str:
        """Add the product of bytes around `zero` with an int8 matrix, each channel times its factor.

        No two products share a matrix or its zero. For another kernel (EXACT_BYTES of
        encoders/sessions.py), ONNX Runtime rewrites both, which it can do only once.
        """
        steps = self.add_tensor(f"{output}_int8", matrix)
        scales = self.add_tensor(f"{output}_factors", factors)
        middle = self.add_tensor(f"{output}_zero", np.array(0, dtype=np.int8))
        return self.add(PRODUCT, [rows, steps, "int8_one", scales, zero, middle], output, domain=DOMAIN)

    def quantized_rows(self, values: str, channels: int) -> ByteRows:
        """Return the rows of `values` in bytes, made once for all products that read them.

        Rows with both signs lie around the middle byte. Rows with one sign are shifted to the lowest byte and
        cut into parts.
        """
        if values in self._rows:
            return self._rows[values]
        stats, name = self._activations.get(values), f"{values}_bytes"
        lift = one_sided_lift(stats) if stats and channels % CUTS == 0 else 0.0
        if lift:
            height = self.add_tensor(f"{values}_lift", np.array(lift, dtype=np.float32))
            pieces = self.add("Reshape", [values, "int8_cut"], f"{values}_cut")
            rows = self.add("Add", [pieces, height], f"{values}_lifted")
            steps = self.scaled(rows, rows, f"{values}_", "int8_all_steps", "int8_part_step")
            self.add("QuantizeLinear", [steps, "int8_one", "int8_bottom"], name)
            halves = [[f"{source}_{part}" for part in range(CUTS)] for source in (name, f"{values}_scale")]
            for source, names in zip((name, f"{values}_scale"), halves, strict=True):
                self.nodes.append(helper.make_node("Split", [source, "int8_parts"], names, axis=2))
            byte_rows = ByteRows(list(zip(*halves, strict=True)), np.ones(1, dtype=np.float32), lift)
        else:
            divisors = channel_divisors(stats.usual) if stats else np.ones(channels, dtype=np.float32)
            rows = values
            if divisors.max() > 1:
                factors = self.add_tensor(f"{values}_factors", 1 / divisors)
                rows = self.add("Mul", [values, factors], f"{values}_even")
            sizes = self.add("Abs", [rows], f"{values}_abs")
            steps = self.scaled(rows, sizes, f"{values}_", "int8_steps", "int8_step")
            self.add("QuantizeLinear", [steps, "int8_one", "int8_middle"], name)
            byte_rows = ByteRows([(name, f"{values}_scale")], divisors, 0.0)
        self._rows[values] = byte_rows
        return byte_rows

    def scaled(self, rows: str, sizes: str, name: str, steps: str, step: str) -> str:
        """Add rows divided by a step, so that the largest of the `sizes` has all steps."""
        highest = self.add("ReduceMax", [sizes], f"{name}max", axes=[-1], keepdims=1)
        bound = self.add("Max", [highest, "int8_least"], f"{name}bound")
        self.add("Mul", [bound, step], f"{name}scale")
        return self.add("Mul", [rows, self.add("Div", [steps, bound], f"{name}inverse")], f"{name}steps")


def products(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the products by a constant matrix."""
    matrices = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 2}
    return [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in matrices]


def one_sided_lift(activations: Activations) -> float:
    """Return the shift of values that have (nearly) one sign only; 0 for others."""
    depth = -activations.lowest
    return max(1.0, np.ceil(depth * GRID)) / GRID if depth < SIDE * activations.highest else 0.0


def channel_divisors(usual: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a divisor for each channel `(channels,)`, at least 1: the power of two nearest to
    sqrt(size of the channel / median size).
    """
    ratios = np.maximum(usual, MIN_SCALE) / max(float(np.median(usual)), MIN_SCALE)
    return np.exp2(np.maximum(0, np.rint(np.log2(ratios) / 2))).astype(np.float32)


def averaged_products(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the products that give attention its values, which it averages by a softmax."""
    makers, averaged = {output: node for node in graph.node for output in node.output}, set()
    for node in graph.node:
        if node.op_type != "MatMul" or getattr(makers.get(node.input[0]), "op_type", "") != "Softmax":
            continue
        maker = makers.get(node.input[1])
        while maker is not None and maker.op_type in PASS_THROUGH:  # skips shapes and biases
            predecessors = [makers[name] for name in maker.input if name in makers]
            maker = next((node for node in predecessors if node.op_type in (*PASS_THROUGH, "MatMul")), None)
        if maker is not None:
            averaged.add(maker.output[0])
    return averaged


def quantized_channels(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 steps `(inputs, channels)` and scales `(channels,)` of fp32 weights."""
    scales = np.maximum(np.abs(weights).max(axis=0), MIN_SCALE).astype(np.float32) / np.float32(STEPS)
    return np.rint(weights / scales).astype(np.int8), scales
