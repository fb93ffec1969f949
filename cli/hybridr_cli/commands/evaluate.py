"""`hybridr evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..session import Session, verb


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "evaluate", cluster=True)
    def evaluate(
        session: Session,
        name: Annotated[str, typer.Argument(help="Index that holds the collection.")],
        beir: Annotated[Path, typer.Option(help="BEIR folder with queries.jsonl and qrels/.")],
        split: Annotated[str, typer.Option(help="Split of the qrels.")] = "test",
        systems: Annotated[
            str,
            typer.Option(
                help="bm25, rm3, dense, hybrid, hybrid-stock, hybrid-completed; the first is the baseline."
            ),
        ] = "bm25,dense,hybrid",
        measures: Annotated[str, typer.Option(help="As in ir-measures, comma separated.")] = "nDCG@10,R@100",
        runs: Annotated[Path | None, typer.Option(help="Folder for TREC run files.")] = None,
        encoder: Annotated[Path | None, typer.Option(help="Encoder folder.")] = None,
    ) -> None:
        """Measure BM25, dense and hybrid on judged queries, with a paired test."""
        from hybridr.systems import evaluate_index

        found = evaluate_index(
            session.connect(), name, beir, split=split, systems=systems.split(","),
            measures=measures.split(","), encoder=encoder, progress=session.output.progress,
        )  # fmt: skip
        written = found.write_runs(runs) if runs else {}
        session.output.result(found.to_json() | {"runs": written})
        columns, rows = found.table()
        session.output.table(columns, rows, title=f"{name}: {found.queries} queries")
        for file in written.values():
            session.output.line(f"run written: {file}")
