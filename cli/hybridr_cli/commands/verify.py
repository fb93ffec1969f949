"""`hybridr verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..arguments import EncoderFolder, Reindexed
from ..session import Session
from ..verbs import app, verb


@verb(app, "verify", cluster=True)
def verify(
    session: Session,
    name: Reindexed,
    encoder: EncoderFolder = None,
    sample: Annotated[int, typer.Option(min=1, max=10_000, help="Documents compared whole.")] = 64,
) -> None:
    """Compare the vectors' index with its source; exit 1 when anything differs. Changes nothing."""
    from hybridr.cluster.destinations import resolve
    from hybridr.reindexing import verification
    from hybridr.search.encoders import encoder_for

    cluster, progress = session.connect(), session.output.progress
    model = encoder_for(cluster, resolve(cluster, name), encoder, progress=progress)
    found = verification.verify(cluster, name, model, sample=sample, progress=progress)
    session.output.result({**vars(found), "findings": [vars(f) for f in found.findings], "ok": found.ok})
    rows = [
        (f.name, f.looked_at, "ok" if f.ok else f.detail or f"{len(f.differing)} differ")
        for f in found.findings
    ]
    session.output.table(("compared", "documents", "result"), rows)
    for problem in found.problems():
        session.output.line(problem)
    if not found.ok:
        raise typer.Exit(1)
