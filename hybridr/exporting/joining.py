"""DAM and REM become one encoder folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..encoding.contract import Precision
from ..errors import SettingsError
from ..progress import Progress, silent
from ..records import Document
from .exporting import GRAPH_RANKERS, export, require_replaceable


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
    unicoil and splade a sparse one, rerank and colbert one of their own: SettingsError for others, before
    anything is read.
    """
    from ..assembly.assembly import assemble  # it needs peft, which other exports do not

    if ranker not in (known := ("dense", *GRAPH_RANKERS)):
        raise SettingsError(
            f"a {ranker} ranker cannot be exported: it encodes no text by itself",
            hint=f"one of {', '.join(known)}; hybridr.assemble() opens the other rankers in Python",
        )
    require_replaceable(Path(folder))
    joined = assemble(dam, rem, ranker=ranker, progress=progress, **usage)
    return export(joined, folder, precision=precision, texts=texts, progress=progress)
