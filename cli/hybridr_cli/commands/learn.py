"""The verb `hybridr learn`."""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridr.errors import quantity

from ..options import DryRun, EncoderFolder, JudgedOptions, SearchedName
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.evaluation.significance import BoundedMean
    from hybridr.relevance.learning import LearnResult
    from hybridr.serving.page.judgements import Assessment
    from hybridr.serving.settings import AssessorSettings


@verb(app, "learn", cluster=True)
def learn(
    session: Session,
    name: SearchedName,
    judgements: JudgedOptions,
    assessor: AssessorSettings,
    encoder: EncoderFolder = None,
    dry_run: DryRun = False,
    forget: Annotated[bool, typer.Option("--forget", help="Delete everything learnt.")] = False,
) -> None:
    """Store judged queries; similar searches then rank their relevant documents higher.

    Earlier judged queries are replaced. Nothing is trained, and the text of queries is not stored. --dry-run
    measures the gain.
    """
    if forget:
        names = (*vars(judgements), "endpoint", "model", "queries", "encoder")
        session.refuse_options("does not go with --forget", *names)
    elif not assessor.endpoint:
        session.refuse_options("needs --endpoint", "model", "queries")
    index = session.index(name)
    if forget:
        done = index.forget(dry_run=dry_run)
        session.output.result(done.to_json())
        if done.memory is None:
            return session.output.line(f"{done.index}: nothing was learnt")
        predicate = "would be" if dry_run else "was"
        return session.output.line(
            f"{done.index}: {done.memory} {predicate} deleted, with all that was learnt"
        )
    extra: dict[str, Any] = {}
    if assessor.endpoint:
        assessment = index.assess(assessor, encoder=encoder, progress=session.output.progress)
        show_assessment(session, assessment)
        extra = {"assessed": assessment.to_json()}
        judgements = replace(judgements, judgements=True)
    result = index.learn(
        judgements.queries_for(index), encoder=encoder, dry_run=dry_run, progress=session.output.progress
    )
    session.output.result(result.to_json() | extra)
    show_learnt(session, name, result, dry_run)


def show_assessment(session: Session, assessment: Assessment) -> None:
    """Print what a language model judged, and how far it agrees with people."""
    line = session.output.line
    unread = f", {assessment.unread:,} without a grade" if assessment.unread else ""
    queries = quantity(assessment.queries, "query")
    line(f"{assessment.judge}: {queries} judged, {quantity(assessment.relevant, 'document')} relevant")
    line(f"  asked now about {quantity(assessment.asked, 'document')}{unread}")
    for pair in assessment.agreement:
        [judge] = [judge for judge in pair["judges"] if judge != assessment.judge]
        kappa = "all grades equal" if pair["kappa"] is None else f"kappa {pair['kappa']:.2f}"
        line(f"  with {judge}: {pair['same']:.0%} of {pair['documents']:,} documents alike, {kappa}")


def show_learnt(session: Session, name: str, result: LearnResult, dry_run: bool) -> None:
    """Print how many queries were learnt and how to undo that, or the gain that a dry run measured."""
    out = session.output
    predicate = "would be learnt" if dry_run else "learnt"
    out.line(
        f"{result.index}: {quantity(result.queries, 'query')} with {result.documents:,} relevant "
        f"documents {predicate}"
    )
    out.line(f"a query counts as similar from a cosine of {result.least:.2f}")
    if result.unused:
        out.line(f"left out: {result.unused:,} judged queries without a relevant document in the index")
    if (rehearsal := result.rehearsal) is None:
        undo = f"hybridr learn {quote(name)} --forget"
        return out.line(f"in use from now on, by the signal memory; undo: {undo}")
    share = rehearsal.returning / rehearsal.asked
    out.line(
        f"{rehearsal.returning:,} of {rehearsal.asked:,} judged queries ({share:.0%}) share a relevant "
        "document with another one: their need returns"
    )
    out.line(f"{rehearsal.measure} {rehearsal.before:.4f} without it")
    out.line(f"  where needs return as often as that: {gain_text(rehearsal.again)}")
    out.line(f"  for needs that nobody judged:        {gain_text(rehearsal.new)}")
    for line in rehearsal.advice:
        out.line(line)


def gain_text(gain: BoundedMean) -> str:
    """Return a gain with the bounds of its interval as text."""
    return f"{gain.mean:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
