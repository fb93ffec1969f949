"""The verbs `hybridr export-text`, `encode` and `import-vectors`: a reindex in three stages with Parquet
files between them.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from hybridr.errors import quantity

from ..options import Only
from ..session import Session
from ..verbs import app, verb
from .reindex import show_plan, show_result

if TYPE_CHECKING:
    from hybridr.indexing.settings import ReindexSettings


@verb(app, "export-text", cluster=True)
def export_text(
    session: Session,
    name: Annotated[str, typer.Argument(help="Index to read; it stays as it is.")],
    settings: Annotated[ReindexSettings, Only("fields")],
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
) -> None:
    """Export the texts of an index as Parquet; then run `encode` and `import-vectors`."""
    done = session.index(name).export_text(out, settings, progress=session.output.progress)
    session.output.result(done.to_json())
    session.output.line(
        f"{out}: {quantity(done.documents, 'document')} of '{done.index}' in {quantity(done.parts, 'part')}, "
        f"{done.before:,} of them from an earlier run, text from {', '.join(done.fields)}, "
        f"in {done.seconds:.0f} s"
    )
    if done.written or done.gone:
        session.output.line(
            f"since these texts were read, {quantity(done.written, 'document')} were written to the index "
            f"and {done.gone:,} of these texts were changed or deleted: import-vectors handles both, "
            "a new --out folder reads all documents again"
        )
    session.output.line(f"next: hybridr encode {quote(str(out))}   here, or on the machine with a copy of it")


@verb(app, "encode")
def encode(
    session: Session,
    folder: Annotated[Path, typer.Argument(help="Folder that `hybridr export-text` wrote.")],
    settings: Annotated[
        ReindexSettings,
        Only("max_tokens", "passages", "precision", "backend", "workers", precision="as exported"),
    ],
    encoder: Annotated[
        str | None,
        typer.Option(help="Encoder or sentence-transformers folder, or a name.", show_default="MiniLM"),
    ] = None,
) -> None:
    """Encode exported texts; needs no cluster. If interrupted, the same command resumes."""
    from hybridr.indexing.stages.vectors import encode_texts
    from hybridr.search.checks import find_encoder_folder

    progress = session.output.progress
    done = encode_texts(folder, find_encoder_folder(encoder, progress), settings, progress=progress)
    session.output.result(done.to_json())
    session.output.line(
        f"{folder}: {quantity(done.documents, 'document')} in {quantity(done.parts, 'part')}, "
        f"{done.before:,} of them by an earlier run, encoder {done.encoder[:12]}, in {done.seconds:.0f} s"
    )
    session.output.line(f"next: hybridr import-vectors {quote(done.index)} {quote(str(folder))}")


@verb(app, "import-vectors", cluster=True)
def import_vectors(
    session: Session,
    name: Annotated[str, typer.Argument(help="Index whose texts were exported; it stays as it is.")],
    folder: Annotated[Path, typer.Argument(help="Folder that `hybridr encode` has finished.")],
    settings: Annotated[
        ReindexSettings,
        Only(
            *("engine", "vectors", "compression", "alias", "replace_semantic"),
            *("force", "discard", "accept_rejects", "max_docs_per_second", "dry_run"),
        ),
    ],
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Encoder for documents that changed since.",
            show_default="the one that encoded, if on this machine",
        ),
    ] = None,
) -> None:
    """Write encoded vectors into a new index beside the old one, verify it, move an alias to it."""
    from hybridr.search.settings import SearchSettings

    index, progress = session.index(name), session.output.progress
    search = session.settings(SearchSettings)
    if settings.dry_run:
        plan, count = index.plan_import(folder, encoder=encoder, settings=settings, search=search)
        session.output.line(f"{count:,} documents have their vectors in {folder}")
        return show_plan(session, plan)
    done = index.import_vectors(folder, encoder=encoder, settings=settings, search=search, progress=progress)
    session.output.note(f"{quantity(done.taken, 'vector')} from {folder}")
    show_result(session, done, name)
