"""`hybridr encode`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..arguments import NamedEncoder
from ..options import Only
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.indexing.settings import ReindexSettings

OPTIONS = Only("max_tokens", "passages", "precision", "backend", "workers", precision="as exported")


@verb(app, "encode")
def encode(
    session: Session,
    folder: Annotated[Path, typer.Argument(help="Folder that `hybridr export-text` wrote.")],
    settings: Annotated[ReindexSettings, OPTIONS],
    encoder: NamedEncoder = None,
) -> None:
    """Encode texts of Parquet beside them; no cluster is asked. Interrupted, the same command goes on."""
    from hybridr.indexing.stages.vectors import encode_texts
    from hybridr.search.encoders import found_folder

    progress = session.output.progress
    done = encode_texts(folder, found_folder(encoder, progress), settings, progress=progress)
    session.output.result(done.to_json())
    session.output.line(
        f"{folder}: {done.documents:,} documents in {done.parts:,} parts, {done.before:,} were encoded "
        f"before, encoder {done.encoder[:12]}, in {done.seconds:.0f} s"
    )
    session.output.line(f"next: hybridr import-vectors NAME {folder}")
