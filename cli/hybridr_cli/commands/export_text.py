"""`hybridr export-text`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Only
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.indexing.settings import ReindexSettings

OPTIONS = Only("fields")


@verb(app, "export-text", cluster=True)
def export_text(
    session: Session,
    name: Annotated[str, typer.Argument(help="Index to read; it stays as it is.")],
    settings: Annotated[ReindexSettings, OPTIONS],
    out: Annotated[Path, typer.Option(help="Folder to write into.")],
) -> None:
    """Write the texts of an index as Parquet: the first of three stages, with `encode`, `import-vectors`."""
    done = session.index(name).export_text(out, settings, progress=session.output.progress)
    session.output.result(done.to_json())
    session.output.line(
        f"{out}: {done.documents:,} documents of '{done.index}' in {done.parts:,} parts, "
        f"{done.before:,} were there, text from {', '.join(done.fields)}, in {done.seconds:.0f} s"
    )
    session.output.line(f"next: hybridr encode {out}   here, or where the folder is copied to")
