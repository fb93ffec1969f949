"""How many nodes, inputs and outputs a graph of ONNX has, read off its file without making any of them.

Opening a graph of 100,000 outputs takes minutes, whatever they compute. The file is a message of protobuf
(onnx.proto3): fields one after another, each with its number and, for all that counts here, its length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import ModelError
from ..files.foreign import regular

GRAPH = 7
MOST = {"nodes": (1, 50_000), "weights": (5, 50_000), "inputs": (11, 100), "outputs": (12, 100)}
"""Field of GraphProto, and the limit; hybridr's own graphs have some thousand nodes, 3 inputs, 2 outputs."""
SKIPPED = {1: 8, 5: 4}  # bytes of a fixed number, by kind
VARINT, MESSAGE = 0, 2


def require_small_graph(path: Path) -> None:
    """Raise ModelError for a graph of more parts than an encoder can have, ValueError for what is none."""
    with regular(path).open("rb") as file:
        for field, end in messages(file, path.stat().st_size):
            if field == GRAPH:
                require_few(path, file, end)


def require_few(path: Path, file: IO[bytes], end: int) -> None:
    """Raise ModelError as soon as a graph has more parts of a kind than its limit."""
    counts: Counter[int] = Counter()
    limits = {field: (what, limit) for what, (field, limit) in MOST.items()}
    for field, _ in messages(file, end):
        counts[field] += 1
        what, limit = limits.get(field, ("parts", MOST["nodes"][1]))
        if counts[field] > limit:
            raise ModelError(
                f"the graph {path.name} has more than {limit:,} {what}: it is no encoder's",
                hint="make it again with `hybridr adapt` or `hybridr export`",
            )


def messages(file: IO[bytes], end: int) -> Iterator[tuple[int, int]]:
    """Yield number and end of the messages up to `end`; the caller may read each. Raises ValueError."""
    while file.tell() < end:
        field, kind = divmod(varint(file), 8)
        if kind == VARINT:
            varint(file)
        elif kind in SKIPPED:
            file.seek(SKIPPED[kind], 1)
        elif kind == MESSAGE:
            size = varint(file)
            behind = file.tell() + size
            yield field, min(behind, end)
            file.seek(behind)
        else:
            raise ValueError("it is no graph of ONNX")


def varint(file: IO[bytes]) -> int:
    """Read a number of at most 64 bits, seven of them a byte, the lowest first. Raises ValueError."""
    value = 0
    for shift in range(0, 70, 7):
        if not (byte := file.read(1)):
            raise ValueError("it is cut off")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("it is no graph of ONNX")
