"""`hybridr models`."""

from __future__ import annotations

from typing import Any

from ..session import Session
from ..verbs import app, verb


@verb(app, "models")
def models(session: Session) -> None:
    """List what goes by a name: encoders by language, and published DAMs, REMs and baselines to assemble."""
    session.output.result(show_modules(session) | show_encoders(session))


def show_encoders(session: Session) -> dict[str, Any]:
    """List the encoders of the registry."""
    from hybridr.encoders.registry import ENCODERS

    session.output.table(
        ("encoder", "languages", "size", "dim", "tokens", "vectors", "licence"),
        [
            (
                entry.name,
                ", ".join(entry.languages),
                f"{entry.millions} M",
                entry.dim,
                entry.max_tokens,
                f"{entry.pooling}, {entry.similarity}",
                entry.licence,
            )
            for entry in ENCODERS
        ],
    )
    session.output.line("hybridr reindex NAME --encoder ENCODER   fetches and exports one, once")
    return {"encoders": [entry.to_json() for entry in ENCODERS]}


def show_modules(session: Session) -> dict[str, Any]:
    """List the published modules of DDR and the baselines beside them."""
    from dataclasses import asdict

    from hybridr.encoders.export.fetched_models import published

    modules = published()
    session.output.table(
        ("module", "kind", "ranker", "lang", "vectors", "goes with"),
        [(e.name, e.kind, e.ranker, e.language, f"{e.pooling}, {e.similarity}", e.partner) for e in modules],
    )
    session.output.line("hybridr export --dam DAM --rem REM --out FOLDER   joins two to an encoder")
    return {"models": [asdict(entry) | {"repository": entry.repository} for entry in modules]}
