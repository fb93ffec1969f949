"""The verbs `hybridr rollback`, `remove` and `clean`, which undo what hybridr made."""

from __future__ import annotations

from shlex import quote
from typing import Annotated, Any

import typer

from hybridr.errors import quantity

from ..options import DryRun, ReindexedName, Yes
from ..session import Session
from ..verbs import app, verb

DELETED = "deleted"


@verb(app, "rollback", cluster=True)
def rollback(
    session: Session,
    name: ReindexedName,
    copy_back: Annotated[
        bool, typer.Option("--copy-back", help="First copy what clients wrote since then to the source.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Roll back although the source lacks those documents.")
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Also delete the index with vectors and what belongs to it.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Move the alias back to where it pointed before the last reindex."""
    done = session.index(name).rollback(copy_back=copy_back, discard=discard, drop=drop, dry_run=dry_run)
    session.output.result(done | {"dry_run": dry_run})
    out, writes, returned = session.output, done["writes"], done["returned"]
    predicate = "would move" if dry_run else "moved"
    aliases = f", and with it {', '.join(done['along'])}," if done["along"] else ""
    out.line(f"alias {done['alias']}{aliases} {predicate} from {done['from']} back to {done['to']}")
    for alias, command in done["stays"].items():
        out.line(f"alias {alias} stays on {done['from']}, which is therefore kept; to move it: {command}")
    if dry_run:
        out.line(
            f"clients changed {quantity(writes['changed'], 'document')} there and deleted "
            f"{writes['deleted']:,}; {writes['conflicts']:,} were changed on both sides"
        )
    elif returned["changed"] or returned["deleted"]:
        out.line(
            f"{quantity(returned['changed'], 'document')} copied back to the source, "
            f"{returned['deleted']:,} deleted"
        )
    if returned["conflicts"]:
        out.line(
            f"{returned['conflicts']:,} were changed on both sides: the source keeps its own, "
            f"and {done['from']} is kept"
        )
    if late := done["late"]["changed"] + done["late"]["deleted"]:
        out.line(
            f"clients wrote or deleted {late:,} meanwhile: {done['from']} is kept, reindex carries them over"
        )
    if not writes["deletes_known"]:
        out.line("deleted documents cannot be told from those that were refused or never copied")
    if done["dropped"] or (drop and dry_run and not done["stays"]):
        out.line(f"{done['from']} {'would be' if dry_run else 'was'} deleted")
        show_parts(session, done, "to be deleted" if dry_run else DELETED)
    if (behind := done["behind"]) and any(behind.values()):
        counts = (
            f"{behind['inserts']:,} inserts, {behind['updates']:,} updates and {behind['deletes']:,} deletes"
        )
        remark = ", which it would get first, without vectors" if dry_run else ""
        out.line(
            f"{done['to']} lacks {counts} of its source{remark}, and {behind['no_vector']:,} of its "
            f"documents have no vector yet: {'then ' if dry_run else ''}hybridr sync {quote(done['alias'])}"
        )
    session.output.refusal(done["refusal"])


@verb(app, "remove", cluster=True)
def remove(
    session: Session,
    name: Annotated[str, typer.Argument(help="The index that was reindexed; it stays.")],
    copy_back: Annotated[
        bool, typer.Option("--copy-back", help="First copy what clients wrote to the source.")
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Remove although the source lacks what clients wrote.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete everything that hybridr created for an index and restore its aliases; never the index itself."""
    from hybridr.errors import ClusterError

    index = session.index(name)
    removal = index.remove(copy_back=copy_back, discard=discard, dry_run=True)
    if removal["refusal"] and not dry_run:
        raise ClusterError(removal["refusal"]["message"], hint=removal["refusal"]["hint"])
    show_removal(session, removal, "to be deleted")
    if not dry_run:
        session.confirm("remove all of this?", yes)
        planned = removal["beside"]
        removal = index.remove(copy_back=copy_back, discard=discard)
        show_removal(session, removal, DELETED)
        for part in planned:
            if part not in removal["beside"]:
                session.output.line(f"{part}: stays, an index that this user cannot see may use it")
    session.output.result(removal)
    session.output.line("nothing was removed" if dry_run else "removed")
    session.output.refusal(removal["refusal"])


def show_removal(session: Session, removal: dict[str, Any], fate: str) -> None:
    """Print what a removal deletes and restores; `fate` is "to be deleted" or DELETED."""
    if returned := removal["returned"]:
        session.output.line(
            f"{quantity(returned['changed'], 'document')} copied back to the source, "
            f"{returned['deleted']:,} deleted there"
        )
    for index in removal["indices"]:
        session.output.line(f"index {index}: {fate}")
    show_parts(session, removal, fate)
    for action in removal["actions"]:
        for kind, details in action.items():
            if kind != "remove_index":
                session.output.line(f"alias {details['alias']}: {kind} {details['index']}")
    if fields := removal.get("fields"):
        verb = "removed" if fate == DELETED else "to be removed"
        documents = quantity(removal["documents"], "document")
        session.output.line(f"{' and '.join(fields)}: {verb} from {documents}")
        if fate != DELETED:
            session.output.line(
                f"the fields stay in the mapping of {removal['source']}: OpenSearch cannot remove them"
            )
    for file in removal["files"]:
        session.output.line(f"file {file['path']}: {fate} ({file['kind']}, {file['bytes']:,} bytes)")
    for file in removal["other_files"]:
        session.output.line(
            f"file {file['path']}: stays, it belongs to another index of this name, deleted or on another "
            f"cluster; hybridr clean {quote(file['index'] + '#' + file['uuid'])} deletes it"
        )


def show_parts(session: Session, done: dict[str, Any], fate: str) -> None:
    """Print what is deleted with an index: its sidecars, and the requests that undeploy it."""
    for part in done["beside"]:
        session.output.line(f"{part}: {fate}")
    for request in done["requests"]:
        session.output.line(f"{request['method']} {request['path']}")


@verb(app, "clean")
def clean(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(help="Only files of this index, NAME or NAME#UUID.", show_default="all")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """List, then delete, files on this machine that contain document text: rejects, token caches."""
    from hybridr.files.remembered import delete_texts, local_texts

    files = local_texts(name)
    for file in files:
        remark = "" if file.ours else ": stays, its content is not what hybridr wrote"
        session.output.line(f"{file.path} ({file.kind}, {file.bytes:,} bytes){remark}")
    deletable = [file for file in files if file.ours]
    if deletable and not dry_run:
        session.confirm(f"delete {len(deletable)} of them?", yes)
        deletable = delete_texts(deletable, of_one_name=not (name and yes))
    session.output.result({"files": [file.to_json() for file in deletable], "deleted": not dry_run})
    session.output.line("nothing was deleted" if dry_run or not deletable else f"{len(deletable)} deleted")
