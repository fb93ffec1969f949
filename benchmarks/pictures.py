"""Pictures as SVG: the same input gives the same bytes with the same matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from hybridr.files.local import replacing


@contextmanager
def svg(file: Path, size: tuple[float, float], metadata: dict[str, str | None]) -> Iterator[Any]:
    """Yield the axes of a new picture, `size` inches wide and high; write it when the block succeeds."""
    with rc_context({"svg.hashsalt": "hybridr", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots()
        with replacing(file) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None, **metadata})
