"""`hybridr adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.adaptation.adaptation import Adaptation

Text = str | None
Count = int | None
Number = float | None


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "adapt", cluster=True)
    def adapt(
        session: Session,
        index: Annotated[str, typer.Option(help="Index whose documents are read.")],
        out: Annotated[Path | None, typer.Option(help="Folder of the encoder.")] = None,
        base: Annotated[
            Text, typer.Option(help="'minilm', an encoder folder, or a DAM (with --rem).")
        ] = None,
        rem: Annotated[Text, typer.Option(help="REM to join: folder, zip or published name.")] = None,
        objective: Annotated[Text, typer.Option(help="span (retriever) or mlm (DAM and REM).")] = None,
        pooling: Annotated[Text, typer.Option(help="With a REM: mean or cls.")] = None,
        similarity: Annotated[Text, typer.Option(help="With a REM: ip or cosine.")] = None,
        fields: Annotated[Text, typer.Option(help="Text fields, as a,b,c; default: as `inspect`.")] = None,
        steps: Annotated[Count, typer.Option(help="Optimiser steps.")] = None,
        batch_size: Annotated[Count, typer.Option(help="Documents per step.")] = None,
        max_documents: Annotated[Count, typer.Option(help="Random sample of larger indices.")] = None,
        strength: Annotated[Number, typer.Option(help="Share of the change that is kept, 0..1.")] = None,
        learning_rate: Annotated[Number, typer.Option(help="Highest learning rate.")] = None,
        precision: Annotated[Text, typer.Option(help="With a REM: auto, fp32 or bf16.")] = None,
        device: Annotated[Text, typer.Option(help="auto, cpu or cuda.")] = None,
        queries: Annotated[Path | None, typer.Option(help="Unlabelled query log, for the gate.")] = None,
        seed: Annotated[Count, typer.Option(help="Seed of sample, batches and probes.")] = None,
        force: Annotated[bool | None, typer.Option("--force", help="Promote against the gate.")] = None,
        yes: Annotated[bool | None, typer.Option("--yes", help="Adapt to any language.")] = None,
    ) -> None:
        """Fit an encoder to an index without labels; the unadapted one is kept if the gate says no."""
        from hybridr.adaptation.adaptation import adapt
        from hybridr.adaptation.settings import AdaptSettings
        from hybridr.search.encoders import promote

        settings = session.settings(
            AdaptSettings,
            out=out,
            base=base,
            rem=rem,
            objective=objective,
            pooling=pooling,
            similarity=similarity,
            fields=fields,
            steps=steps,
            batch_size=batch_size,
            max_documents=max_documents,
            strength=strength,
            learning_rate=learning_rate,
            precision=precision,
            device=device,
            queries=queries,
            seed=seed,
            force=force,
            any_language=yes,
        )
        cluster = session.connect()
        adaptation = adapt((cluster, index), settings, progress=session.output.progress)
        promote(cluster, index, adaptation.folder)
        render(session, index, adaptation)


def render(session: Session, index: str, adaptation: Adaptation) -> None:
    """Show what was trained, the gate's table and decision, and what to run next."""
    output = session.output
    output.line(
        f"trained    {adaptation.steps} steps on {adaptation.documents:,} documents, "
        f"loss {adaptation.loss_start:.3f} -> {adaptation.loss_end:.3f}, {adaptation.seconds:.0f} s"
        + (" (done before)" if adaptation.reused else "")
    )
    if adaptation.unseen_loss_start is not None and adaptation.unseen_loss_end is not None:
        start, end = adaptation.unseen_loss_start, adaptation.unseen_loss_end
        output.line(f"unseen     loss {start:.3f} -> {end:.3f} on held-out documents, at full strength")
    rows = [(row.name, row.old, row.new, f"{row.p:.3f}", row.queries) for row in adaptation.gate.rows]
    output.table(("gate", "before", "after", "p", "queries"), rows)
    for reason in adaptation.gate.reasons:
        output.line(f"veto       {reason}")
    output.line(f"decision   {decision(adaptation)}")
    output.line(f"encoder    {adaptation.folder}")
    output.line(f"next       hybridr reindex {index} --encoder {adaptation.folder}")
    output.result(as_json(adaptation))


def decision(adaptation: Adaptation) -> str:
    """Say in words which encoder the folder holds."""
    if not adaptation.promoted:
        return "the folder holds the UNADAPTED encoder (--force exports the adapted one)"
    return "the adapted encoder is promoted" + ("" if adaptation.gate.passed else ", forced against the gate")


def as_json(adaptation: Adaptation) -> dict[str, Any]:
    """Give the result as one JSON object."""
    from dataclasses import asdict

    return {**asdict(adaptation), "folder": str(adaptation.folder), "gate": adaptation.gate.record()}
