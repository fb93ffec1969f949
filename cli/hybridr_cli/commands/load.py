"""The verb `hybridr load`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridr.errors import quantity

from ..options import DryRun
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.cluster.settings import LoadSettings


@verb(app, "load", cluster=True)
def load(
    session: Session,
    folder: Annotated[
        Path, typer.Argument(help="BEIR folder, JSON lines or a JSON array; documents have an '_id'.")
    ],
    settings: LoadSettings,
    dry_run: DryRun = False,
) -> None:
    """Load a BEIR folder or a JSON file into a new index."""
    result = session.index(settings.index).load(
        folder, settings, dry_run=dry_run, progress=session.output.progress
    )
    session.output.result(vars(result))
    if not result.loaded:
        session.output.line(
            f"{result.index}: nothing to do, this file was loaded already; "
            f"{quantity(result.documents, 'document')} now, --replace loads it anew"
        )
    else:
        prefix = "dry run, " if dry_run else ""
        deletion = ""
        if result.replaced is not None:
            deletion = f"the index of that name with {quantity(result.replaced, 'document')} "
            deletion += "is deleted first; " if dry_run else "was deleted first; "
        session.output.line(
            f"{prefix}{result.index}: {deletion}{quantity(result.documents, 'document')}, "
            f"language {result.language}, analyser {result.analyzer}"
        )
    if result.rejected:
        session.output.line(f"{result.rejected} refused by the index, reasons in {result.rejects_file}")
        raise typer.Exit(3)
