"""`hybridr import-vectors`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Only
from ..session import Session
from ..verbs import app, verb
from .reindex import show_plan, show_result

if TYPE_CHECKING:
    from hybridr.indexing.settings import ReindexSettings

OPTIONS = Only(
    *("engine", "vectors", "compression", "alias"),
    *("force", "accept_rejects", "max_docs_per_second", "dry_run"),
)


@verb(app, "import-vectors", cluster=True)
def import_vectors(
    session: Session,
    name: Annotated[str, typer.Argument(help="Index whose texts were exported; it stays as it is.")],
    folder: Annotated[Path, typer.Argument(help="Folder that `hybridr encode` has finished.")],
    settings: Annotated[ReindexSettings, OPTIONS],
    encoder: Annotated[
        str | None,
        typer.Option(help="The encoder, for what changed.", show_default="the one that encoded, if here"),
    ] = None,
) -> None:
    """Write vectors of Parquet into a new index beside the old one, verify it, switch an alias."""
    from hybridr.search.settings import SearchSettings

    index, progress = session.index(name), session.output.progress
    search = session.settings(SearchSettings)
    if settings.dry_run:
        plan, ready = index.plan_import(folder, encoder=encoder, settings=settings, search=search)
        session.output.line(f"{ready:,} documents have their vectors in {folder}")
        return show_plan(session, plan)
    done = index.import_vectors(folder, encoder=encoder, settings=settings, search=search, progress=progress)
    session.output.note(f"{done.taken:,} vectors from {folder}")
    show_result(session, done, name)
