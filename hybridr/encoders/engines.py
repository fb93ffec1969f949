"""Backends that run an encoder's graph: ONNX Runtime, OpenVINO (the extra "openvino"), torch on a GPU.

A backend gives a `Forward`, callable from several threads at once. Backends that are not used are not
imported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, extra
from ..files.local import cache_folder, child_path, read_manifest, replacing, require_size, storing
from .contract import Forward, StatesForward, Vectors
from .sessions import graph_inputs, open_mapped, open_session, require_small_graph, session_outputs
from .tokens import BATCH_TOKENS

GRAPHS: dict[str, str] = {"fp32": "onnx/model.onnx", "int8": "onnx/model_int8.onnx"}
FORM = 2  # version of the int8 graphs made here; another number for other arithmetic
STATES, OUTPUT = "last_hidden_state", "sentence_embedding"
PRECISIONS: dict[str, tuple[str, ...]] = {
    "onnx": ("fp32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
    "torch": ("fp32", "bf16"),
}
GROUP_CHANNELS = 128  # of a row that share a scale in OpenVINO; 384 are no faster and round twice as much
PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino", "torch": "torch"}
FIRST_CALL = threading.Lock()
"""Held during the first call of OpenVINO's binding, which initialises shared state. If two threads make that
call at once, it sometimes hangs: one waits for the interpreter's lock, its holder waits for the other."""


Infer: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64], "list[str]"], "list[Vectors]"]
"""Token ids, mask and names of outputs in, those outputs out."""


class Engine(NamedTuple):
    """An opened graph, and the tokens that a batch should have, including padding.

    `read` needs a graph that outputs the states of tokens; `width` is their dimension, None without that
    output. On a GPU batches are not cut for threads: one runs at a time, and a small one leaves it idle.
    """

    run: Forward
    read: StatesForward
    width: int | None
    batch_tokens: int
    on_gpu: bool = False


def from_training(module: str, name: str, purpose: str = "adapting or exporting a model") -> Any:
    """Return the object of that name in a module of `hybridr.training`, the only package that imports torch.

    Raises MissingExtra if torch is not installed.
    """
    with extra("train", purpose):
        import_module("torch")
        return getattr(import_module(f"hybridr.training.{module}"), name)


def require_backend(backend: str, precision: str) -> None:
    """Raise ModelError for an unknown backend, or a precision that it does not support."""
    if backend not in PRECISIONS:
        raise ModelError(f"there is no backend '{backend}'", hint=f"one of {', '.join(PRECISIONS)}")
    if precision not in PRECISIONS[backend]:
        names = ", ".join(name for name, supported in PRECISIONS.items() if precision in supported)
        raise ModelError(
            f"the backend {backend} has no {precision}", hint=f"backends with {precision}: {names or 'none'}"
        )


def open_engine(folder: Path, precision: str, backend: str, threads: int) -> Engine:
    """Return the opened graph of an encoder folder. Raises ModelError, and MissingExtra for a backend that is
    not installed.
    """
    require_backend(backend, precision)
    if backend == "torch":
        engine: Engine = from_training("torch_models", "open_torch", "the backend torch")(folder, precision)
        return engine
    if backend == "openvino":
        return open_openvino(ensure_graph(folder, "fp32"), precision, threads)
    sha256 = graph_sha256(folder) if precision == "fp32" else ""
    return open_onnx(ensure_graph(folder, precision), sha256)


def graph_sha256(folder: Path) -> str:
    """Return the sha256 of a folder's fp32 graph by its manifest, empty if it names none."""
    return (read_manifest(folder) or {}).get("outputs", {}).get(GRAPHS["fp32"]) or ""


def ensure_graph(folder: Path, precision: str) -> Path:
    """Return the path of a folder's graph for a precision, after checking the graph.

    A missing int8 graph is made from the fp32 graph (in a second, for MiniLM) and cached by its sha256.
    Raises ModelError for a graph that does not run, or is too large.
    """
    graph = folder / GRAPHS.get(precision, GRAPHS["fp32"])
    if precision == "int8" and not graph.is_file():
        graph = child_path(cache_folder() / "models", f"{graph_sha256(folder)[:32]}-int8-{FORM}.onnx")
        if not graph.is_file():
            from .quantization import quantize  # onnx is slow to import

            with storing(graph), replacing(graph) as temporary:
                quantize(ensure_graph(folder, "fp32"), temporary)
    require_size(graph)
    require_small_graph(graph)
    return graph


