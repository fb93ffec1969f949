"""Opens graphs by ONNX Runtime: no log output, bounded size and memory, exact in int8 on every processor.

Opening a graph with 100,000 outputs takes minutes, whatever they compute. So nodes, inputs and outputs are
first counted in the file. It is a protobuf message (onnx.proto3): a sequence of fields, each with its number
and usually its length.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import HybridrError, ModelError, first_line
from ..files.local import cache_folder, child_path, max_graph_bytes, replacing, require_regular, storing
from .contract import Vectors

# ONNX Runtime reports usage to its makers unless this is set before the import. Searches of an index must
# not be reported; set the variable to 0 to allow it. OpenVINO's package reads another variable.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

MAPPED = {"session.use_memory_mapped_ort_model": "1", "session.use_ort_model_bytes_for_initializers": "1"}
MIN_MAPPED_BYTES = 16_000_000  # smaller graphs open fast enough without a copy
MAX_COPIES = 4  # optimised graphs in the cache, each as large as its encoder
EXACT_BYTES = ("session.x64quantprecision", "1")
"""Option to sum products of bytes in 32 bits on x86 without VNNI; the default 16 bits are faster but overflow
(onnxruntime_session_options_config_keys.h)."""
LARGEST_BYTES = bytes.fromhex(
    "08083a580a180a01610a0162120163220d4d61744d756c496e74656765721201672a0f0804080110034201624a047f7f7f7f"
    "5a130a0161120e0a0c080212080a0208010a02080462130a0163120e0a0c080612080a0208010a02080142040a00100d"
)
"""A graph that multiplies four uint8 `a` with four times 127; test_quantization.py builds it."""


def open_session(graph: Path, entries: Mapping[str, str] | None = None, optimised: Path | None = None) -> Any:
    """Open a graph by ONNX Runtime; each calling thread runs its own batch, with one copy of the weights.

    Threads within a product would spin while waiting for each other. `entries` are further options of the
    session; the optimised graph is written to `optimised`, if given. Raises ModelError for an invalid graph,
    or one that needs too much memory.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors only: the library prints nothing
    limit_memory()
    options.add_session_config_entry("session.use_env_allocators", "1")
    for name, value in (entries or {}).items():
        options.add_session_config_entry(name, value)
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    if bytes_overflow():
        options.add_session_config_entry(*EXACT_BYTES)
    try:
        return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises many kinds
        raise ModelError(
            f"the graph {graph} cannot be opened: {first_line(error)[:300]}",
            hint="export it again; HYBRIDR_MEMORY_GB limits the memory of all graphs together",
        ) from error


def open_mapped(graph: Path, sha256: str) -> Any:
    """Open a graph from a copy that ONNX Runtime has optimised, mapped into memory instead of read.

    The copy is made at the first opening, and kept in the cache by the graph's `sha256`. It opens in a third
    of the CPU time, and gives the same vectors to the bit. Where it cannot be written or opened, the graph
    itself is opened. Raises ModelError like `open_session`.
    """
    if graph.stat().st_size < MIN_MAPPED_BYTES:
        return open_session(graph)
    import onnxruntime

    copy = child_path(cache_folder() / "mapped", f"{sha256[:32]}-{onnxruntime.__version__}.ort")
    try:
        if not copy.is_file():
            write_optimised(graph, copy)
        return open_session(copy, MAPPED)
    except (HybridrError, OSError):
        with suppress(OSError):
            copy.unlink(missing_ok=True)
        return open_session(graph)


def write_optimised(graph: Path, copy: Path) -> None:
    """Write a graph in ONNX Runtime's own format, optimised; of the earlier copies a few stay.

    Raises ModelError, DownloadError.
    """
    with storing(copy), replacing(copy) as temporary:
        open_session(graph, {"session.save_model_format": "ORT"}, optimised=temporary)
    by_age = sorted(copy.parent.glob("*.ort"), key=lambda file: file.stat().st_mtime)
    for old in by_age[:-MAX_COPIES]:
        old.unlink(missing_ok=True)


