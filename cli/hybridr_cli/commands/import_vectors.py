"""`hybridr import-vectors`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Only
from ..session import Session
from ..verbs import app, verb
from .reindex import calibrate_after, show_plan, show_result, with_words

if TYPE_CHECKING:
    from hybridr.reindexing.settings import ReindexSettings

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
    from hybridr.encoding.opening import load_encoder
    from hybridr.files.remembered import folder_of
    from hybridr.reindexing.planning import source_of
    from hybridr.search.encoders import found_folder
    from hybridr.staging import importing

    settings = with_words(session, settings)
    cluster, progress = session.connect().patient(settings.patience_s), session.output.progress
    source_of(cluster, name)
    making = importing.ready_in(folder).making
    given = encoder or folder_of(making.encoder)
    precision = settings.told_precision or making.precision
    backend = settings.backend or making.backend
    model = load_encoder(found_folder(given, progress), precision=precision, backend=backend)
    if settings.dry_run:
        todo, there = importing.plan_import(cluster, name, folder, model, settings)
        session.output.line(f"{there:,} documents have their vectors in {folder}")
        return show_plan(session, todo)
    done = importing.import_vectors(cluster, name, folder, model, settings, progress=progress)
    session.output.note(f"{done.taken:,} vectors from {folder}")
    show_result(session, done, name)
    calibrate_after(session, cluster, done, model)
