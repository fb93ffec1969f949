"""`hybridr settings`."""

from __future__ import annotations

from ..session import Session
from ..verbs import app, verb


@verb(app, "settings")
def settings(session: Session) -> None:
    """List every setting with its value and where the value comes from."""
    from hybridr.settings import resolved_values

    from ..stages import STAGES

    rows = [row for stage in STAGES for row in resolved_values(stage, config=session.config)]
    session.output.table(("setting", "value", "from"), rows)
    session.output.result({name: {"value": value, "from": origin} for name, value, origin in rows})
