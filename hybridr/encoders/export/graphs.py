"""Writes ONNX graphs of encoders: traced by torch, or built directly from weights of the BERT family."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ..contract import Usage
from ..engines import OUTPUT, STATES, from_training
from .model_files import Exportable
from .weights import EMBEDDED, EnsembleBiEncoder, NumpyBiEncoder, StoredWeights, token_states

OPSET, IR_VERSION = 17, 8
SCATTERING_OPSET = 18  # the first whose scatter can keep the largest of several values
MIN_LENGTH = 1e-12  # length of the shortest vector that is scaled to length 1
ALL = 2**31 - 1  # tokens


def write_graph(retriever: Exportable, path: Path) -> None:
    """Write one self-contained ONNX file with free batch and token axes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(retriever, NumpyBiEncoder):
        onnx.save(build_graph(retriever), str(path))
    else:
        from_training("graph_exports", "trace")(retriever, path, retriever.input_names, [STATES, OUTPUT])


def build_graph(retriever: NumpyBiEncoder) -> onnx.ModelProto:
    """Return the ONNX model of a retriever: token states, pooling and normalisation.

    For an ensemble it contains both retrievers and their projection.
    """
    graph = GraphArithmetic(retriever.weights)
    inputs = retriever.input_names
    if isinstance(retriever, EnsembleBiEncoder):
        first, second = (graph.part(name, retriever) for name, retriever in retriever.parts.items())
        prefix_end, first_inputs = 1 + retriever.prefix_tokens, []
        for name in inputs:  # the first retriever reads texts without the second one's prefix
            ends = [tokens_between(graph, name, 0, 1), tokens_between(graph, name, prefix_end, ALL)]
            first_inputs.append(graph.node("Concat", ends, axis=1))
        states = token_states(first, retriever.first.config, *first_inputs)
        second_states = token_states(second, retriever.second.config, *inputs)
        vectors = first.pool(states, first_inputs[1], retriever.first.usage)
        centre = graph.weight("centre")
        centred = graph.node("Sub", [second.pool(second_states, inputs[1], retriever.second.usage), centre])
        pairs = graph.node("Concat", [vectors, graph.scaled(centred)], axis=1)
        graph.scaled(graph.node("Gemm", [pairs, graph.weight("components")]), OUTPUT)
        spliced = [
            tokens_between(graph, states, 0, 1),
            tokens_between(graph, second_states, 1, prefix_end),
            tokens_between(graph, states, 1, ALL),
        ]
        graph.node("Concat", spliced, output=STATES, axis=1)
    else:
        states = token_states(graph, retriever.config, *inputs)
        graph.node("Identity", [states], output=STATES)
        graph.pool(states, "attention_mask", retriever.usage, OUTPUT)
    shapes: dict[str, list[str | int | None]] = {
        STATES: ["batch", "tokens", retriever.width],
        OUTPUT: ["batch", retriever.dim],
    }
    shell = helper.make_graph(
        graph.nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(shell, opset_imports=opset, ir_version=IR_VERSION, producer_name="hybridr")
    model.graph.initializer.extend(graph.tensors.values())  # last, since each earlier step copies its input
    return model


def tokens_between(graph: GraphArithmetic, value: str, start: int, end: int) -> str:
    """Add a slice of tokens from `start` to before `end`; return its name."""
    return graph.node("Slice", [value, *map(graph.sizes, (start, end, 1))])


class GraphArithmetic:
    """The operations of a backbone as ONNX nodes; a value is the name of a node's output."""

    def __init__(self, weights: StoredWeights) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}
        self._name = self._hidden = ""

    def part(self, name: str, retriever: NumpyBiEncoder) -> GraphArithmetic:
        """Return a builder that adds another backbone to the same graph, with prefixed names of weights."""
        part = GraphArithmetic(retriever.weights)
        part.nodes, part.tensors, part._name = self.nodes, self.tensors, f"{name}."
        return part

    def node(self, kind: str, inputs: list[str], *, output: str = "", **options: Any) -> str:
        """Add a node; return the name of its output."""
        name = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **options))
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a tensor once; return its name."""
        name = f"{self._name}{name}"
        if name not in self.tensors:
            self.tensors[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        return name

    def number(self, value: float) -> str:
        """Add a constant number; return its name."""
        return self.constant(f"number_{value!r}", np.array(value, dtype=np.float32))

    def sizes(self, *values: int) -> str:
        """Add a constant of whole numbers, such as axes or a shape; return its name."""
        return self.constant(f"sizes_{values}", np.array(values, dtype=np.int64))

    def weight(self, name: str) -> str:
        """Add a weight as stored; return its name."""
        return self.constant(name, self.weights[name])

    def rows(self, table: str, places: str) -> str:
        """Add a look-up of rows of a table."""
        return self.node("Gather", [self.weight(f"{table}.weight"), places])

    def first_rows(self, table: str, like: str) -> str:
        """Add a slice of as many first rows of a table as `like` has tokens."""
        count = self.node("Shape", [like], start=1, end=2)
        return self.node("Slice", [self.weight(f"{table}.weight"), self.sizes(0), count, self.sizes(0)])

    def first_row(self, table: str) -> str:
        """Add the first row of a table."""
        return self.constant(f"{table}.weight", self.weights[f"{table}.weight"][:1])

    def places_after(self, ids: str, padding: int) -> str:
        """Add positions: non-padding tokens counted from `padding` + 1."""
        mark = self.constant("padding", np.array(padding, dtype=np.int64))
        present = self.node("Not", [self.node("Equal", [ids, mark])])
        present = self.node("Cast", [present], to=TensorProto.INT64)
        axis = self.constant("axis_1", np.array(1, dtype=np.int64))
        counts = self.node("CumSum", [present, axis])
        return self.node("Add", [self.node("Mul", [counts, present]), mark])

    def add(self, left: str, right: str) -> str:
        """Add the sum of two values."""
        return self.node("Add", [left, right])

    def linear(self, value: str, name: str) -> str:
        """Add a linear layer: product with a weight matrix, plus its bias."""
        matrix = self.constant(f"{name}.matrix", self.weights[f"{name}.weight"].T)
        return self.add(self.weight(f"{name}.bias"), self.node("MatMul", [value, matrix]))

    def norm(self, value: str, name: str, epsilon: float) -> str:
        """Add a layer normalisation."""
        inputs = [value, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
        return self.node("LayerNormalization", inputs, axis=-1, epsilon=epsilon)

    def gelu(self, value: str) -> str:
        """Add the exact GELU, in the pattern that ONNX Runtime fuses."""
        scaled = self.node("Div", [value, self.number(math.sqrt(2))])
        shifted = self.add(self.node("Erf", [scaled]), self.number(1.0))
        return self.node("Mul", [self.node("Mul", [value, shifted]), self.number(0.5)])

    def attend(self, query: str, key: str, value: str, mask: str, heads: int) -> str:
        """Add multi-head attention: values weighted by the softmax of scaled products of unmasked tokens."""
        width = int(self.weights[f"{EMBEDDED}.weight"].shape[0]) // heads
        head_shape = self.sizes(0, 0, heads, width)
        query, value = (
            self.node("Transpose", [self.node("Reshape", [value, head_shape])], perm=[0, 2, 1, 3])
            for value in (query, value)
        )
        key = self.node("Transpose", [self.node("Reshape", [key, head_shape])], perm=[0, 2, 3, 1])
        scaled = self.node("Mul", [self.node("MatMul", [query, key]), self.number(1 / math.sqrt(width))])
        weights = self.node("Softmax", [self.add(scaled, self.hidden(mask))], axis=-1)
        mixed = self.node("Transpose", [self.node("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        return self.node("Reshape", [mixed, self.sizes(0, 0, heads * width)])

    def hidden(self, mask: str) -> str:
        """Return the name of the mask term that is added to attention scores, added once for all layers."""
        if self._hidden:
            return self._hidden
        present = self.node("Cast", [self.node("Unsqueeze", [mask, self.sizes(1, 2)])], to=TensorProto.FLOAT)
        absent = self.node("Sub", [self.number(1.0), present])
        self._hidden = self.node("Mul", [absent, self.number(float(np.finfo(np.float32).min))])
        return self._hidden

    def pool(self, states: str, mask: str, usage: Usage, output: str = "") -> str:
        """Add pooling of token states to the vectors of texts."""
        if usage.pooling == "cls":
            first = self.constant("first", np.array(0, dtype=np.int64))
            vectors = self.node("Gather", [states, first], axis=1)
        else:
            weights = self.node("Cast", [self.node("Unsqueeze", [mask, self.sizes(2)])], to=TensorProto.FLOAT)
            total = self.node("ReduceSum", [self.node("Mul", [states, weights]), self.sizes(1)], keepdims=0)
            count = self.node("ReduceSum", [weights, self.sizes(1)], keepdims=0)
            vectors = self.node("Div", [total, self.node("Max", [count, self.number(1e-9)])])
        if usage.truncate_dim:
            ends = [self.sizes(0), self.sizes(usage.truncate_dim), self.sizes(1)]
            vectors = self.node("Slice", [vectors, *ends])
        if usage.similarity == "cosine":
            return self.scaled(vectors, output)
        return self.node("Identity", [vectors], output=output)

    def scaled(self, vectors: str, output: str = "") -> str:
        """Add scaling of vectors to length 1."""
        length = self.node("ReduceL2", [vectors], axes=[-1], keepdims=1)
        return self.node("Div", [vectors, self.node("Max", [length, self.number(MIN_LENGTH)])], output=output)
