"""DR versus DDR at the size that the paper means."""

from __future__ import annotations

from .ddr_reduced import render

TITLE = "DR versus DDR, full form"
RESULT = "ddr-full"
COMMAND = "python benchmarks/ddr.py FOLDER --form full"
MISSING = "Not run: no result is committed (the full form of DR versus DDR wants a GPU)."
__all__ = ["COMMAND", "MISSING", "RESULT", "TITLE", "render"]
