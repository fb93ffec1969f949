"""The loop under every kind of training here: exact continuation, several processes, one checkpoint file."""

from .curve import CURVE_FILE, write_curve
from .loop import LOSSES_FILE, STATE_FILE, STATE_FOLDER, Objective, Recipe, Training, thinned, train
from .precision import choose_precision
from .processes import Processes

__all__ = [
    "CURVE_FILE", "LOSSES_FILE", "STATE_FILE", "STATE_FOLDER", "Objective", "Processes", "Recipe", "Training",
    "choose_precision", "thinned", "train", "write_curve",
]  # fmt: skip
