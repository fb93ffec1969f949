"""The verb `hybridr reindex`."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from hybridr.errors import quantity

from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.indexing.planning import Plan
    from hybridr.indexing.reindexing import ReindexResult
    from hybridr.indexing.settings import ReindexSettings

DEFAULT_ENCODER = "the one `adapt` made, else MiniLM"


@verb(app, "reindex", cluster=True)
def reindex(
    session: Session,
    name: Annotated[str, typer.Argument(help="Index to read; it stays as it is, unless --in-place.")],
    settings: ReindexSettings,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Encoder or sentence-transformers folder, or a name.", show_default=DEFAULT_ENCODER
        ),
    ] = None,
) -> None:
    """Write vectors into a new index beside the old one, verify it, move an alias to it."""
    from hybridr.search.settings import SearchSettings

    index, progress = session.index(name), session.output.progress
    search = session.settings(SearchSettings)
    if settings.dry_run:
        plan = index.plan_reindex(encoder=encoder, settings=settings, search=search, progress=progress)
        return show_plan(session, plan)
    done = index.reindex(encoder=encoder, settings=settings, search=search, progress=progress)
    if settings.in_place:
        show_counts(session, done, done.source, "current")
        session.output.line(
            f"for what clients write from now on: hybridr sync {quote(done.source)} --every 30s"
        )
        for note in done.notes:
            session.output.line(note)
        remark = "vectors are searched once none is missing; --accept-rejects does without the refused ones"
        exit_if_refused(session, done, "" if settings.accept_rejects else remark)
    else:
        show_result(session, done, name)


def show_plan(session: Session, plan: Plan) -> None:
    """Print the plan of a dry run: documents, fields, costs, remarks, and the requests."""
    out, record, proposal = session.output, plan.record, plan.proposal
    out.result(plan.to_json() | {"dry_run": True})
    place = f"'{record.source}'" + (" itself" if record.in_place else "")
    out.line(f"{quantity(proposal.documents, 'document')} of {place}, text from {', '.join(record.fields)}")
    out.line(
        f"vectors and graph: about {plan.vector_bytes / 1e6:,.0f} MB a copy, encoder {record.encoder[:12]}"
    )
    if record.arithmetic:
        out.line(f"encoded in {record.arithmetic}")
    for line in [*proposal.notes, *proposal.remarks]:
        out.line(line)
    show_estimates(session, plan)
    if proposal.warning:
        out.line(f"WARNING, forced: {proposal.warning}")
    for remark in plan.remarks:
        out.line(remark)
    out.line(plan.answer_note)
    out.requests(plan.requests)
    if record.source != plan.destination:
        out.line(f"and the uuid of {plan.destination} is added to the record of '{record.source}'")
    out.line("nothing was sent")


def show_estimates(session: Session, plan: Plan) -> None:
    """Print the estimates of memory, disk and time in a plan."""
    from hybridr.cluster.vector_forms import ESTIMATE

    out = session.output
    out.line(f"memory of a copy: {ESTIMATE}")
    for cost in plan.proposal.costs:
        name = f"{cost.engine} {cost.vectors} {cost.compression or ''}".rstrip()
        out.line(
            f"{'*' if cost.chosen else ' '} {name:<20} {cost.bytes_per_vector:>6,} bytes a vector, "
            f"memory {cost.memory_bytes / 1e6:,.1f} MB, disk {cost.disk_bytes / 1e6:,.1f} MB"
        )
    if plan.disk:
        out.line(
            f"disk: about {plan.disk.needed_bytes / 1e6:,.0f} MB with replicas, "
            f"{plan.disk.usable_bytes / 1e6:,.0f} MB usable below the flood stage ({plan.disk.flood_stage})"
        )
    if plan.seconds is not None:
        out.line(f"time: about {plan.seconds:,.0f} s, at the present speed of this machine and the cluster")
        for stage, seconds in plan.stages.items():
            if seconds:
                out.line(f"  {stage:<18} {seconds:>8,.1f} s")


def show_result(session: Session, done: ReindexResult, name: str) -> None:
    """Print the result of a reindex and what to do next; exit with 3 if documents were refused."""
    out = session.output
    show_counts(session, done, done.destination, "there")
    if done.shortened:
        out.line(
            f"{done.shortened:,} documents go on behind their last passage, where only words find them; "
            "[reindex] max_passages takes more"
        )
    if done.deleted:
        out.line(f"{done.deleted:,} deleted, which '{done.source}' no longer has")
    if done.carried and any(done.carried.values()):
        out.line(
            f"carried over from the previous index, where clients wrote: "
            f"{quantity(done.carried['changed'], 'document')}, {done.carried['deleted']:,} deletes; "
            f"of {done.carried['conflicts']:,} changed elsewhere too, the other version was taken"
        )
    if done.switched:
        aliases = f", and with it {', '.join(done.along)}" if done.along else ""
        out.line(f"alias {done.alias}{aliases} -> {done.destination}; undo: hybridr rollback {quote(name)}")
        show_deployment(session, done)
        if done.tuned_before:
            out.line(
                f"NOT tuned: what `hybridr tune`, `learn` and `experiment` found for '{done.tuned_before}' "
                f"stays with that index; run them again for {done.source}"
            )
        for caution in done.cautions:
            out.warning(f"warning: {caution}")
    for note in done.notes:
        out.line(note)
    remark = "" if done.switched else "the alias was not switched; --accept-rejects switches it nevertheless"
    exit_if_refused(session, done, remark)


def show_counts(session: Session, done: ReindexResult, index: str, already: str) -> None:
    """Print the counts of documents, or the result as JSON. `already` describes the skipped documents."""
    session.output.result(done.to_json())
    from_clients = f" ({done.from_clients:,} of them written by clients)" if done.from_clients else ""
    session.output.line(
        f"{index}: {quantity(done.documents, 'document')}, {done.encoded:,} encoded{from_clients}, "
        f"{done.skipped:,} were {already} already, {done.without_text:,} without text, "
        f"in {done.seconds:.0f} s"
    )
    if done.term_table:
        session.output.line(f"term table: {done.term_table.described}")
    if done.confidence:
        session.output.line(f"confidence: {done.confidence}")


def exit_if_refused(session: Session, done: ReindexResult, remark: str) -> None:
    """If documents were refused, print where the reasons are and the remark, and exit with 3."""
    if not done.rejected:
        return
    session.output.line(f"{done.rejected:,} refused by the index, reasons in {done.rejects_file}")
    if remark:
        session.output.line(remark)
    raise typer.Exit(3)


def show_deployment(session: Session, done: ReindexResult) -> None:
    """Print whether the new index is deployed as the previous one was."""
    if (deployment := done.deployment) is None:
        return
    if deployment.command is None:
        session.output.line(f"deployed as before: --way {deployment.way}, pipeline {deployment.pipeline}")
    else:
        session.output.line(
            f"NOT deployed: the previous index is deployed with --way {deployment.way}, "
            f"'{done.destination}' is not; run: {deployment.command}"
        )
