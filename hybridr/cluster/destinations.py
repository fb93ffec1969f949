"""Finds the index that holds the vectors of a source index, and changes the record in an index.

A source is a user's index; a destination is an index into which hybridr wrote its vectors.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, TypeAlias

from ..errors import (
    AccessDenied,
    ClusterError,
    DataError,
    FingerprintMismatch,
    HybridrError,
    NotFound,
    Unreachable,
)
from .connection import Cluster, IndexLookup, IndexView, path_of
from .record import MARKS, ROLE, Event, IndexInfo, Record, sole_index, turn_prefix

MAX_EVENTS = 50
MOVES = ("switched", "rolled back")
"""Events that made clients search an index."""
MAX_NAME_BYTES = 255  # bytes
TURN_S, SETTLE_S = 1.0, 2.5
"""Longest time between reading a record and writing it; time after which no other run can still write an
older copy."""
PATIENCE_S = 30.0
Change: TypeAlias = Callable[[Record], Record]
DROPPED = "failed to process cluster event"
PRECIOUS = {"deployment", "experiment", "memory", "rules", "tuning"}
"""Parts of a record that no later run can restore. After changing one, a writer waits SETTLE_S and checks."""
MAX_MARKS = 16
BLOCKED = "cluster_block_exception"


def is_destination(info: IndexInfo) -> bool:
    """Return whether hybridr wrote vectors into this index, by its record."""
    return info.record.role == ROLE


def is_in_place(info: IndexInfo) -> bool:
    """Return whether the vectors were written into the user's own index."""
    return is_destination(info) and info.record.in_place


def is_copy(info: IndexInfo) -> bool:
    """Return whether an index is a copy of another index with vectors in place."""
    return is_in_place(info) and info.record.source_uuid != info.uuid


def reindex_command(info: IndexInfo) -> str:
    """Return the `hybridr reindex` command line that continues the interrupted reindex of this index."""
    in_place = " --in-place" if is_in_place(info) else ""
    return f"hybridr reindex {shlex.quote(info.record.source or info.name)}{in_place}"


def destinations(cluster: IndexLookup, source: IndexInfo) -> list[IndexInfo]:
    """Return the indices that hold vectors of a source index, oldest first.

    Raises ClusterError if one of them is closed, since clients' writes in it cannot be read.
    """
    return [
        require_open(info)
        for info in claiming_indices(cluster, source.name)
        if is_destination_of(info, source)
    ]


def indices_with_vectors(cluster: Cluster) -> list[IndexInfo]:
    """Return the indices into which hybridr wrote vectors, hidden and closed ones too, by name.

    Of indices with vectors in place, those whose name begins with a dot are left out if the user may not see
    the cluster's own.
    """
    by_name = {info.name: info for info in cluster.indices(destination_pattern("*"))}
    params = {"expand_wildcards": "all", "filter_path": "*.mappings._meta.hybridr.role"}
    try:
        roles = cluster.request("GET", path_of("*", "_mapping"), params=params)
    except AccessDenied:
        roles = cluster.request("GET", path_of("*,-.*", "_mapping"), params=params)
    names = roles.keys() - by_name.keys()
    by_name |= {info.name: info for name in names for info in cluster.indices(name)}
    readable = [info for _, info in sorted(by_name.items()) if has_readable_record(info)]
    return [info for info in readable if is_destination(info)]


def require_open(info: IndexInfo) -> IndexInfo:
    """Return an index unchanged. Raises ClusterError if it is closed."""
    return replace(sole_index(info.name, [info]), scope=info.scope)


def claiming_indices(cluster: IndexLookup, source: str) -> list[IndexInfo]:
    """Return the indices whose own record says that they hold vectors of a source, oldest first."""
    infos = [info for info in cluster.indices(destination_pattern(source)) if has_readable_record(info)]
    claims = [info for info in infos if is_destination(info) and info.record.source == source]
    return sorted(claims, key=generation_number)


def view_of(cluster: Cluster, name: str) -> IndexView:
    """Return a view of an index or alias, of its source, and of all indices with vectors of that source."""
    view = IndexView.of(cluster, name, destination_pattern(name))
    sources = {info.record.source or info.name for info in view.indices(name) if has_readable_record(info)}
    if len(sources) == 1 and (source := sources.pop()) != name:
        return IndexView.of(cluster, name, source, destination_pattern(source))
    return view


def destination_pattern(source: str) -> str:
    """Return the pattern that matches the names of all indices with vectors of a source."""
    return f"{source}-hybridr-*"


def is_destination_of(info: IndexInfo, source: IndexInfo) -> bool:
    """Return whether an index holds the vectors of this source, and the source's record lists it.

    Users who may create indices can write any record, so the source lists the uuids of its destinations. If
    it lists none (hybridr may not write there), the index's own record, which names the source's uuid, is
    trusted.
    """
    uuids = source.record.destinations
    return info.record.source_uuid == source.uuid and (not uuids or info.uuid in uuids)


