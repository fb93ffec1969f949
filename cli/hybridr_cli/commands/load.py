"""`hybridr load`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..session import Session, verb


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "load", cluster=True)
    def load(
        session: Session,
        folder: Annotated[Path, typer.Argument(help="BEIR folder, or a JSONL file with '_id' in each line.")],
        index: Annotated[str, typer.Option(help="Name of the new index.")],
        fields: Annotated[str | None, typer.Option(help="Text fields, comma separated.")] = None,
        language: Annotated[
            str | None, typer.Option(help="Language code; guessed from the text if not given.")
        ] = None,
        analyzer: Annotated[
            str | None, typer.Option(help="Analyser, built-in or of a plugin, instead of the language's.")
        ] = None,
        k1: Annotated[float | None, typer.Option(help="BM25 k1 (1.2).")] = None,
        b: Annotated[float | None, typer.Option(help="BM25 b (0.75).")] = None,
        shards: Annotated[int | None, typer.Option(help="Primary shards (1).")] = None,
        replace: Annotated[
            bool | None, typer.Option("--replace", help="Delete an existing index first.")
        ] = None,
    ) -> None:
        """Load a BEIR folder or a JSONL file into a new index."""
        from hybridr import load
        from hybridr.cluster.settings import LoadSettings

        settings = session.settings(
            LoadSettings,
            index=index,
            fields=fields,
            language=language,
            analyzer=analyzer,
            k1=k1,
            b=b,
            shards=shards,
            replace=replace,
        )
        found = load(session.connect(), folder, settings, progress=session.output.progress)
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
