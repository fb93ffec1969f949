"""Which index a name stands for, how its record is changed, and how aliases move from one to another."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, TypeAlias

from ..errors import AccessDenied, ClusterError, DataError, FingerprintMismatch, NotFound, Unreachable
from .connection import Cluster, Describing, IndexView, path_of
from .record import MARKS, ROLE, Event, IndexInfo, Record

MAX_EVENTS = 50
NAMING_ROUNDS = 5
TURN_S, SETTLE_S = 1.0, 2.5
"""How long a change may wait at each end of the line; after which nobody writes what he read before."""
PATIENCE_S = 30.0
Change: TypeAlias = Callable[[Record], Record]
DROPPED = "failed to process cluster event"
PRECIOUS = {"deployment", "experiment", "memory", "rules", "tuning"}
"""What no later run would find out by itself: there it is worth waiting."""
MAX_MARKS = 16
BLOCKED = "cluster_block_exception"


def is_destination(info: IndexInfo) -> bool:
    """Return whether hybridr made this index to hold vectors."""
    return info.record.role == ROLE


def is_in_place(info: IndexInfo) -> bool:
    """Return whether the vectors were written into the user's own index."""
    return is_destination(info) and info.record.in_place


def is_copy(info: IndexInfo) -> bool:
    """Return whether an index is a copy: its vectors and its record were written into another index."""
    return is_in_place(info) and info.record.source_uuid != info.uuid


def command_for(info: IndexInfo) -> str:
    """Return the command that goes on where a reindex of this index stopped."""
    in_place = " --in-place" if is_in_place(info) else ""
    return f"hybridr reindex {info.record.source or info.name}{in_place}"


def destinations(cluster: Describing, source: IndexInfo) -> list[IndexInfo]:
    """List the destinations of a source index, oldest first."""
    return [info for info in claimants(cluster, source.name) if is_known_by(info, source)]


def claimants(cluster: Describing, source: str) -> list[IndexInfo]:
    """List the indices that say of themselves that they hold the vectors of a source, oldest first."""
    infos = [info for info in cluster.indices(generations_of(source)) if readable(info)]
    claims = [info for info in infos if is_destination(info) and info.record.source == source]
    return sorted(claims, key=number_of)


def generations_of(source: str) -> str:
    """Return the pattern of the names of all indices with the vectors of a source."""
    return f"{source}-hybridr-*"


def is_known_by(info: IndexInfo, source: IndexInfo) -> bool:
    """Return whether an index holds the vectors of this source by the source's word too.

    Anybody who may make an index can write into its record what he likes, so the source names its
    destinations by the uuids that the cluster gave them. Into a source that names none nobody was allowed to
    write: there the word of an index that knows the source's uuid is taken.
    """
    uuids = source.record.destinations
    return info.record.source_uuid == source.uuid and (not uuids or info.uuid in uuids)


def is_restored(info: IndexInfo, source: IndexInfo) -> bool:
    """Return whether the source was restored from a snapshot since the vectors of this index were made of it.

    Its operations have other numbers then than those that stand beside the vectors. Vectors in the index
    itself were restored with it.
    """
    return not info.record.in_place and info.record.source_lineage not in (None, source.lineage)


def require_belonging(cluster: Cluster, info: IndexInfo) -> IndexInfo:
    """Return the source of a destination.

    Raises NotFound when that is gone, DataError when it does not name this destination as its own.
    """
    name = info.record.source
    if not cluster.exists(name):
        raise NotFound(f"'{name}', the source of '{info.name}', is gone", hint="restore it first")
    source = cluster.index_info(name)
    if info.record.source_uuid != source.uuid:
        raise DataError(
            f"'{name}' is another index than the one '{info.name}' was made of",
            hint=f"hybridr reindex {name}",
        )
    if not is_known_by(info, source):
        raise DataError(
            f"'{info.name}' says that it holds the vectors of '{name}', which does not know it",
            hint=f"hybridr status {name}   lists what belongs to it",
        )
    require_single(live(destinations(cluster, source)), source)
    return source


def live(indices: Iterable[IndexInfo]) -> list[IndexInfo]:
    """Choose those that have the alias that their record names."""
    return [info for info in indices if info.record.alias in info.aliases]


