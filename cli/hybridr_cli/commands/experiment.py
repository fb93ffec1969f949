"""The verbs `hybridr experiment start`, `report`, `stop` and `promote`: two rankings shown to users in one
list.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hybridr.errors import quantity

from ..options import DryRun, EncoderFolder, SearchedName
from ..session import Session
from ..verbs import group, verb

if TYPE_CHECKING:
    from hybridr.relevance.experiments import ExperimentStep

experiment = group("experiment", "Test a ranking by the clicks of users, promote it, and undo that.")
RANKING = "today, learnt, tuned, or a file with a table [search]"


@verb(experiment, "start", cluster=True)
def start(
    session: Session,
    name: SearchedName,
    a: Annotated[str, typer.Option(help=f"Ranking of all searches: {RANKING}.")] = "today",
    b: Annotated[str, typer.Option(help=f"Ranking beside it: {RANKING}.")] = "learnt",
    encoder: EncoderFolder = None,
    dry_run: DryRun = False,
) -> None:
    """Make `hybridr serve --ubi` interleave two rankings; all other searches use the first.

    `today` is the present ranking of the index: without what `learn` stored if the other is `learnt`, without
    what `tune` chose if the other is `tuned`.
    """
    step = session.index(name).experiment.start(a, b, encoder=encoder, dry_run=dry_run)
    if step.remark:
        session.output.note(f"no clicks are recorded yet: {step.remark}")
    show_step(session, step, dry_run, f"hybridr experiment report {quote(name)}   look as often as you like")


@verb(experiment, "report", cluster=True)
def report(session: Session, name: SearchedName) -> None:
    """Show which ranking users click more, and whether that is significant, however often you look."""
    result = session.index(name).experiment.report(progress=session.output.progress)
    session.output.result(result.to_json())
    line, (a, b) = session.output.line, result.names
    bots = f", {result.bots:,} of them bots and left out" if result.bots else ""
    end = f", ended ({result.ended})" if result.ended else ""
    line(f"{result.index}: {a} against {b} since {result.began}{end}")
    line(
        f"{quantity(result.searches, 'search')} and {quantity(result.clicks, 'click')} of "
        f"{quantity(result.clients, 'client')}{bots}"
    )
    if result.remark:
        line(f"nothing to report yet: {result.remark}")
    line(f"chosen more from {a}: {result.a:,}; from {b}: {result.b:,}; from neither: {result.ties:,}")
    line(f"evidence {result.evidence:.3g}; {result.needed:.0f} decides")
    for reason, count in result.left_out.items():
        line(f"left out: {count:,} {reason}")
    if result.changed:
        session.output.note(
            f"the index was tuned, or has learnt, since the start: hybridr experiment stop {quote(name)}"
        )
    elif result.better and not result.ended:
        winner = a if result.better == "a" else b
        line(f"'{winner}' is better: hybridr experiment promote {quote(name)}")


@verb(experiment, "stop", cluster=True)
def stop(session: Session, name: SearchedName, dry_run: DryRun = False) -> None:
    """End an experiment; the index ranks as before."""
    show_step(session, session.index(name).experiment.stop(dry_run=dry_run), dry_run)


@verb(experiment, "promote", cluster=True)
def promote(
    session: Session,
    name: SearchedName,
    winner: Annotated[
        Literal["a", "b"] | None,
        typer.Option(help="Ranking to promote.", show_default="the winner of the report"),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the promotion.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Make all searches of the index use the winner, and end the experiment."""
    if undo:
        session.refuse_options("does not go with --undo", "winner")
    step = session.index(name).experiment.promote(winner, undo=undo, dry_run=dry_run)
    show_step(
        session, step, dry_run, "" if undo else f"undo: hybridr experiment promote {quote(name)} --undo"
    )


def show_step(session: Session, step: ExperimentStep, dry_run: bool, next_line: str = "") -> None:
    """Print what was done with an experiment, how the index ranks now, and `next_line`."""
    out = session.output
    out.result(step.to_json())
    predicate = "would rank" if dry_run else "ranks"
    ranks = "as before the experiment" if step.ranks == "before" else f"by '{step.ranks}'"
    prefix = "dry run, " if dry_run else ""
    out.line(
        f"{prefix}{step.index}: {step.did} ({step.names[0]} against {step.names[1]}); it {predicate} {ranks}"
    )
    if next_line and not dry_run:
        out.line(next_line)