def is_restored(info: IndexInfo, source: IndexInfo) -> bool:
    """Return whether the source was restored from a snapshot after the vectors of this index were made.

    Its documents then have other sequence numbers than those stored with the vectors. Always False for
    vectors in place, which were restored together with their documents.
    """
    return not info.record.in_place and info.record.source_lineage not in (None, source.lineage)


def is_of_replaced_source(info: IndexInfo, source: IndexInfo) -> bool:
    """Return whether an index holds vectors of an index that its owner has replaced by this source.

    The replaced index had the same name and was deleted and created again. Or an alias of the owner pointed
    to it before, and hybridr's alias is named after that alias.
    """
    record = info.record
    has_alias = any(default_alias(alias) == record.alias for alias in source.aliases)
    matches = record.source == source.name or has_alias
    return is_destination(info) and not record.in_place and record.source_uuid != source.uuid and matches


def is_unlisted(info: IndexInfo, source: IndexInfo) -> bool:
    """Return whether an index says that it holds vectors of this source, or of one that this source replaced,
    but the source does not list it.

    Besides a forged record, this is what an index becomes that an owner or a lifecycle policy shrinks, clones
    or restores from a snapshot: it gets another uuid.
    """
    if is_of_replaced_source(info, source):
        return True
    claims = is_destination(info) and not info.record.in_place and info.record.source == source.name
    return claims and not is_destination_of(info, source)


def require_source_index(cluster: IndexLookup, info: IndexInfo) -> IndexInfo:
    """Return the source index of a destination.

    Raises NotFound if the source does not exist; DataError if it is another index of that name, if its record
    does not list this destination, or if it lists none and several indices claim to be the one in use.
    """
    name = info.record.source
    if not (infos := cluster.indices(name)):
        hint = f"restore it from a snapshot, then: hybridr reindex {shlex.quote(name)}"
        raise NotFound(f"'{name}', the source of '{info.name}', is gone", hint=hint)
    source = sole_index(name, infos)
    if info.record.source_uuid != source.uuid:
        raise DataError(
            f"'{name}' is not the index that '{info.name}' was made from, but a later one of that name",
            hint=f"hybridr reindex {shlex.quote(name)}",
        )
    require_known(info, source)
    require_single(indices_in_use(destinations(cluster, source)), source)
    return source


def require_known(info: IndexInfo, source: IndexInfo) -> None:
    """Raise DataError if the source does not list this destination, for instance if it is a clone of one."""
    if not is_destination_of(info, source):
        raise DataError(
            f"'{info.name}' says that it holds the vectors of '{source.name}', which does not know it",
            hint=f"hybridr status {shlex.quote(source.name)}   lists what belongs to it",
        )


def indices_in_use(indices: Iterable[IndexInfo]) -> list[IndexInfo]:
    """Return those of the indices that have the alias named in their record."""
    return [info for info in indices if info.record.alias in info.aliases]


def require_single(candidates: Sequence[IndexInfo], source: IndexInfo) -> None:
    """Raise DataError for several candidates for the destination in use if the source's record lists none."""
    if len(candidates) > 1 and not source.record.destinations:
        names = ", ".join(info.name for info in candidates)
        raise DataError(
            f"several indices claim to hold the vectors of '{source.name}': {names}",
            hint="remove the alias from the wrong one, or delete that index",
        )


def register_destination(cluster: Cluster, info: IndexInfo, view: IndexView | None = None) -> None:
    """Write the uuid of a destination into its source's record.

    `view`, a description of the source and its indices, saves a request. The first call also writes the
    earlier generations to which a rollback can return. If writing is forbidden, nothing is written if the
    source lists no destination yet; else AccessDenied is raised or, for a block, ClusterError.
    """
    view = view or IndexView.of(cluster, info.record.source, destination_pattern(info.record.source))
    source = view.index_info(info.record.source)
    if info.uuid in source.record.destinations:
        return
    by_name = {candidate.name: candidate for candidate in destinations(view, source)}
    queue, earlier_uuids = indices_in_use(by_name.values()), list[str]()
    while queue:
        candidate = queue.pop()
        earlier_uuids.append(candidate.uuid)
        if previous := by_name.pop(candidate.record.previous, None):
            queue.append(previous)

    def with_destination(record: Record) -> Record:
        """Return the record with the uuid of the destination."""
        uuids = (*(record.destinations or earlier_uuids), info.uuid)
        return record.changed(destinations=tuple(dict.fromkeys(uuids)))

    try:
        rewrite_in_view(view, source.name, with_destination)
    except ClusterError as error:
        if source.record.destinations or not is_forbidden(error):
            raise


