"""Judged queries in, and the curve of what they say out."""

from __future__ import annotations

from pathlib import Path

from ..errors import SettingsError
from ..formats import qrels_file, read_qrels, read_queries
from ..pictures import svg
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
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in found.choice.curve:
        weight = point.variant.settings["dense_weight"]
        lines.setdefault(point.variant.technique, []).append((weight, point.mean))
    with svg(file, (6, 4)) as axes:
        for technique, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=technique)
        axes.set(xlabel="dense weight", ylabel=found.choice.measure, title=f"{found.choice.queries} queries")
        axes.legend()
