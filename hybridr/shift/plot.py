"""A picture of both collections on their principal plane."""

from __future__ import annotations

from pathlib import Path

from ..errors import SettingsError
from ..pictures import svg
from .measurement import Shift


def draw_plane(found: Shift, file: Path) -> None:
    """Draw source and target documents as points, as SVG; the same input gives the same bytes.

    Raises MissingExtra without matplotlib, SettingsError without vectors or for another suffix than .svg.
    """
    if found.plane is None:
        raise SettingsError("the plot needs vectors", hint="--encoder FOLDER")
    with svg(file, (6, 5)) as axes:
        sides = ((found.source, found.plane.source, "#888888"), (found.target, found.plane.target, "#c2410c"))
        for name, points, colour in sides:
            axes.scatter(
                points[:, 0], points[:, 1], s=9, alpha=0.6, color=colour, linewidths=0, label=plain(name)
            )
        axes.set(
            title=f"two principal components, {found.plane.explained:.0%} of the variance",
            xticks=[],
            yticks=[],
        )
        axes.legend()


def plain(name: str) -> str:
    """Keep matplotlib from reading a name as formula or as hidden."""
    return name.replace("$", r"\$").lstrip("_") or "?"
