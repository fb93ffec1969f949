"""Multi-vector encoders of random weights: the golden ColBERT."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from support.golden_ddr import SOURCE, rem_of

REM = rem_of("colbert_lora192-pa4")


@cache
def exported() -> Path:
    """Export the golden ColBERT once for all tests of a process."""
    from hybridr.encoders.export.exporting import export
    from hybridr.training.rankers import assemble

    folder = Path(mkdtemp(prefix="hybridr-colbert-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return export(assemble(SOURCE, REM, ranker="colbert"), folder / "encoder")