def make_engine(infer: Infer, shapes: Mapping[str, Sequence[Any]]) -> Engine:
    """Return an engine for CPUs; `infer` computes outputs of a graph, `shapes` are their shapes by name."""

    def run(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        """Return the vectors of a batch of token ids."""
        return infer(ids, mask, [OUTPUT])[0]

    def read(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> tuple[Vectors, Vectors]:
        """Return the token states and the vectors of a batch of token ids."""
        states, vectors = infer(ids, mask, [STATES, OUTPUT])
        return states, vectors

    *_, width = shapes.get(STATES) or (None,)
    return Engine(run, read, width if isinstance(width, int) else None, BATCH_TOKENS)


def open_onnx(graph: Path, sha256: str = "") -> Engine:
    """Return an engine that runs a graph by ONNX Runtime; with its `sha256`, from a memory-mapped copy."""
    session = open_mapped(graph, sha256) if sha256 else open_session(graph)
    names = {value.name for value in session.get_inputs()}

    def infer(ids: NDArray[np.int64], mask: NDArray[np.int64], outputs: list[str]) -> list[Vectors]:
        """Return outputs of the graph for a batch, by ONNX Runtime."""
        return session_outputs(session, outputs, graph_inputs(names, ids, mask))

    return make_engine(infer, {value.name: value.shape for value in session.get_outputs()})


def open_openvino(graph: Path, precision: str, threads: int) -> Engine:
    """Return an engine that runs a graph by OpenVINO, with a stream of one thread for each batch.

    In int8, weights are rounded here, and OpenVINO rounds the rows that they multiply, in groups of channels.
    All else is then in bf16 where the processor has it, otherwise in fp32.
    """
    with extra("openvino", "the backend openvino"):
        import openvino
    core = openvino.Core()
    source = core.read_model(str(graph))
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": threads}
    if precision == "int8":
        round_weights(source)
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = GROUP_CHANNELS
        precision = "bf16" if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "fp32"
    properties["INFERENCE_PRECISION_HINT"] = {"fp32": "f32"}.get(precision, precision)
    model = core.compile_model(source, "CPU", properties)
    names = {value.get_any_name() for value in model.inputs}
    outputs = {name: value for value in model.outputs for name in value.get_names()}
    shapes = {
        name: [size.get_length() if size.is_static else None for size in value.get_partial_shape()]
        for name, value in outputs.items()
    }
    thread_state = threading.local()

    def infer(ids: NDArray[np.int64], mask: NDArray[np.int64], wanted_outputs: list[str]) -> list[Vectors]:
        """Return outputs of the graph for a batch, by OpenVINO, with a request for each thread."""
        if not hasattr(thread_state, "request"):
            thread_state.request = model.create_infer_request()
        values = thread_state.request.infer(graph_inputs(names, ids, mask))
        # Copied, since the request uses the memory of its outputs again.
        return [np.array(values[outputs[name]], dtype=np.float32) for name in wanted_outputs]

    with FIRST_CALL:
        infer(np.zeros((1, 2), dtype=np.int64), np.ones((1, 2), dtype=np.int64), [OUTPUT])
    return make_engine(infer, shapes)


def round_weights(model: Any) -> None:
    """Replace the constant matrices of an OpenVINO model's products by int8 steps with a scale a column."""
    from openvino import opset13 as operations

    from .quantization import quantized_channels  # onnx is slow to import

    for product in model.get_ordered_ops():
        if product.get_type_name() != "MatMul" or product.get_attributes()["transpose_b"]:
            continue
        constant = product.input_value(1).get_node()
        if constant.get_type_name() == "Constant" and len(constant.shape) == 2:
            matrix, scales = quantized_channels(constant.get_data())
            steps = operations.convert(operations.constant(matrix), "f32")
            rounded = operations.multiply(steps, operations.constant(scales[None]))
            product.input(1).replace_source_output(rounded.output(0))
