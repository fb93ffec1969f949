"""The verbs `hybridr experiment start`, `report`, `stop` and `promote`: two rankings shown to users in one
list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hybridr.errors import quantity

from ..arguments import DryRun, EncoderFolder, Searched
from ..session import Session
from ..verbs import group, verb

if TYPE_CHECKING:
    from hybridr.relevance.experiments import ExperimentStep

experiment = group("experiment", "Test a ranking by the clicks of users, promote it, and undo that.")
RANKING = "today, learnt, tuned, or a file with a table [search]"


@verb(experiment, "start", cluster=True)
def start(
    session: Session,
    name: Searched,
    a: Annotated[str, typer.Option(help=f"Ranking of all searches: {RANKING}.")] = "today",
    b: Annotated[str, typer.Option(help=f"Ranking beside it: {RANKING}.")] = "learnt",
    encoder: EncoderFolder = None,
    dry_run: DryRun = False,
) -> None:
    """Make `hybridr serve --ubi` interleave two rankings; all other searches use the first.

    `today` is the present ranking of the index: without what `learn` stored if the other is `learnt`, without
    what `tune` chose if the other is `tuned`.
    """
    done = session.index(name).experiment.start(a, b, encoder=encoder, dry_run=dry_run)
    if done.remark:
        session.output.note(f"no click is kept yet: {done.remark}")
    show(session, done, dry_run, f"hybridr experiment report {name}   may be looked at every day")


@verb(experiment, "report", cluster=True)
def report(session: Session, name: Searched) -> None:
    """Show which ranking users click more, and whether that is significant, however often you look."""
    report = session.index(name).experiment.report(progress=session.output.progress)
    session.output.result(report.to_json())
    line, (a, b) = session.output.line, report.names
    machines = f", {report.bots:,} of them machines and left out" if report.bots else ""
    ended = f", ended ({report.ended})" if report.ended else ""
    line(f"{report.index}: {a} against {b} since {report.began}{ended}")
    line(
        f"{quantity(report.searches, 'search')} and {quantity(report.clicks, 'click')} of "
        f"{quantity(report.clients, 'client')}{machines}"
    )
    if report.remark:
        line(f"nothing to report yet: {report.remark}")
    line(f"chosen more from {a}: {report.a:,}; from {b}: {report.b:,}; from neither: {report.ties:,}")
    line(f"evidence {report.evidence:.3g}; {report.needed:.0f} decides")
    for reason, count in report.left_out.items():
        line(f"left out: {count:,} {reason}")
    if report.changed:
        session.output.note(f"the index was tuned, or has learnt, since: hybridr experiment stop {name}")
    elif report.better and not report.ended:
        line(f"'{report.names[report.better == 'b']}' is better: hybridr experiment promote {name}")


@verb(experiment, "stop", cluster=True)
def stop(session: Session, name: Searched, dry_run: DryRun = False) -> None:
    """End an experiment; the index ranks as before."""
    show(session, session.index(name).experiment.stop(dry_run=dry_run), dry_run)


@verb(experiment, "promote", cluster=True)
def promote(
    session: Session,
    name: Searched,
    winner: Annotated[
        Literal["a", "b"] | None,
        typer.Option(help="Ranking to promote.", show_default="the winner of the report"),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the promotion.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Make all searches of the index use the winner, and end the experiment."""
    done = session.index(name).experiment.promote(winner, undo=undo, dry_run=dry_run)
    show(session, done, dry_run, "" if undo else f"undo: hybridr experiment promote {name} --undo")


def show(session: Session, done: ExperimentStep, dry_run: bool, further: str = "") -> None:
    """Print what was done with an experiment, and how the index ranks now."""
    out = session.output
    out.result(done.to_json())
    would = "would rank" if dry_run else "ranks"
    ranks = "as before the experiment" if done.ranks == "before" else f"by '{done.ranks}'"
    tried = "dry run, " if dry_run else ""
    out.line(f"{tried}{done.index}: {done.did} ({done.names[0]} against {done.names[1]}); it {would} {ranks}")
    if further and not dry_run:
        out.line(further)
