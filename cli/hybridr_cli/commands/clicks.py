"""The verb `hybridr clicks`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from hybridr.errors import quantity

from ..session import Session
from ..verbs import app, verb


@verb(app, "clicks", cluster=True)
def clicks(
    session: Session,
    index: Annotated[str, typer.Argument(help="Index or alias whose documents were shown.")],
    log: Annotated[
        Path | None,
        typer.Option(help="Click log as JSON lines.", show_default="the UBI indices of the cluster"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write the judgements to, for --beir.")] = None,
) -> None:
    """Show which documents are relevant by the clicks of users, and how far the log can be trusted.

    Writes nothing except the folder. `hybridr learn INDEX --beir DIR` stores its judgements in the index.
    """
    from hybridr.errors import HybridrError

    target = session.index(index)
    result = target.clicks(log, progress=session.output.progress)
    report, line = result.report, session.output.line
    bots = f", {report.bots:,} of them bots and left out" if report.bots else ""
    line(
        f"{quantity(report.searches, 'search')} and {quantity(report.clicks, 'click')} of "
        f"{quantity(report.clients, 'client')}{bots}"
    )
    line(
        f"{report.repeated:.0%} of people's searches repeat an earlier query; {report.covered:.0%} are for "
        f"one of the {report.judged:,} queries judged now, which have {report.relevant:,} relevant documents"
    )
    looked_at = ", ".join(f"{share:.0%}" for share in report.seen)
    irrelevant, relevant = report.clicked
    line(f"ranks 1 to {len(report.seen)} are looked at by {looked_at} of people")
    line(
        f"people click {relevant:.0%} of the relevant documents they look at, {irrelevant:.0%} of the others"
    )
    for reason, count in report.left_out.items():
        line(f"left out: {count:,} {reason}")
    changes = None
    try:
        changes = target.changes_since_learnt(result)
    except HybridrError as error:  # the encoder may be missing here, or the memory be unreadable
        session.output.note(f"not compared with what the index has learnt: {error.message}")
    if changes is not None:
        line(
            f"{changes.learnt:,} queries were learnt before. Of the {changes.compared:,} judged now, "
            f"{changes.same:,} were learnt with the same documents, {changes.others:,} with other documents, "
            f"{changes.new:,} not yet"
        )
    if out is not None:
        result.write(out)
        next_command = f"hybridr learn {quote(index)} --beir {quote(str(out))} --dry-run"
        line(f"judgements: {out}   next: {next_command}")
    session.output.result(report.to_json() | {"changes": changes and changes.to_json()})
