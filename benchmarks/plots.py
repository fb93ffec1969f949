"""Draws the plot of the headline: the same results give the same bytes with the same matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridr.files.manifest import fingerprint
from hybridr.files.pictures import svg
from sections.headline import REFERENCE, comparison, of_group, systems_of

DRAWN = "hybrid"
"""The other systems are so far from the hybrids that nothing else could be seen."""

Changes = dict[str, dict[str, tuple[float, float, float]]]


def changes_of(record: dict[str, Any]) -> Changes:
    """Collect what is drawn: system -> set -> change against the stock hybrid, and its interval."""
    drawn: Changes = {}
    for system in systems_of(record):
        for name, found in of_group(record).items():
            versus = comparison(found, system, REFERENCE)
            if versus is not None and system.startswith(DRAWN):
                drawn.setdefault(system, {})[name] = (versus["difference"], versus["low"], versus["high"])
    return drawn


def identity(changes: Changes) -> str:
    """Identify what is drawn, for the check that a plot is up to date."""
    return f"values {fingerprint(changes)[:16]}"


def is_current(file: Path, changes: Changes) -> bool:
    """Tell whether a plot shows these values, whichever matplotlib drew it."""
    return file.is_file() and identity(changes) in file.read_text(encoding="utf-8")


def draw(file: Path, changes: Changes) -> None:
    """Draw a point with its interval for every system and set into an SVG."""
    names = list(dict.fromkeys(name for found in changes.values() for name in found))
    with svg(file, (8, 0.9 + 0.42 * len(names)), {"Creator": None, "Description": identity(changes)}) as axes:
        for number, (system, found) in enumerate(changes.items()):
            shift = (number - (len(changes) - 1) / 2) * 0.6 / max(len(changes), 1)
            places = [names.index(name) + shift for name in found]
            middle = [value for value, _, _ in found.values()]
            reach = [
                [value - low for value, low, _ in found.values()],
                [high - value for value, _, high in found.values()],
            ]
            axes.errorbar(middle, places, xerr=reach, fmt="o", markersize=4, linewidth=1, label=system)
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("change of nDCG@10 against hybrid-stock, with its 95 % interval")
        axes.legend(loc="best", fontsize="small")
