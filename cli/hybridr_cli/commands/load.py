"""`hybridr load`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.cluster.settings import LoadSettings


@verb(app, "load", cluster=True)
def load(
    session: Session,
    folder: Annotated[Path, typer.Argument(help="BEIR folder, JSON lines or an array, with '_id's.")],
    settings: LoadSettings,
) -> None:
    """Load a BEIR folder or a JSONL file into a new index."""
    found = session.index(settings.index).load(folder, settings, progress=session.output.progress)
    session.output.result(vars(found))
    if not found.loaded:
        session.output.line(f"{found.index}: nothing to do, all {found.documents:,} documents are there")
    else:
        session.output.line(
            f"{found.index}: {found.documents:,} documents, language {found.language}, "
            f"analyser {found.analyzer}"
        )
    if found.rejected:
        session.output.line(f"{found.rejected} refused by the index, reasons in {found.rejects_file}")
        raise typer.Exit(3)
