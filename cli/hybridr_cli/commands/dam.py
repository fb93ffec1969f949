"""`hybridr dam`: train a domain module on documents without labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.adaptation.corpus import Source
    from hybridr.adaptation.dam import DamFit

Text = str | None
Count = int | None
Number = float | None
File = Path | None


def register(app: typer.Typer) -> None:
    """Add the verbs to the app."""
    dam = typer.Typer(
        name="dam", no_args_is_help=True, help="Train a domain module (DAM) on documents without labels."
    )
    app.add_typer(dam)
    dam.callback()(lambda: None)  # one verb alone would lose its name
    register_train(dam)


def register_train(dam: typer.Typer) -> None:
    """Add `hybridr dam train`."""

    @verb(dam, "train", cluster=True)
    def train(
        session: Session,
        index: Annotated[Text, typer.Option(help="Index whose documents are read.")] = None,
        beir: Annotated[File, typer.Option(help="Instead: a BEIR folder.")] = None,
        jsonl: Annotated[File, typer.Option(help="Instead: a JSONL file.")] = None,
        tsv: Annotated[File, typer.Option(help="Instead: docid<TAB>text lines, gzip allowed.")] = None,
        base: Annotated[Text, typer.Option(help="Source DAM: minilm, published name, folder.")] = None,
        out: Annotated[File, typer.Option(help="Folder of the DAM.")] = None,
        fields: Annotated[Text, typer.Option(help="Text fields, as a,b,c.")] = None,
        max_documents: Annotated[Count, typer.Option(help="Random sample of larger corpora.")] = None,
        steps: Annotated[Count, typer.Option(help="Optimiser steps.")] = None,
        batch_size: Annotated[Count, typer.Option(help="Documents per step.")] = None,
        learning_rate: Annotated[Number, typer.Option(help="Learning rate after the warm-up.")] = None,
        warm_up: Annotated[Count, typer.Option(help="Steps of linear rise.")] = None,
        max_tokens: Annotated[Count, typer.Option(help="Longest window of a document.")] = None,
        weight_decay: Annotated[Number, typer.Option(help="Not on biases and LayerNorm.")] = None,
        precision: Annotated[Text, typer.Option(help="auto, fp32 or bf16.")] = None,
        token_budget: Annotated[Count, typer.Option(help="Tokens of a micro-batch.")] = None,
        dropout: Annotated[Number, typer.Option(help="0, or 0.1 as BERT was trained.")] = None,
        held_out: Annotated[Count, typer.Option(help="Documents to measure the loss on.")] = None,
        checkpoint_every: Annotated[Count, typer.Option(help="Steps between checkpoints.")] = None,
        seed: Annotated[Count, typer.Option(help="Seed of sample, windows, masks and head.")] = None,
        device: Annotated[Text, typer.Option(help="auto, cpu or cuda.")] = None,
    ) -> None:
        """Train a DAM by masked-LM, from a source DAM; the same command goes on after a stop."""
        from hybridr.adaptation.dam import fit_dam
        from hybridr.adaptation.settings import DamSettings

        settings = session.settings(
            DamSettings,
            base=base,
            out=out,
            fields=fields,
            max_documents=max_documents,
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            warm_up=warm_up,
            max_tokens=max_tokens,
            weight_decay=weight_decay,
            precision=precision,
            token_budget=token_budget,
            dropout=dropout,
            held_out=held_out,
            checkpoint_every=checkpoint_every,
            seed=seed,
            device=device,
        )
        files = {"beir": beir, "jsonl": jsonl, "tsv": tsv}
        source = chosen_source(session, index, files, settings.fields)
        fit = fit_dam(source, settings, progress=session.output.progress)
        render(session, fit)


def chosen_source(
    session: Session, index: str | None, files: dict[str, Path | None], fields: tuple[str, ...]
) -> Source:
    """Open the one source that was given. Raises SettingsError."""
    from hybridr.adaptation.corpus import CorpusFile
    from hybridr.errors import SettingsError

    given: list[Any] = [(form, path) for form, path in files.items() if path is not None]
    if len(given) + (index is not None) != 1:
        raise SettingsError(
            "one source of documents is needed",
            hint="--index NAME, --beir FOLDER, --jsonl FILE or --tsv FILE",
        )
    if index is not None:
        return session.connect(), index
    form, path = given[0]
    return CorpusFile(path, form, fields)


def render(session: Session, fit: DamFit) -> None:
    """Show what was trained and what to run next."""
    from dataclasses import asdict

    output = session.output
    output.line(
        f"trained    {fit.steps:,} steps on {fit.documents:,} documents in {fit.precision}, "
        f"loss {fit.loss_start:.3f} -> {fit.loss_end:.3f}, {fit.seconds:.0f} s"
        + (" (done before)" if fit.reused else "")
    )
    if fit.unseen_loss_start is not None and fit.unseen_loss_end is not None:
        output.line(
            f"unseen     loss {fit.unseen_loss_start:.3f} -> {fit.unseen_loss_end:.3f} on held-out text"
        )
    if fit.fresh_head:
        output.line("head       the base had none; a new one, tied to its embeddings, was trained along")
    output.line(f"dam        {fit.folder}, loss curve in losses.svg")
    output.line(
        f"next       hybridr rem train --dam {fit.folder} ..., or hybridr adapt --base {fit.folder} ..."
    )
    output.result({**asdict(fit), "folder": str(fit.folder)})
