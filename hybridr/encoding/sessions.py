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
from .machine import multiplies_bytes, read_cpu

# ONNX Runtime reports usage to its makers unless this is set before it is imported; searching somebody's
# index must not. Whoever wants it sets the variable to 0. OpenVINO's package asks for another one.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

EXACT_BYTES = ("session.x64quantprecision", "1")
"""Adds products of bytes up in 32 bits where x86 without VNNI takes 16, which overflow; it is slower
(onnxruntime_session_options_config_keys.h)."""


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
    if not multiplies_bytes(read_cpu()):
        options.add_session_config_entry(*EXACT_BYTES)
    try:
        return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises many kinds
        raise ModelError(
            f"the graph {graph} cannot be opened: {first_line(error)[:300]}",
            hint="export it again; HYBRIDR_MEMORY_GB bounds what all graphs take together",
        ) from error


def session_outputs(session: Any, wanted: list[str], given: Mapping[str, Any]) -> list[Vectors]:
    """Run a graph. Raises ModelError with what ONNX Runtime says, above all when memory is at its limit."""
    try:
        found: list[Vectors] = session.run(wanted, given)
    except Exception as error:  # ONNX Runtime raises many kinds
        raise ModelError(
            f"the encoder's graph failed: {first_line(error)[:300]}",
            hint="fewer tokens need less memory; HYBRIDR_MEMORY_GB bounds what all graphs take together",
        ) from error
    return found


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
    given = {"input_ids": ids, "attention_mask": mask}
    return given | ({"token_type_ids": np.zeros_like(ids)} if "token_type_ids" in names else {})