def is_forbidden(error: ClusterError) -> bool:
    """Return whether a request failed because of a missing right or a block of the index."""
    return isinstance(error, AccessDenied) or error.kind == BLOCKED


def forget_destinations(cluster: Cluster, source: IndexInfo, gone: Collection[str]) -> None:
    """Remove the uuids of deleted indices from a source's record; they stay without the right to write."""
    if not set(source.record.destinations) & set(gone):
        return

    def without(record: Record) -> Record:
        """Return the record without the uuids of the deleted indices."""
        remaining = tuple(uuid for uuid in record.destinations if uuid not in gone)
        return record.changed(destinations=remaining) if remaining else record.without("destinations")

    try:
        rewrite(cluster, source.name, without)
    except ClusterError as error:
        if not is_forbidden(error):
            raise


def has_readable_record(info: IndexInfo) -> bool:
    """Return whether hybridr's record in an index can be read without an error."""
    try:
        return info.record is not None
    except DataError:
        return False


def generation_number(info: IndexInfo) -> int:
    """Return the generation number at the end of a destination's name; 0 without one."""
    match = re.search(r"-hybridr-(\d+)$", info.name)
    return int(match.group(1)) if match else 0


def resolve(cluster: IndexLookup, name: str, *, whole_index: bool = False) -> IndexInfo:
    """Return the index that a search of `name` uses, with the scope of that name.

    For a source this is its destination in use, or the source itself without one. For another name it is the
    index of that name. Raises NotFound, ClusterError as `sole_index`, DataError if several indices claim the
    source, and with `whole_index` what `require_whole` raises.
    """
    info = cluster.index_info(name)
    if not is_destination(info):
        current = indices_in_use(
            candidate
            for candidate in claiming_indices(cluster, info.name)
            if is_destination_of(candidate, info)
        )
        require_single(current, info)
        info = replace(require_open(current[-1]), scope=info.scope) if current else info
    return require_whole(info, name) if whole_index else info


def require_whole(info: IndexInfo, name: str) -> IndexInfo:
    """Return the index unchanged. Raises ClusterError if `name` is an alias that shows only a part of it.

    The alias named in the index's record counts as the whole index.
    """
    if info.scope and name != info.record.alias:
        kind = "a filter" if info.scope.filter else "a routing"
        raise ClusterError(
            f"'{name}' is an alias with {kind}: this works on all of '{info.name}' only, not on a part of it",
            hint=f"name the index: {info.name}",
        )
    return info


def write_record(cluster: Cluster, index: str, **changes: Any) -> IndexInfo:
    """Change some values of the record in an index and return the index's new description.

    Other values in `_meta` stay. Raises DataError for unknown names and wrong values, and ClusterError if
    other writers keep overwriting the change.
    """
    settled = bool(PRECIOUS & changes.keys())
    return rewrite(cluster, index, lambda record: record.changed(**changes), settled=settled)


def record_event(
    cluster: Cluster, index: str, event: Event, details: dict[str, Any], **changes: Any
) -> IndexInfo:
    """Add an event to an index's history, and change other values of its record; return the description."""
    settled = bool(PRECIOUS & changes.keys())
    return rewrite(cluster, index, event_change(event, details, **changes), settled=settled)


def event_change(event: Event, details: dict[str, Any], **changes: Any) -> Change:
    """Return a change of a record that appends an event to its history and sets other values.

    The history keeps the last `MAX_EVENTS` events, and always the newest of `MOVES`.
    """
    entry = {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "event": event, **details}

    def changed(record: Record) -> Record:
        """Return the record with the event."""
        history = (*record.history, entry)
        moves = [number for number, past in enumerate(history) if past["event"] in MOVES]
        start = len(history) - MAX_EVENTS
        old_moves = [history[number] for number in moves[-1:] if number < start]
        recent = history[max(0, start + len(old_moves)) :]
        return record.changed(**changes, history=(*old_moves, *recent))

    return changed


def rewrite(cluster: Cluster, index: str, change: Change, *, settled: bool = False) -> IndexInfo:
    """Apply `change` to the record of an index, as `rewrite_in_view` does; return the new description."""
    return rewrite_in_view(IndexView.of(cluster, index), index, change, settled=settled).index_info(index)


