"""DAM and REM become one encoder folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..encoding.contract import Precision
from ..errors import SettingsError
from ..progress import Progress, silent
from ..records import Document
from .exporting import export, require_replaceable


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

    `usage` is what `assemble` takes besides, `pooling` and `similarity`. Only the dense ranker gives a plain
    encoder: SettingsError for the others, before anything is read.
    """
    from ..assembly.assembly import assemble  # it needs peft, which other exports do not

    if ranker != "dense":
        raise SettingsError(
            f"a {ranker} ranker cannot be exported: it is no plain encoder of one vector per text",
            hint="leave --ranker out or give dense; hybridr.assemble() opens the other rankers in Python",
        )
    require_replaceable(Path(folder))
    joined = assemble(dam, rem, progress=progress, **usage)
    return export(joined, folder, precision=precision, texts=texts, progress=progress)
