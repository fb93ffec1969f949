"""`hybridr models`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..session import Session
from ..verbs import app, verb


@verb(app, "models")
def models(
    session: Session,
    encoders: Annotated[
        bool, typer.Option("--encoders", help="Whole encoders by language instead, for reindex --encoder.")
    ] = False,
) -> None:
    """List the published DAMs, REMs and baselines that can be assembled by name."""
    from dataclasses import asdict

    from hybridr.assembly.published import published

    if encoders:
        return show_encoders(session)
    found = published()
    session.output.table(
        ("name", "kind", "ranker", "lang", "vectors", "goes with"),
        [(e.name, e.kind, e.ranker, e.language, f"{e.pooling}, {e.similarity}", e.partner) for e in found],
    )
    rows = [asdict(entry) | {"repository": entry.repository} for entry in found]
    session.output.result({"models": rows})


def show_encoders(session: Session) -> None:
    """List the encoders of the registry."""
    from hybridr.encoding.registry import ENCODERS

    session.output.table(
        ("name", "languages", "size", "dim", "tokens", "vectors", "licence"),
        [
            (
                one.name,
                ", ".join(one.languages),
                f"{one.millions} M",
                one.dim,
                one.max_tokens,
                f"{one.pooling}, {one.similarity}",
                one.licence,
            )
            for one in ENCODERS
        ],
    )
    session.output.line("hybridr reindex NAME --encoder ENCODER   fetches and exports one, once")
    session.output.result({"encoders": [one.to_json() for one in ENCODERS]})