def require_single(candidates: Sequence[IndexInfo], source: IndexInfo) -> None:
    """Raise DataError where several indices say that searches of a source go to them, and it names none."""
    if len(candidates) > 1 and not source.record.destinations:
        names = ", ".join(info.name for info in candidates)
        raise DataError(
            f"several indices say that they hold the vectors of '{source.name}': {names}",
            hint="take the alias off the wrong one, or delete it",
        )


def name_destination(cluster: Cluster, info: IndexInfo, view: Describing | None = None) -> bool:
    """Write into a source that this index holds its vectors; False where that is forbidden.

    A `view` of the source and its indices, taken just now, saves asking once more what stands there. The
    first time those come along on which the way back leads. Raises AccessDenied, or ClusterError for a block,
    where the source names others: this one would then not count.
    """
    for _ in range(NAMING_ROUNDS):  # somebody else may write the record at the same moment
        described, view = view or cluster, None
        is_named = put_name(cluster, info, described)
        if is_named is not None:
            return is_named
    raise ClusterError(f"others go on writing into the record of '{info.record.source}'", hint="try again")


def put_name(cluster: Cluster, info: IndexInfo, described: Describing) -> bool | None:
    """Write the name as `name_destination` does, and leave it to the caller to see that it is there.

    Return True where it is there already, None where it was written, False where that is forbidden.
    """
    source = described.index_info(info.record.source)
    names = source.record.destinations
    if info.uuid in names:
        return True
    named = list(names)
    if not named:
        by_name = {candidate.name: candidate for candidate in destinations(described, source)}
        waiting = live(by_name.values())
        while waiting:
            candidate = waiting.pop()
            named.append(candidate.uuid)
            if previous := by_name.pop(candidate.record.previous, None):
                waiting.append(previous)
    uuids = tuple(dict.fromkeys((*named, info.uuid)))
    try:
        put_record(cluster, source, source.record.changed(destinations=uuids))
    except ClusterError as error:
        if names or not (isinstance(error, AccessDenied) or error.kind == BLOCKED):
            raise
        return False
    return None


def forget_destinations(cluster: Cluster, source: IndexInfo, gone: Collection[str]) -> None:
    """Take the uuids of deleted indices out of a source's record; without the right to, they stay."""
    if not set(source.record.destinations) & set(gone):
        return

    def without(record: Record) -> Record:
        left = tuple(uuid for uuid in record.destinations if uuid not in gone)
        return record.changed(destinations=left) if left else record.without("destinations")

    try:
        rewrite(cluster, source.name, without)
    except ClusterError as error:
        if not (isinstance(error, AccessDenied) or error.kind == BLOCKED):
            raise


def readable(info: IndexInfo) -> bool:
    """Return whether an index's record can be read: one that cannot is nobody's destination."""
    try:
        return info.record is not None
    except DataError:
        return False


def number_of(info: IndexInfo) -> int:
    """Read the running number of a destination."""
    match = re.search(r"-hybridr-(\d+)$", info.name)
    return int(match.group(1)) if match else 0


def resolve(cluster: Cluster, name: str) -> IndexInfo:
    """Return the index that searches of `name` should ask.

    A destination, its alias, or its source stand for the destination that the alias points to; an index
    without vectors (never reindexed, or rolled back) stands for itself. The scope of the name goes along.
    Raises NotFound, DataError for a source that several indices claim.
    """
    info = cluster.index_info(name)
    if is_destination(info):
        return info
    current = live(destinations(cluster, info))
    require_single(current, info)
    return replace(current[-1], scope=info.scope) if current else info


def resolve_whole(cluster: Cluster, name: str) -> IndexInfo:
    """Resolve a name for work on a whole index. Raises as `resolve` and `require_whole`."""
    return require_whole(resolve(cluster, name), name)


def require_whole(info: IndexInfo, name: str) -> IndexInfo:
    """Return an index unless its name shows a part of it only. Raises ClusterError.

    The alias that a reindex made or moved stands for the whole index all the same.
    """
    if info.scope and name != info.record.alias:
        kind = "a filter" if info.scope.filter else "a routing"
        raise ClusterError(
            f"'{name}' is an alias with {kind}: this works on all of '{info.name}', which it shows in part",
            hint=f"name the index: {info.name}",
        )
    return info


