"""A graph opened by ONNX Runtime: quiet, of bounded memory, exact in bytes on every processor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, first_line
from ..files.foreign import most_memory
from .contract import Vectors

# ONNX Runtime reports usage to its makers unless this is set before it is imported; searching somebody's
# index must not. Whoever wants it sets the variable to 0. OpenVINO's package asks for another one.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

EXACT_BYTES = ("session.x64quantprecision", "1")
"""Adds products of bytes up in 32 bits where x86 without VNNI takes 16, which overflow; it is slower
(onnxruntime_session_options_config_keys.h)."""
LARGEST_BYTES = bytes.fromhex(
    "08083a580a180a01610a0162120163220d4d61744d756c496e74656765721201672a0f0804080110034201624a047f7f7f7f"
    "5a130a0161120e0a0c080212080a0208010a02080462130a0163120e0a0c080612080a0208010a02080142040a00100d"
)
"""A graph that multiplies four uint8 `a` with four times 127; test_quantization.py builds it."""


def open_session(graph: Path) -> Any:
    """Open a graph with ONNX Runtime; each caller's thread does its own batch, with one copy of the weights.

    Threads inside one product wait for each other, and they spin while they do. Raises ModelError for what is
    no graph, or needs more memory than there may be.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors only: the library prints nothing
    limit_memory()
    options.add_session_config_entry("session.use_env_allocators", "1")
    if bytes_overflow():
        options.add_session_config_entry(*EXACT_BYTES)
    try:
        return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises many kinds
        raise ModelError(
            f"the graph {graph} cannot be opened: {first_line(error)[:300]}",
            hint="export it again; HYBRIDR_MEMORY_GB bounds what all graphs take together",
        ) from error


@cache
def bytes_overflow() -> bool:
    """Return whether the sum of the largest products of bytes is wrong on this processor.

    It is computed, not read from /proc/cpuinfo: under emulation that file describes the host's processor.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(LARGEST_BYTES, options, providers=["CPUExecutionProvider"])
    [total] = session.run(None, {"a": np.full((1, 4), 255, dtype=np.uint8)})
    return int(total[0, 0]) != 4 * 255 * 127


def session_outputs(session: Any, names: list[str], inputs: Mapping[str, Any]) -> list[Vectors]:
    """Run a graph. Raises ModelError with what ONNX Runtime says, above all when memory is at its limit."""
    try:
        outputs: list[Vectors] = session.run(names, inputs)
    except Exception as error:  # ONNX Runtime raises many kinds
        raise ModelError(
            f"the encoder's graph failed: {first_line(error)[:300]}",
            hint="fewer tokens need less memory; HYBRIDR_MEMORY_GB bounds what all graphs take together",
        ) from error
    return outputs


@cache
def limit_memory() -> None:
    """Bound what all graphs of this process take together: a small file can ask for any size of tensor.

    `HYBRIDR_MEMORY_GB` moves the 6 GB, which the largest known encoder does not need. What is beyond
    raises ONNX Runtime's own error.
    """
    import onnxruntime

    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    usual = dict.fromkeys(
        ("arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk"), -1
    )
    limits = onnxruntime.OrtArenaCfg({"max_mem": most_memory(), **usual})
    onnxruntime.create_and_register_allocator(place, limits)


def feed(names: set[str], ids: NDArray[np.int64], mask: NDArray[np.int64]) -> dict[str, Any]:
    """Name the arrays as the graph does; kinds of tokens are zeros where it asks for them."""
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs | ({"token_type_ids": np.zeros_like(ids)} if "token_type_ids" in names else {})
