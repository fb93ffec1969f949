"""`hybridr models`."""

from __future__ import annotations

from ..session import Session
from ..verbs import app, verb


@verb(app, "models")
def models(session: Session) -> None:
    """List the published DAMs, REMs and baselines that can be assembled by name."""
    from dataclasses import asdict

    from hybridr.assembly.published import published

    found = published()
    session.output.table(
        ("name", "kind", "ranker", "lang", "vectors", "goes with"),
        [(e.name, e.kind, e.ranker, e.language, f"{e.pooling}, {e.similarity}", e.partner) for e in found],
    )
    rows = [asdict(entry) | {"repository": entry.repository} for entry in found]
    session.output.result({"models": rows})