def resolve_complete(cluster: Cluster, name: str, *, whole: bool = True) -> IndexInfo:
    """Return the index that searches of `name` ask, which holds all its vectors. Raise DataError.

    With `whole` also raise what `require_whole` raises.
    """
    info = resolve_whole(cluster, name) if whole else resolve(cluster, name)
    if is_destination(info):
        if info.record.state != "complete":
            raise DataError(f"'{name}' has no complete vectors", hint=command_for(info))
        return info
    complete = [unused.name for unused in destinations(cluster, info) if unused.record.state == "complete"]
    if complete:
        raise DataError(
            f"'{name}' has no complete vectors that are searched: no alias points to {', '.join(complete)}",
            hint=f"hybridr reindex {name}   brings them up to date and moves the alias",
        )
    raise DataError(f"'{name}' has no complete vectors", hint=f"hybridr reindex {name}")


def write_record(cluster: Cluster, index: str, **changes: Any) -> IndexInfo:
    """Change values of an index's record; what others keep in `_meta` stays. Return the index as it is then.

    Raises DataError.
    """
    settled = bool(PRECIOUS & changes.keys())
    return rewrite(cluster, index, lambda record: record.changed(**changes), settled=settled)


def record_event(
    cluster: Cluster, index: str, event: Event, details: dict[str, Any], **changes: Any
) -> IndexInfo:
    """Add an event to the history of a destination, with other changes of its record; return the index."""
    settled = bool(PRECIOUS & changes.keys())
    return rewrite(cluster, index, with_event(event, details, **changes), settled=settled)


def with_event(event: Event, details: dict[str, Any], **changes: Any) -> Change:
    """Return the change that adds an event to a record's history, with other changes."""
    happened = {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "event": event, **details}
    return lambda record: record.changed(**changes, history=(*record.history, happened)[-MAX_EVENTS:])


def rewrite(cluster: Cluster, index: str, change: Change, *, settled: bool = False) -> IndexInfo:
    """Do as `rewrite_in_view` with an index alone, and return it as it is then."""
    return rewrite_in_view(IndexView.of(cluster, index), index, change, settled=settled).index_info(index)


def rewrite_in_view(view: IndexView, index: str, change: Change, *, settled: bool = False) -> IndexView:
    """Put what `change` makes of an index's record in its place, and see that nobody wrote over it.

    Return the view as it is then. The one that is passed is taken anew unless it is younger than `TURN_S`.

    OpenSearch takes a mapping without a condition: another who read the record before can write over this.
    Hence each write leaves a mark beside the record, and all later ones keep it. Where it is missing, the
    change is made anew; with `settled` that is seen to when nobody can still write what he read before.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        written = put_changed(view, index, change)
        if settled and written:
            time.sleep(SETTLE_S)
        view = view.again()
        if written and is_kept(written, view):
            return view
    raise ClusterError(f"others go on writing into the record of '{index}'", hint="try again")


def begin_rewrite(view: IndexView, index: str, change: Change) -> tuple[IndexInfo, Callable[[], IndexView]]:
    """Do as `rewrite_in_view`, but leave it to the caller when to see that nobody wrote over the change.

    Return the index as it is then, and what looks at the view once more and makes up for a lost change.
    """
    written = put_changed(view, index, change)
    if written is None:
        view = rewrite_in_view(view, index, change)
        return view.index_info(index), view.again

    def check() -> IndexView:
        now = view.again()
        return now if is_kept(written, now) else rewrite_in_view(now, index, change)

    return written, check


def put_changed(view: IndexView, index: str, change: Change) -> IndexInfo | None:
    """Change a record within `TURN_S`; return the index as it is then, None where it took too long."""
    if time.monotonic() - view.taken > TURN_S:
        view = view.again()
    info = view.index_info(index)
    record = change(info.record)
    if time.monotonic() - view.taken > TURN_S:
        return None
    try:
        return put_record(view.cluster, info, record)
    except Unreachable as failure:
        if DROPPED not in failure.message:
            raise
        return None


def put_record(cluster: Cluster, info: IndexInfo, record: Record) -> IndexInfo:
    """Put a record in the place of the one that was just read; return the index with it and a new mark.

    An empty record leaves nothing, no mark either. The cluster drops what it cannot do within `TURN_S`.
    """
    meta = info.meta_with(record)
    if record.to_json():
        meta |= {MARKS: [*info.marks, secrets.token_hex(4)][-MAX_MARKS:]}
    turn = {"cluster_manager_timeout": f"{round(TURN_S * 1000)}ms"}
    cluster.request("PUT", path_of(info.name, "_mapping"), {"_meta": meta}, turn)
    return replace(info, mappings={**info.mappings, "_meta": meta})


def is_kept(written: IndexInfo, view: IndexView) -> bool:
    """Return whether the mark of the last write into an index's record is still there."""
    return not written.marks or written.marks[-1] in view.index_info(written.name).marks


