"""`hybridr clean`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..arguments import DryRun, Yes
from ..session import Session
from ..verbs import app, verb


@verb(app, "clean")
def clean(
    session: Session,
    name: Annotated[str | None, typer.Argument(help="Only files of this index.", show_default="all")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """List, then delete this machine's files that hold text of documents: rejects, token caches."""
    from hybridr.files.remembered import clean

    texts = clean(name, dry_run=True)
    for text in texts:
        session.output.line(f"{text.path} ({text.kind}, {text.bytes:,} bytes)")
    if texts and not dry_run:
        session.confirm(f"delete {len(texts)} of them?", yes)
        texts = clean(name)
    session.output.result({"files": [text.to_json() for text in texts], "deleted": not dry_run})
    session.output.line("nothing was deleted" if dry_run or not texts else f"{len(texts)} deleted")
