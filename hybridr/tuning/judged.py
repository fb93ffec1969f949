"""Judged queries in, and the curve of what they say out."""

from __future__ import annotations

from pathlib import Path

from ..errors import MissingExtra, SettingsError
from ..formats import qrels_file, read_qrels, read_queries
from ..manifest import replacing
from ..records import Qrels, Query
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
    """Draw the measure by dense weight, a line for each technique, as SVG.

    Raises MissingExtra without matplotlib, SettingsError without judged queries or for another suffix.
    """
    if found.choice is None:
        raise SettingsError("there is no curve without judged queries", hint="--beir FOLDER")
    if file.suffix.lower() != ".svg":
        raise SettingsError(f"the plot is written as SVG, not as '{file.suffix}'", hint="--plot tuning.svg")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "train", "the plot") from None
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in found.choice.curve:
        weight = point.variant.settings["dense_weight"]
        lines.setdefault(point.variant.technique, []).append((weight, point.mean))
    with rc_context({"svg.hashsalt": "hybridr", "svg.fonttype": "none"}), replacing(file) as temporary:
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for technique, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=technique)
        axes.set(xlabel="dense weight", ylabel=found.choice.measure, title=f"{found.choice.queries} queries")
        axes.legend()
        figure.savefig(temporary, format="svg", metadata={"Date": None})