def check_fingerprint(fingerprint: str, info: IndexInfo) -> None:
    """Raise FingerprintMismatch unless the encoder wrote the vectors of this index."""
    expected = info.record.encoder
    if expected != fingerprint:
        again = f"hybridr remove {info.name}" if is_in_place(info) else command_for(info)
        raise FingerprintMismatch(
            f"the vectors of '{info.name}' were written by encoder {expected[:12]}, "
            f"the query encoder is {fingerprint[:12]}",
            hint=f"--encoder FOLDER of {expected[:12]}, or: {again}",
        )


def default_alias(name: str) -> str:
    """Name the alias of a source when the user gives none."""
    return f"{name}-hybridr"


def alias_target(cluster: Describing, alias: str) -> IndexInfo | None:
    """Return the one index behind an alias, None when there is no such alias.

    Raises ClusterError when the name is an index, or the alias stands for several.
    """
    infos = cluster.indices(alias)
    if not infos:
        return None
    if any(info.name == alias for info in infos):
        raise ClusterError(f"'{alias}' is an index, not an alias", hint="--alias NAME chooses another name")
    if len(infos) > 1:
        names = ", ".join(info.name for info in infos)
        raise ClusterError(
            f"alias '{alias}' stands for several indices: {names}",
            hint="take it off all but one of them, or choose another --alias",
        )
    return infos[0]


def switch(
    cluster: Cluster, alias: str, old: IndexInfo | None, new: str, source: IndexInfo | None = None
) -> None:
    """Point the alias and its `companions` to `new` in one atomic step, keeping filter and routing.

    With `source` it keeps them only where they were given to the source, or to what holds its vectors.

    `must_exist` makes the whole step fail if somebody moved the alias meanwhile; without it the alias
    would end on two indices. Raises ClusterError unless it was moved to `new`: by another process with the
    same work, or by this very request, whose answer was lost.
    """
    try:
        cluster.request("POST", "/_aliases", {"actions": switch_actions(alias, old, new, source)})
    except NotFound:
        target = alias_target(cluster, alias)
        if target is None or target.name != new:
            where = f"moved to '{target.name}'" if target else "removed"
            raise ClusterError(
                f"somebody else has {where} the alias '{alias}' meanwhile", hint="run the same command again"
            ) from None


def switch_actions(
    alias: str, old: IndexInfo | None, new: str, source: IndexInfo | None = None
) -> list[dict[str, Any]]:
    """Build the actions of `switch`."""
    aliases = {} if old is None or not has_ties(old, source) else old.aliases
    moved = (alias, *companions(alias, old, new, source))
    actions: list[dict[str, Any]] = []
    if old is not None and old.name != new:
        actions += [{"remove": {"index": old.name, "alias": alias, "must_exist": True}} for alias in moved]
    return [*actions, *({"add": {"index": new, "alias": alias, **aliases.get(alias, {})}} for alias in moved)]


def has_ties(old: IndexInfo, source: IndexInfo | None) -> bool:
    """Return whether an index is the source or holds its vectors; of another one nothing is kept."""
    return source is None or old.uuid == source.uuid or is_known_by(old, source)


def companions(
    alias: str, old: IndexInfo | None, new: str, source: IndexInfo | None = None
) -> tuple[str, ...]:
    """Name the aliases that go along when an alias leaves an index: those that show a part of it.

    They are the application's: none leaves its source along with an alias that hybridr named.
    """
    if old is None or old.name == new or not has_ties(old, source):
        return ()
    if alias.endswith(default_alias("")) and not is_destination(old):
        return ()
    return tuple(name for name in partial_aliases(old) if name != alias)


def partial_aliases(info: IndexInfo) -> dict[str, list[str]]:
    """Name the aliases that show a part of an index only, each with what narrows it."""
    named = {name: narrowing(definition) for name, definition in sorted(info.aliases.items())}
    return {name: narrowed for name, narrowed in named.items() if narrowed}


def narrowing(definition: Mapping[str, Any]) -> list[str]:
    """Return the entries of a definition by which an alias shows or writes only a part of its index."""
    return [part for part in ("filter", "index_routing", "search_routing") if definition.get(part)]
