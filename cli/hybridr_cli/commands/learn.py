"""`hybridr learn`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments import DryRun, EncoderFolder, JudgedOptions, Searched
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.relevance.learning import Forgetting, Learning
    from hybridr.relevance.rehearsal import Gain, Rehearsal
    from hybridr.serving.page.assessor import Assessment
    from hybridr.serving.page.settings import AssessorSettings


@verb(app, "learn", cluster=True)
def learn(
    session: Session,
    name: Searched,
    judged: JudgedOptions,
    assessor: AssessorSettings,
    encoder: EncoderFolder = None,
    dry_run: DryRun = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget all that was learnt.")] = False,
) -> None:
    """Remember judged queries: searches like them find their relevant documents higher.

    What was learnt before is replaced. Nothing is trained, and of queries no text is kept. --dry-run measures
    what it would bring.
    """
    index = session.index(name)
    if forget:
        return show_forgotten(session, index.forget(dry_run=dry_run), dry_run)
    assessed: dict[str, Any] = {}
    if assessor.endpoint:
        said = index.assess(assessor, encoder=encoder, progress=session.output.progress)
        show_assessed(session, said)
        assessed = {"assessed": said.to_json()}
        judged = replace(judged, judgements=True)
    found = index.learn(judged.of(index), encoder=encoder, dry_run=dry_run, progress=session.output.progress)
    session.output.result(found.to_json() | assessed)
    show(session, name, found, dry_run)


def show_assessed(session: Session, said: Assessment) -> None:
    """Print what a language model judged, and how far it agrees with people."""
    line, unread = session.output.line, f", {said.unread:,} without a grade" if said.unread else ""
    line(f"{said.judge}: {said.queries:,} queries judged, {said.relevant:,} documents relevant")
    line(f"  asked now about {said.asked:,} documents{unread}")
    for one in said.agreement:
        [other] = [judge for judge in one["judges"] if judge != said.judge]
        kappa = "all the same" if one["kappa"] is None else f"kappa {one['kappa']:.2f}"
        line(f"  with {other}: {one['same']:.0%} of {one['documents']:,} documents alike, {kappa}")


def show_forgotten(session: Session, done: Forgetting, dry_run: bool) -> None:
    """Print what was forgotten."""
    out = session.output
    out.result(done.to_json())
    if done.memory is None:
        return out.line(f"{done.index}: nothing was learnt")
    out.line(f"{done.index}: {done.memory} {'would be' if dry_run else 'is'} deleted, all is forgotten")


def show(session: Session, name: str, found: Learning, dry_run: bool) -> None:
    """Print what was learnt, and how to undo it."""
    out = session.output
    would = "would be learnt" if dry_run else "learnt"
    out.line(f"{found.index}: {found.queries:,} queries with {found.documents:,} relevant documents {would}")
    out.line(f"queries from a cosine of {found.least:.2f} on are like them")
    if found.unused:
        out.line(f"left out: {found.unused:,} judged queries without a relevant document in the index")
    if found.rehearsal:
        return show_rehearsal(session, found.rehearsal)
    out.line(f"in use from now on, by the signal memory; undo: hybridr learn {name} --forget")


def show_rehearsal(session: Session, found: Rehearsal) -> None:
    """Print what a memory would bring, and for what traffic that holds."""
    out = session.output
    share = found.returning / found.asked
    out.line(
        f"{found.returning:,} of {found.asked:,} judged queries ({share:.0%}) share a relevant document with "
        "another one: their need returns"
    )
    out.line(f"{found.measure} {found.before:.4f} without it")
    out.line(f"  where needs return as often as that: {said(found.again)}")
    out.line(f"  for needs that nobody judged:        {said(found.new)}")
    for line in found.advice:
        out.line(line)


def said(gain: Gain) -> str:
    """Say a gain with its bounds."""
    return f"{gain.mean:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
