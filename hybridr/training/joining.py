"""DAM and REM become one encoder folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..encoders.contract import Precision
from ..encoders.export.exporting import export, require_replaceable
from ..records import Document, Progress, silent


def export_joined(
    dam: Path | str,
    rem: Path | str | None,
    folder: Path | str,
    *,
    ranker: str = "dense",
    precision: Precision = "fp32",
    texts: Sequence[Document | str] = (),
    progress: Progress = silent,
    **usage: Any,
) -> Path:
    """Join DAM and REM as `assemble` does, and `export` the result. Raises what both raise.

    `usage` is what `assemble` takes besides, `pooling` and `similarity`. The dense ranker gives an encoder,
    the others folders of their own.
    """
    from .assembly import assemble  # it needs peft, which other exports do not

    require_replaceable(Path(folder))
    joined = assemble(dam, rem, ranker=ranker, progress=progress, **usage)
    return export(joined, folder, precision=precision, texts=texts, progress=progress)