def rewrite_in_view(view: IndexView, index: str, change: Change, *, settled: bool = False) -> IndexView:
    """Apply `change` to the record of an index, and check that no other process overwrote the result.

    Return a new view of the same indices. `view` is fetched again if it is older than `TURN_S`. Raises
    ClusterError if others keep overwriting the change for `PATIENCE_S`.

    OpenSearch writes a mapping unconditionally. A process that read the old record can overwrite this change,
    unless `writing_turn` keeps it out. So each write adds a random mark next to the record, and later writes
    keep that mark. If the mark is missing afterwards, the change is repeated. With `settled` the check waits
    until no other process can still write an older copy.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        new_info = put_changed(view, index, change)
        if settled and new_info:
            time.sleep(SETTLE_S)
        view = view.fetch_again()
        if new_info and has_last_mark(new_info, view):
            return view
    raise ClusterError(f"other writers keep overwriting the record of '{index}'", hint="run it again")


def begin_rewrite(view: IndexView, index: str, change: Change) -> tuple[IndexInfo, Callable[[], IndexView]]:
    """Apply `change` to the record of an index, but leave the check of `rewrite_in_view` to the caller.

    Return the new description, and a function that checks, repeats a lost change, and returns a new view.
    """
    new_info = put_changed(view, index, change)
    if new_info is None:
        view = rewrite_in_view(view, index, change)
        return view.index_info(index), view.fetch_again

    def check() -> IndexView:
        """Return a new view; repeat the change if another process overwrote it."""
        new_view = view.fetch_again()
        return new_view if has_last_mark(new_info, new_view) else rewrite_in_view(new_view, index, change)

    return new_info, check


def put_changed(view: IndexView, index: str, change: Change) -> IndexInfo | None:
    """Write the changed record of an index: in a writing turn if it has one, else within `TURN_S` of reading.

    Return the new description; None if another writer interfered or it took too long, so that the caller must
    try again.
    """
    with writing_turn(view, index) as turn:
        if turn or time.monotonic() - view.requested_at > TURN_S:
            view = view.fetch_again()
        info = view.index_info(index)
        record = change(info.record)
        if (turn and info.turns != (turn,)) or (not turn and time.monotonic() - view.requested_at > TURN_S):
            return None
        try:
            return put_record(view.cluster, info, record, turn)
        except NotFound:
            if turn:
                return None
            raise
        except Unreachable as failure:
            if DROPPED not in failure.message:
                raise
            return None


@contextmanager
def writing_turn(view: IndexView, index: str) -> Iterator[str]:
    """Yield a new alias of a source, through which its record is written; the next writer removes it.

    A process that slept between reading and writing the record cannot overwrite it, since its alias is gone.
    Yields "" for a destination, for an index whose name is too long, and without the right to change
    aliases.
    """
    info = view.index_info(index)
    turn = f"{turn_prefix(info.name)}{secrets.token_hex(2)}"
    if is_destination(info) or len(turn.encode()) > MAX_NAME_BYTES:
        yield ""
        return
    if info.turns:  # another writer needs a moment more, or was killed
        time.sleep(secrets.randbelow(200) / 1000)
    actions = [{"remove": {"index": info.name, "alias": old, "must_exist": False}} for old in info.turns]
    new_alias = {"index": info.name, "alias": turn, "is_hidden": True}
    try:
        view.cluster.request("POST", "/_aliases", {"actions": [*actions, {"add": new_alias}]})
    except ClusterError as error:
        if not is_forbidden(error):
            raise
        yield ""
        return
    try:
        yield turn
    finally:
        with suppress(HybridrError):  # the next writer has removed it, or will
            view.cluster.request("DELETE", path_of(info.name, "_alias", turn))


def put_record(cluster: Cluster, info: IndexInfo, record: Record, turn: str = "") -> IndexInfo:
    """Write a record with a new random mark into an index's mapping; return the new description.

    The request uses the alias `turn`, if given, and the cluster drops it after `TURN_S`. An empty record
    removes record and marks.
    """
    meta = info.meta_with(record)
    if record.to_json():
        meta |= {MARKS: [*info.marks, secrets.token_hex(4)][-MAX_MARKS:]}
    params = {"cluster_manager_timeout": f"{round(TURN_S * 1000)}ms"}
    cluster.request("PUT", path_of(turn or info.name, "_mapping"), {"_meta": meta}, params)
    return replace(info, mappings={**info.mappings, "_meta": meta})


def has_last_mark(new_info: IndexInfo, view: IndexView) -> bool:
    """Return whether the index's mapping still has the mark of the last write, so no one overwrote it."""
    return not new_info.marks or new_info.marks[-1] in view.index_info(new_info.name).marks


def check_fingerprint(fingerprint: str, info: IndexInfo) -> None:
    """Raise FingerprintMismatch unless the encoder of this fingerprint wrote the vectors of the index."""
    expected = info.record.encoder
    if expected != fingerprint:
        in_place = f"hybridr remove {shlex.quote(info.name)}"
        command = in_place if is_in_place(info) else reindex_command(info)
        raise FingerprintMismatch(
            f"the vectors of '{info.name}' were written by encoder {expected[:12]}, "
            f"the query encoder is {fingerprint[:12]}",
            hint=f"--encoder FOLDER of {expected[:12]}, or: {command}",
        )


def default_alias(name: str) -> str:
    """Return the default name of a source's alias."""
    return f"{name}-hybridr"