@cache
def bytes_overflow() -> bool:
    """Return whether sums of the largest int8 products overflow on this processor.

    This is computed, not read from /proc/cpuinfo: under emulation that file describes the host's processor.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(LARGEST_BYTES, options, providers=["CPUExecutionProvider"])
    [total] = session.run(None, {"a": np.full((1, 4), 255, dtype=np.uint8)})
    return int(total[0, 0]) != 4 * 255 * 127


def session_outputs(session: Any, names: list[str], inputs: Mapping[str, Any]) -> list[Vectors]:
    """Run a graph; return the named outputs. Raises ModelError with ONNX Runtime's message, for example if
    the memory limit is reached.
    """
    try:
        outputs: list[Vectors] = session.run(names, inputs)
    except Exception as error:  # ONNX Runtime raises many kinds
        raise ModelError(
            f"the encoder's graph failed: {first_line(error)[:300]}",
            hint="fewer tokens need less memory; HYBRIDR_MEMORY_GB limits the memory of all graphs together",
        ) from error
    return outputs


@cache
def limit_memory() -> None:
    """Limit the memory of all graphs of this process, because a small file can ask for tensors of any size.

    The default of 6 GB exceeds the need of the largest known encoder; `HYBRIDR_MEMORY_GB` changes it. Beyond
    the limit ONNX Runtime raises an error.
    """
    import onnxruntime

    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    defaults = dict.fromkeys(
        ("arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk"), -1
    )
    limits = onnxruntime.OrtArenaCfg({"max_mem": max_graph_bytes(), **defaults})
    onnxruntime.create_and_register_allocator(place, limits)


def graph_inputs(names: set[str], ids: NDArray[np.int64], mask: NDArray[np.int64]) -> dict[str, Any]:
    """Return the inputs of a graph by name; token types, if it has that input, are zeros."""
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs | ({"token_type_ids": np.zeros_like(ids)} if "token_type_ids" in names else {})


GRAPH = 7
MAX_MESSAGES = {"nodes": (1, 50_000), "weights": (5, 50_000), "inputs": (11, 100), "outputs": (12, 100)}
"""Field of GraphProto, and the limit; hybridr's graphs have some thousand nodes, 3 inputs, 2 outputs."""
SKIPPED = {1: 8, 5: 4}  # bytes of a fixed number, by kind
VARINT, MESSAGE = 0, 2


def require_small_graph(path: Path) -> None:
    """Raise ModelError for a graph with more parts than an encoder can have, ValueError for an invalid
    file.
    """
    limits = {field: (noun, limit) for noun, (field, limit) in MAX_MESSAGES.items()}
    with require_regular(path).open("rb") as file:
        for field, end in read_fields(file, path.stat().st_size):
            counts: Counter[int] = Counter()
            for part, _ in read_fields(file, end) if field == GRAPH else ():
                counts[part] += 1
                noun, limit = limits.get(part, ("parts", MAX_MESSAGES["nodes"][1]))
                if counts[part] > limit:
                    raise ModelError(
                        f"the graph {path.name} has more than {limit:,} {noun}; no encoder has that many",
                        hint="make it again with `hybridr adapt` or `hybridr export`",
                    )


def read_fields(file: IO[bytes], end: int) -> Iterator[tuple[int, int]]:
    """Yield number and end of each protobuf field with a length up to `end`; the caller may read into it.

    Raises ValueError for an invalid file.
    """
    while file.tell() < end:
        field, kind = divmod(read_varint(file), 8)
        if kind == VARINT:
            read_varint(file)
        elif kind in SKIPPED:
            file.seek(SKIPPED[kind], 1)
        elif kind == MESSAGE:
            size = read_varint(file)
            field_end = file.tell() + size
            yield field, min(field_end, end)
            file.seek(field_end)
        else:
            raise ValueError("it is not an ONNX graph")


def read_varint(file: IO[bytes]) -> int:
    """Return the next protobuf varint of at most 64 bits. Raises ValueError."""
    value = 0
    for shift in range(0, 70, 7):
        if not (byte := file.read(1)):
            raise ValueError("it is cut off")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("it is not an ONNX graph")
