"""The loss curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..manifest import replacing
from ..staging import storing

CURVE_FILE = "losses.svg"
SMOOTHED = 50  # points of the running mean


def write_curve(path: Path, losses: Sequence[float], *, label: str = "loss") -> None:
    """Draw one loss per step as SVG, the single steps pale and their running mean on top."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    steps = np.arange(1, len(losses) + 1)
    width = max(1, len(losses) // SMOOTHED)
    means = np.convolve(losses, np.ones(width) / width, mode="valid")
    with matplotlib.rc_context({"svg.hashsalt": "hybridr"}):  # the same losses give the same file
        figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
        axes.plot(steps, losses, color="#9db8d2", linewidth=0.8)
        axes.plot(steps[width - 1 :], means, color="#1f4e79", linewidth=1.6)
        axes.set(xlabel="optimiser step", ylabel=label)
        axes.grid(alpha=0.3)
        with storing(path), replacing(path) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})
        pyplot.close(figure)
