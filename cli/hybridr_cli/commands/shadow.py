"""The verb `hybridr shadow`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import EncoderFolder, JudgedOptions, Only, SearchedName
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.serving.settings import DeploySettings


@verb(app, "shadow", cluster=True)
def shadow(
    session: Session,
    name: SearchedName,
    judgements: JudgedOptions,
    settings: Annotated[DeploySettings, Only("recall")],
    queries: Annotated[
        Path | None,
        typer.Option(
            help='Requests: per line a search body, {"path": …, "body": …}, or {"query": "text"}; or .gz.',
            show_default="what `hybridr serve --shadow` kept",
        ),
    ] = None,
    encoder: EncoderFolder = None,
    report: Annotated[
        Path | None, typer.Option(help="HTML file to write, with the largest changes side by side.")
    ] = None,
) -> None:
    """Show how another ranking would change the results of users, before they see it. Changes nothing."""
    from hybridr.search.settings import SearchSettings

    if queries is None:
        session.refuse_options("needs --queries: what a server kept is ranked", "recall", "encoder")
    index, out = session.index(name), session.output
    result = index.shadow(
        queries,
        settings,
        encoder=encoder,
        search=session.settings(SearchSettings),
        judgements=judgements.queries_for(index),
        page=report,
        progress=out.progress,
    )
    out.result(result.to_json())
    for line in result.summary:
        out.line(line)
    for title, head, rows in result.tables():
        out.line()
        out.table(head, rows, title=title)
    if report is not None:
        out.note(f"report written: {report}")
