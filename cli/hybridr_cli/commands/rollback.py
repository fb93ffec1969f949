"""`hybridr rollback`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..session import Session, verb


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "rollback", cluster=True)
    def rollback(
        session: Session,
        name: Annotated[str, typer.Argument(help="The index that was reindexed.")],
        drop: Annotated[bool, typer.Option("--drop", help="Also delete the index that is left.")] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the request, send none.")] = False,
    ) -> None:
        """Point the alias back to what it stood for before the last reindex."""
        from hybridr import rollback

        done = rollback(session.connect(), name, drop=drop, dry_run=dry_run)
        session.output.result(done | {"dry_run": dry_run})
        moved = "would move" if dry_run else "moved"
        session.output.line(f"alias {done['alias']} {moved} from {done['from']} back to {done['to']}")
        if done["dropped"]:
            session.output.line(f"{done['from']} was deleted")
