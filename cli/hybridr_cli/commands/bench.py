"""`hybridr bench`: measure on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.speed import Race


def register(app: typer.Typer) -> None:
    """Add the verbs to the app."""
    bench = typer.Typer(name="bench", no_args_is_help=True, help="Measure hybridr on this machine.")
    app.add_typer(bench)
    bench.callback()(lambda: None)  # one verb alone would lose its name
    register_adapt(bench)


def register_adapt(bench: typer.Typer) -> None:
    """Add `hybridr bench adapt`."""

    @verb(bench, "adapt")
    def adapt(
        session: Session,
        file: Annotated[
            Path | None, typer.Argument(help="Also write the figures into this JSON file.")
        ] = None,
        beir: Annotated[Path | None, typer.Option(help="BEIR folder (default: Python's docs).")] = None,
        size: Annotated[str, typer.Option(help="Model sizes, as a,b.")] = "MiniLM,bert-base",
        batch_size: Annotated[int, typer.Option(min=2, help="Documents per step.")] = 16,
        max_tokens: Annotated[int, typer.Option(min=8, help="Longest window of a document.")] = 190,
        seconds: Annotated[float, typer.Option(min=1, help="About how long for each size.")] = 120.0,
    ) -> None:
        """Train a DAM in turns with a plain transformers Trainer: real tokens per second, and the loss."""
        from hybridr.masked_lm import CorpusFile
        from hybridr.pydocs import read_pydocs
        from hybridr.speed import race

        documents = CorpusFile(beir, "beir") if beir else read_pydocs()[0]
        races = race(
            documents, sizes=tuple(size.split(",")), batch_size=batch_size, max_tokens=max_tokens,
            seconds=seconds, progress=session.output.progress,
        )  # fmt: skip
        values = {
            "batch_size": batch_size,
            "max_tokens": max_tokens,
            "corpus": beir.name if beir else "pydocs",
        }
        render(session, races, values, file)


def render(session: Session, races: list[Race], values: dict[str, Any], file: Path | None) -> None:
    """Show the table; write the figures."""
    from hybridr.manifest import write_json
    from hybridr.speed.masked_lm import machine_record

    columns = ("size", "training", "tokens/s", "times", "least", "most", "unseen loss", "steps")
    rows = [
        (race.size, lane.name, round(lane.tokens_per_second), f"{race.times(lane):.2f}",
         f"{min(lane.ratios):.2f}", f"{max(lane.ratios):.2f}", f"{lane.unseen_loss or 0:.3f}", race.steps)
        for race in races for lane in race.lanes
    ]  # fmt: skip
    session.output.table(columns, rows)
    found = {"machine": machine_record(), "settings": values, "races": [race.record() for race in races]}
    if file is not None:
        write_json(file, found)
    session.output.result(found)
