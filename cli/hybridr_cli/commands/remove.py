"""`hybridr remove`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..arguments import DryRun, Yes
from ..session import Session
from ..verbs import app, verb


@verb(app, "remove", cluster=True)
def remove(
    session: Session,
    name: Annotated[str, typer.Argument(help="The index that was reindexed; it stays.")],
    copy_back: Annotated[
        bool, typer.Option("--copy-back", help="Copy what clients wrote to the source first.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Although the source lacks what clients wrote.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete all that hybridr made for an index, and put its aliases back; never the index itself."""
    from hybridr.errors import ClusterError

    index = session.index(name)
    todo = index.remove(copy_back=copy_back, discard=discard, dry_run=True)
    if todo["refusal"] and not dry_run:
        raise ClusterError(todo["refusal"]["message"], hint=todo["refusal"]["hint"])
    show(session, todo, "to be deleted")
    if not dry_run:
        session.confirm("remove all that?", yes)
        todo = index.remove(copy_back=copy_back, discard=discard)
        show(session, todo, "deleted")
    session.output.result(todo)
    session.output.line("nothing was removed" if dry_run else "removed")
    session.output.refusal(todo["refusal"])


def show(session: Session, todo: dict[str, Any], fate: str) -> None:
    """List what goes and what comes back; `fate` says whether it went already."""
    if returned := todo["returned"]:
        session.output.line(
            f"{returned['changed']:,} documents copied back to the source, "
            f"{returned['deleted']:,} deleted there"
        )
    for index in todo["indices"]:
        session.output.line(f"index {index}: {fate}")
    for fingerprint in todo["term_tables"]:
        session.output.line(f"term table {fingerprint[:12]}: {fate}")
    for request in todo["requests"]:
        session.output.line(f"{request['method']} {request['path']}")
    for action in todo["actions"]:
        for kind, what in action.items():
            if kind != "remove_index":
                session.output.line(f"alias {what['alias']}: {kind} {what['index']}")
    if fields := todo.get("fields"):
        session.output.line(f"{' and '.join(fields)}: taken out of {todo['documents']:,} documents")
        session.output.line(
            f"the fields stay in the mapping of {todo['source']}: OpenSearch cannot take them out of it"
        )
    for file in todo["files"]:
        session.output.line(f"file {file['path']}: {fate} ({file['kind']}, {file['bytes']:,} bytes)")
