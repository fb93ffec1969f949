"""Judged queries in, and the curve of what they say out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SettingsError
from ..formats import qrels_file, read_qrels, read_queries
from ..pictures import svg
from ..records import Qrels, Query
from .judgement import Choice
from .tuning import Tuning


def read_judged(beir: Path | None, split: str, qrels: Path | None) -> tuple[list[Query], Qrels] | None:
    """Read queries and judgements of a BEIR folder; None without one. Raises DataError, SettingsError."""
    if beir is None:
        if qrels is not None:
            raise SettingsError("judgements without queries", hint="--beir FOLDER has the queries' texts")
        return None
    judgements = read_qrels(qrels or qrels_file(beir, split))
    return read_queries(beir, judgements), judgements


def draw_curve(found: Tuning, file: Path) -> None:
    """Draw the measure by dense weight, a line for each technique, as SVG; beside it by k1 and b if known.

    Raises MissingExtra without matplotlib, SettingsError without judged queries or for another suffix.
    """
    choice = found.choice
    if choice is None:
        raise SettingsError("there is no curve without judged queries", hint="--beir FOLDER")
    words = found.bm25.choice if found.bm25 else None
    panels = 2 if words else 1
    with svg(file, (5.5 * panels, 4), panels=panels) as axes:
        left, *right = np.atleast_1d(axes)
        draw(left, choice, "dense weight", lambda one: (one.kind, one.settings["dense_weight"]))
        if words:
            draw(right[0], words, "k1", lambda one: (f"b {one.settings['b']:g}", one.settings["k1"]))


def draw(axes: Any, choice: Choice, over: str, place: Callable[[Any], tuple[str, float]]) -> None:
    """Draw a line for each name that `place` gives, over the values that it gives."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in choice.curve:
        name, value = place(point.variant)
        lines.setdefault(name, []).append((value, point.mean))
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", markersize=3, label=name)
    axes.set(xlabel=over, ylabel=choice.measure, title=f"{choice.queries} queries")
    axes.legend()
