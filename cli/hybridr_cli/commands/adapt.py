"""The verb `hybridr adapt`."""

from __future__ import annotations

from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import JudgedOptions
from ..session import Session
from ..verbs import app, verb
from .train import show_training, show_unseen

if TYPE_CHECKING:
    from hybridr.training.adaptation import AdaptResult
    from hybridr.training.settings import AdaptSettings


@verb(app, "adapt", cluster=True)
def adapt(
    session: Session,
    index: Annotated[str, typer.Option(help="Index to read documents from.")],
    judgements: JudgedOptions,
    settings: AdaptSettings,
) -> None:
    """Adapt an encoder to an index without labels; it is used only if it passes a test (the gate).

    With 30 or more judged queries of your own, it is used only if it ranks them better.
    """
    target = session.index(index)
    queries = judgements.queries_for(target)
    adaptation = target.adapt(settings, judgements=queries, progress=session.output.progress)
    if queries.beir is not None and not adaptation.gate.judged:
        session.output.note("too few judged queries have a relevant document here; 30 would decide")
    show_adaptation(session, index, adaptation)


def show_adaptation(session: Session, index: str, adaptation: AdaptResult) -> None:
    """Print what was trained, the gate's table and decision, and the next command."""
    output = session.output
    if adaptation.steps:
        show_training(output, f"{adaptation.steps} steps on {adaptation.documents:,} documents", adaptation)
        show_unseen(output, adaptation, "documents, at strength 1")
    else:
        output.line(f"fitted     {describe_fit(adaptation)}")
    rows = [(row.name, row.old, row.new, f"{row.p:.3f}", row.queries) for row in adaptation.gate.rows]
    output.table(("test", "before", "after", "p", "queries"), rows)
    for reason in adaptation.gate.reasons:
        output.line(f"veto       {reason}")
    output.line(f"decision   {decision(adaptation)}")
    output.line(f"encoder    {adaptation.folder}")
    if adaptation.promoted:
        output.line(f"next       hybridr reindex {quote(index)} --encoder {quote(str(adaptation.folder))}")
    output.result({**asdict(adaptation), "folder": str(adaptation.folder), "gate": adaptation.gate.record()})


def describe_fit(adaptation: AdaptResult) -> str:
    """Return a text about an adapter: what it was fitted to, and which share of the vectors it preserves."""
    fitted, unseen = (1 - (lost or 0) for lost in (adaptation.loss_end, adaptation.unseen_loss_end))
    return (
        f"to {adaptation.documents:,} documents, {adaptation.seconds:.0f} s: {fitted:.1%} of their vectors "
        f"is kept, {unseen:.1%} of held-out ones" + (" (from an earlier run)" if adaptation.reused else "")
    )


def decision(adaptation: AdaptResult) -> str:
    """Return a text that says which encoder the folder holds, and what decided that."""
    evidence = f", by {adaptation.gate.judged} judged queries" if adaptation.gate.judged else ""
    if not adaptation.promoted:
        return f"the folder holds the UNADAPTED encoder{evidence} (--force exports the adapted one)"
    suffix = "" if adaptation.gate.passed else ", forced against the gate"
    return f"the adapted encoder is promoted{evidence}{suffix}"
