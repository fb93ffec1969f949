"""The loss curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..pictures import svg
from ..staging import storing

CURVE_FILE = "losses.svg"
SMOOTHED = 50  # points of the running mean


def write_curve(path: Path, losses: Sequence[float], *, label: str = "loss") -> None:
    """Draw one loss per step as SVG, the single steps pale and their running mean on top."""
    steps = np.arange(1, len(losses) + 1)
    width = max(1, len(losses) // SMOOTHED)
    means = np.convolve(losses, np.ones(width) / width, mode="valid")
    with storing(path), svg(path, (7, 3.5)) as axes:
        axes.plot(steps, losses, color="#9db8d2", linewidth=0.8)
        axes.plot(steps[width - 1 :], means, color="#1f4e79", linewidth=1.6)
        axes.set(xlabel="optimiser step", ylabel=label)
        axes.grid(alpha=0.3)
