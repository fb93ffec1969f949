"""Pictures as SVG: the same input gives the same bytes with the same matplotlib."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import SettingsError, extra
from .atomic import replacing


@contextmanager
def svg(
    file: Path,
    size: tuple[float, float],
    metadata: dict[str, str | None] | None = None,
    *,
    panels: int = 1,
) -> Iterator[Any]:
    """Give the axes of a new picture, `size` inches wide and high, and write it when the block succeeds.

    Several `panels` stand side by side: an array of axes.

    Raises SettingsError for another suffix than .svg, MissingExtra without matplotlib.
    """
    if file.suffix.lower() != ".svg":
        raise SettingsError(
            f"pictures are written as SVG, not as '{file.suffix}'", hint=f"{file.stem or 'plot'}.svg"
        )
    with extra("train", "a picture"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    with rc_context({"svg.hashsalt": "hybridr", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(1, panels)
        with replacing(file) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None, **(metadata or {})})
