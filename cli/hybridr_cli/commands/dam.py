"""`hybridr dam`: train a domain module on documents without labels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session
from ..trainings import show_training, show_unseen
from ..verbs import group, verb

if TYPE_CHECKING:
    from hybridr.relevance.corpus import Source
    from hybridr.training.dam import DamFit
    from hybridr.training.settings import DamSettings

dam = group("dam", "Train a domain module (DAM) on documents without labels.")


@dataclass(frozen=True)
class Documents:
    """Where the documents are: one of these."""

    index: Annotated[str | None, typer.Option(help="Index whose documents are read.")] = None
    beir: Annotated[Path | None, typer.Option(help="Instead: a BEIR folder.")] = None
    file: Annotated[
        Path | None, typer.Option(help="Instead: JSONL (NAME.jsonl), or docid<TAB>text lines, gzip allowed.")
    ] = None


@verb(dam, "train", cluster=True)
def train(session: Session, place: Documents, settings: DamSettings) -> None:
    """Train a DAM without labels, from a source DAM; the same command goes on after a stop."""
    from hybridr.training.dam import fit_dam

    source = chosen_source(session, place, settings.fields)
    render(session, fit_dam(source, settings, progress=session.output.progress))


def chosen_source(session: Session, place: Documents, fields: tuple[str, ...]) -> Source:
    """Open the one source that was given. Raises SettingsError."""
    from hybridr.errors import SettingsError
    from hybridr.relevance.corpus import CorpusFile

    places: list[Any] = [where for where in asdict(place).values() if where is not None]
    if len(places) != 1:
        raise SettingsError(
            "one source of documents is needed",
            hint="--index NAME, --beir FOLDER or --file FILE",
        )
    if place.index is not None:
        return session.connect(), place.index
    return CorpusFile(places[0], fields)


def render(session: Session, fit: DamFit) -> None:
    """Show what was trained and what to run next."""
    output = session.output
    show_training(output, f"{fit.steps:,} steps on {fit.documents:,} documents in {fit.precision}", fit)
    show_unseen(output, fit, "text")
    if fit.fresh_head:
        output.line("head       the base had none; a new one, tied to its embeddings, was trained along")
    output.line(f"dam        {fit.folder}, losses in losses.jsonl")
    output.line(
        f"next       hybridr rem train --dam {fit.folder} ..., or hybridr adapt --base {fit.folder} ..."
    )
    output.result({**asdict(fit), "folder": str(fit.folder)})
