"""The verb `hybridr verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridr.errors import quantity

from ..options import EncoderFolder, ReindexedName
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.index import Index


@verb(app, "verify", cluster=True)
def verify(
    session: Session,
    name: ReindexedName,
    encoder: EncoderFolder = None,
    sample: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, help="Number of documents compared whole, or used as queries by --recall."
        ),
    ] = 64,
    recall: Annotated[
        bool, typer.Option("--recall", help="Compare the vector graph with exact search instead.")
    ] = False,
    queries: Annotated[
        Path | None,
        typer.Option(help="Queries for --recall, one per line.", show_default="made from documents"),
    ] = None,
) -> None:
    """Compare the index with vectors with its source; exit 1 if anything differs. Changes nothing.

    --recall: the share of the nearest vectors that the vector graph finds, and which setting would find more;
    exit 1 if it is significantly below 95% of the ten nearest.
    """
    if not recall:
        session.refuse_options("is for --recall", "queries")
    index = session.index(name)
    if recall:
        passed = check_recall(session, index, encoder, sample, queries)
    else:
        passed = compare_with_source(session, index, encoder, sample)
    if not passed:
        raise typer.Exit(1)


def compare_with_source(session: Session, index: Index, encoder: Path | None, sample: int) -> bool:
    """Compare an index with its source and print the findings; return whether nothing differs."""
    result = index.verify(encoder=encoder, sample=sample, progress=session.output.progress)
    session.output.result({**vars(result), "findings": [vars(f) for f in result.findings], "ok": result.ok})
    rows = [
        (
            f.name,
            f.looked_at if f.of == "documents" else f"{f.looked_at} {f.of}",
            "ok" if f.ok else f.detail or f"{len(f.differing)} differ",
        )
        for f in result.findings
    ]
    session.output.table(("compared", "documents", "result"), rows)
    for problem in result.problems():
        session.output.line(problem)
    return result.ok


def check_recall(
    session: Session, index: Index, encoder: Path | None, sample: int, queries: Path | None
) -> bool:
    """Measure the recall of the vector graph and print it; return whether it is enough."""
    result = index.measure_recall(queries, encoder=encoder, sample=sample, progress=session.output.progress)
    shares = [share._asdict() for share in result.shares]
    session.output.result({**vars(result), "shares": shares, "ok": result.ok})
    rows = [
        (
            f"{share.vectors} {share.asked}",
            share.walk + (" (as searched)" if share.walk == result.usual else ""),
            share.k,
            f"{share.mean:.3f} [{share.low:.3f}, {share.high:.3f}]",
            share.took_ms,
        )
        for share in result.shares
    ]
    title = f"{result.index}: {quantity(result.documents, 'document')}"
    session.output.table(("asked with", "walk", "k", "found of the k nearest", "ms"), rows, title=title)
    session.output.line(result.advice or "searches find enough of the nearest vectors")
    return result.ok
