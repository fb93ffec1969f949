"""Training of the relevance module on labels, the domain module frozen (Zhan et al. 2022)."""

from .judged import Judged, read_judged_beir, read_judged_files
from .negatives import Mined, mine
from .training import RemTraining, train_rem

__all__ = [
    "Judged", "Mined", "RemTraining", "mine", "read_judged_beir", "read_judged_files", "train_rem",
]  # fmt: skip
