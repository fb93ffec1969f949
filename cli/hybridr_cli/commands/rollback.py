"""`hybridr rollback`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..arguments import DryRun, Reindexed
from ..session import Session
from ..verbs import app, verb


@verb(app, "rollback", cluster=True)
def rollback(
    session: Session,
    name: Reindexed,
    copy_back: Annotated[
        bool, typer.Option("--copy-back", help="Copy what clients wrote since to the source first.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Roll back although the source lacks what clients wrote.")
    ] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Also delete the index that is left.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Point the alias back to what it stood for before the last reindex."""
    done = session.index(name).rollback(copy_back=copy_back, discard=discard, drop=drop, dry_run=dry_run)
    session.output.result(done | {"dry_run": dry_run})
    show(session, done, dry_run)
    session.output.refusal(done["refusal"])


def show(session: Session, done: dict[str, Any], dry_run: bool) -> None:
    """Say what was moved, and what became of the documents that clients wrote."""
    out, writes, returned = session.output, done["writes"], done["returned"]
    moved = "would move" if dry_run else "moved"
    along = f", and with it {', '.join(done['along'])}," if done["along"] else ""
    out.line(f"alias {done['alias']}{along} {moved} from {done['from']} back to {done['to']}")
    if dry_run:
        out.line(
            f"clients changed {writes['changed']:,} documents there, deleted {writes['deleted']:,}, and "
            f"{writes['conflicts']:,} were changed on both sides"
        )
    elif returned["changed"] or returned["deleted"]:
        out.line(
            f"{returned['changed']:,} documents copied back to the source, {returned['deleted']:,} deleted"
        )
    if returned["conflicts"]:
        out.line(
            f"{returned['conflicts']:,} were changed on both sides: the source's stay, {done['from']} is kept"
        )
    if not writes["deletes_known"]:
        out.line("deletes could not be told from documents that were refused or never copied")
    if done["dropped"]:
        out.line(f"{done['from']} was deleted")
    if (behind := done["behind"]) and any(behind.values()):
        out.line(
            f"{done['to']} lacks {behind['inserts']:,} inserts, {behind['updates']:,} updates and "
            f"{behind['deletes']:,} deletes of its source, and {behind['no_vector']:,} of its documents have "
            f"no vector yet: {'then ' if dry_run else ''}hybridr sync {done['alias']}"
        )
