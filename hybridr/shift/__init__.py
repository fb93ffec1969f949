"""How far an index is from another collection: words, kinds of queries, judgements and vectors."""

from .measurement import Finding, Shift, measure_shift
from .plot import draw_plane

__all__ = ["Finding", "Shift", "draw_plane", "measure_shift"]
