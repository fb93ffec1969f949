"""The verb `hybridr clicks`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridr.errors import quantity

from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.relevance.clicks.clicks import ClickReport


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
    show(session, result.report)
    since = None
    try:
        since = target.changes_since_learnt(result)
    except HybridrError as error:  # its encoder need not lie here, nor its memory be open to who reads clicks
        session.output.note(f"not compared with what the index has learnt: {error.message}")
    if since is not None:
        session.output.line(
            f"{since.learnt:,} queries were learnt before; of {since.compared:,} that are judged now "
            f"{since.same:,} with the same documents, {since.others:,} with others, {since.new:,} not at all"
        )
    if out is not None:
        result.write(out)
        session.output.line(f"judgements: {out}   next: hybridr learn {index} --beir {out} --dry-run")
    session.output.result(result.report.to_json() | {"changes": since.to_json() if since else None})


def show(session: Session, report: ClickReport) -> None:
    """Print what a click log held and which judgements came of it."""
    line = session.output.line
    machines = f", {report.bots:,} of them machines and left out" if report.bots else ""
    line(
        f"{quantity(report.searches, 'search')} and {quantity(report.clicks, 'click')} of "
        f"{quantity(report.clients, 'client')}{machines}"
    )
    line(
        f"{report.repeated:.0%} of people's searches had been asked before; {report.covered:.0%} ask one of "
        f"the {report.judged:,} queries that are judged now, with {report.relevant:,} relevant answers"
    )
    seen = ", ".join(f"{share:.0%}" for share in report.seen)
    irrelevant, relevant = report.clicked
    line(f"ranks 1 to {len(report.seen)} are looked at by {seen} of people")
    line(f"who looks at a relevant document clicks it in {relevant:.0%}, at another one in {irrelevant:.0%}")
    for reason, count in report.left_out.items():
        line(f"left out: {count:,} {reason}")
