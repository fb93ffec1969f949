"""Which index a name stands for, how its alias moves, and how its record is changed."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from ..errors import ClusterError, DataError, FingerprintMismatch, NotFound
from .connection import Cluster, path_of
from .record import ROLE, Event, IndexInfo, Record
from .writing import rejects_of

MAX_EVENTS = 50
MAX_REFUSED = 1000


def is_destination(info: IndexInfo) -> bool:
    """Tell whether hybridr made this index to hold vectors."""
    return info.record.role == ROLE


def is_in_place(info: IndexInfo) -> bool:
    """Tell whether the vectors were written into the user's own index."""
    return is_destination(info) and info.record.in_place


def is_copy(info: IndexInfo) -> bool:
    """Tell whether an index holds vectors itself that were written into another: a copy, with its record."""
    return is_in_place(info) and info.record.source_uuid != info.uuid


def command_for(info: IndexInfo) -> str:
    """Give the command that goes on where a reindex of this index stopped."""
    in_place = " --in-place" if is_in_place(info) else ""
    return f"hybridr reindex {info.record.source or info.name}{in_place}"


def destinations(cluster: Cluster, source: IndexInfo | str) -> list[IndexInfo]:
    """List the destinations of a source index, oldest first."""
    name = source if isinstance(source, str) else source.name
    found = [info for info in cluster.indices(f"{name}-hybridr-*") if readable(info)]
    return sorted(
        (info for info in found if is_destination(info) and info.record.source == name), key=number_of
    )


def readable(info: IndexInfo) -> bool:
    """Tell whether an index's record can be read: one that cannot is nobody's destination."""
    try:
        return info.record is not None
    except DataError:
        return False


def number_of(info: IndexInfo) -> int:
    """Read the running number of a destination."""
    match = re.search(r"-hybridr-(\d+)$", info.name)
    return int(match.group(1)) if match else 0


def resolve(cluster: Cluster, name: str) -> IndexInfo:
    """Give the index that searches of `name` should ask.

    A destination, its alias, or its source stand for the destination that the alias points to; an index
    without vectors (never reindexed, or rolled back) stands for itself. Raises NotFound.
    """
    info = cluster.index_info(name)
    if is_destination(info):
        return info
    current = [found for found in destinations(cluster, info) if found.record.alias in found.aliases]
    return current[-1] if current else info


def default_alias(name: str) -> str:
    """Name the alias of a source when the user gives none."""
    return f"{name}-hybridr"


def alias_target(cluster: Cluster, alias: str) -> IndexInfo | None:
    """Give the one index behind an alias, None when there is no such alias.

    Raises ClusterError when the name is an index, or the alias stands for several.
    """
    found = cluster.indices(alias)
    if not found:
        return None
    if any(info.name == alias for info in found):
        raise ClusterError(f"'{alias}' is an index, not an alias", hint="--alias NAME chooses another name")
    if len(found) > 1:
        names = ", ".join(info.name for info in found)
        raise ClusterError(
            f"alias '{alias}' stands for several indices: {names}",
            hint="take it off all but one of them, or choose another --alias",
        )
    return found[0]


def switch(cluster: Cluster, alias: str, old: IndexInfo | None, new: str) -> None:
    """Point the alias to `new` in one atomic step, keeping its filter and routing.

    `must_exist` makes the whole step fail if somebody moved the alias meanwhile; without it the alias
    would end on two indices. Raises ClusterError unless it was moved to `new`: by another process with the
    same work, or by this very request, whose answer was lost.
    """
    try:
        cluster.request("POST", "/_aliases", {"actions": switch_actions(alias, old, new)})
    except NotFound:
        target = alias_target(cluster, alias)
        if target is None or target.name != new:
            where = f"moved to '{target.name}'" if target else "removed"
            raise ClusterError(
                f"somebody else has {where} the alias '{alias}' meanwhile", hint="run the same command again"
            ) from None


def switch_actions(alias: str, old: IndexInfo | None, new: str) -> list[dict[str, Any]]:
    """Build the actions of `switch`."""
    actions: list[dict[str, Any]] = [{"add": {"index": new, "alias": alias, **alias_options(alias, old)}}]
    if old is not None and old.name != new:
        actions.insert(0, {"remove": {"index": old.name, "alias": alias, "must_exist": True}})
    return actions


def alias_options(alias: str, old: IndexInfo | None) -> dict[str, Any]:
    """Keep what an existing alias was defined with."""
    return dict(old.aliases.get(alias, {})) if old else {}


def write_record(cluster: Cluster, index: str, **changes: Any) -> None:
    """Change values of an index's record; what others keep in `_meta` stays. Raises DataError."""
    info = cluster.index_info(index)
    put_record(cluster, info, info.record.changed(**changes))


def put_record(cluster: Cluster, info: IndexInfo, record: Record) -> None:
    """Put a record in the place of the one that an index has."""
    cluster.request("PUT", path_of(info.name, "_mapping"), {"_meta": info.meta_with(record)})


def record_event(cluster: Cluster, index: str, event: Event, details: dict[str, Any], **changes: Any) -> None:
    """Add an event to the history of a destination, with other changes of its record."""
    happened = {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "event": event, **details}
    history = (*cluster.index_info(index).record.history, happened)[-MAX_EVENTS:]
    write_record(cluster, index, **changes, history=history)


def refused_ids(info: IndexInfo) -> list[str]:
    """List the documents that a destination refused, by its own record (up to 1,000) and this machine's."""
    return sorted({*info.record.refused, *rejects_of(info.name).ids()})


def free_name(cluster: Cluster, source: str) -> str:
    """Name the next destination of a source."""
    taken = [number_of(info) for info in cluster.indices(f"{source}-hybridr-*")]
    return f"{source}-hybridr-{max(taken, default=0) + 1}"


def check_fingerprint(fingerprint: str, info: IndexInfo) -> None:
    """Raise FingerprintMismatch unless the encoder wrote the vectors of this index."""
    wanted = info.record.encoder
    if wanted != fingerprint:
        again = f"hybridr remove {info.name}" if is_in_place(info) else command_for(info)
        raise FingerprintMismatch(
            f"the vectors of '{info.name}' were written by encoder {wanted[:12]}, "
            f"the query encoder is {fingerprint[:12]}",
            hint=f"--encoder FOLDER of {wanted[:12]}, or: {again}",
        )
