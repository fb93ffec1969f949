"""Rollback: points the alias back to the index that it stood for before, and copies writes of clients to the
source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from ..cluster.aliases import companions, moved_here, previous_of, switch, switch_actions
from ..cluster.connection import Cluster, Describing, as_json, path_of
from ..cluster.destinations import (
    destinations,
    is_destination,
    is_restored,
    record_event,
    require_belonging,
    resolve,
    write_record,
)
from ..cluster.mappings import (
    add_missing_fields,
    alias_obstacles,
    carry_over,
    missing_fields,
    require_no_obstacle,
)
from ..cluster.reading import (
    Key,
    Position,
    Share,
    SourceDocument,
    documents_in_pages,
    groups_of,
    hidden_operations,
    hit_parts,
    hits_by_id,
    read_pages,
    settled_position,
    source_document,
)
from ..cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, IndexInfo
from ..cluster.routing import shards_in
from ..cluster.semantic import as_stored_with
from ..cluster.writing import Action, Rejects, bulk_action, with_room, write_past_pipelines
from ..errors import AccessDenied, ClusterError, DataError, NotFound, quantity
from ..files.local import fingerprint
from ..files.remembered import REJECTS, file_of_index
from .client_writes import (
    NOTHING_CARRIED,
    PAGE,
    WRITTEN,
    ClientWrites,
    Pair,
    Writes,
    find_writes,
    outdated,
    own_fields,
    refusal_by,
    require_none,
    written_since,
)
from .filling import MAX_PASSES
from .job import Stored, look_up, replacement_options
from .lag import vanished_pages
from .reindexing import synced_position
from .targets import target_of

MOST_SPANS = 200  # of a shard, in a record


def rollback(
    cluster: Cluster,
    name: str,
    *,
    copy_back: bool = False,
    discard: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Point the alias of `name` back to what it stood for before the last switch; return what was done.

    An older index with vectors first gets what its source has changed since, without vectors. With
    `copy_back`, writes of clients in the index that is left are copied to the source, before the switch and
    once more after it; with `discard` they stay behind. The result has alias, from, to, along (aliases
    that move too), dropped, the alias actions, counts of writes and of returned documents, and `behind`, what
    an older index lacks. With `dry_run` nothing is changed, and `refusal` holds the error that would be
    raised. `stays` maps aliases that the index keeps to what moves them. Raises NotFound if nothing was
    switched, ClusterError for a block of an index, and if there are such writes and neither `copy_back` nor
    `discard` was given.
    """
    current = way_back(cluster, name)
    alias, previous = current.record.alias, current.record.previous
    to_source = previous == current.record.source
    older = cluster.index_info(previous)
    before = None if to_source else Older(cluster, older, current)
    seen = settled_position(cluster, current.name)
    writes = find_writes(cluster, current, before.info if before else None)
    if before is not None:
        writes.deleted |= {document.key for page in before.deleted_later() for document in page}

    def check() -> None:
        """Raise ClusterError if a block forbids the move, or if writes of clients have no fate."""
        blocks = [block for info in (current, older) for block in alias_obstacles(cluster, info)]
        require_no_obstacle(blocks, f"the way back of '{alias}'")
        if not (copy_back or discard):
            hint = f"--copy-back copies them to '{current.record.source}' first, --discard leaves them behind"
            require_none(writes, current, previous, hint)

    refusal = refusal_by(check, dry_run=dry_run)
    actions = switch_actions(alias, current, previous)
    along = companions(alias, current, previous)
    given_up = None if copy_back or discard else seen
    returned = Writes() if dry_run else leave(cluster, current, before, copy_back, given_up)
    return {
        "alias": alias,
        "from": current.name,
        "to": previous,
        "along": along,
        "stays": {name: way_of(current, name) for name in sorted(current.aliases.keys() - {alias, *along})},
        "actions": actions,
        "writes": writes.counts(),
        "returned": returned.counts(),
        "refusal": refusal,
        "behind": None if to_source else shortfall(cluster, cluster.index_info(previous)),
    }


def way_of(info: IndexInfo, alias: str) -> str:
    """Return the command or request that moves an alias which stays on an index with vectors."""
    if alias in info.record.aliases:
        return f"hybridr rollback {alias}"
    source = info.record.source
    moves = [{"remove": {"index": info.name, "alias": alias}}, {"add": {"index": source, "alias": alias}}]
    return f"POST /_aliases {as_json({'actions': moves}).decode()}"


def shortfall(cluster: Cluster, info: IndexInfo) -> dict[str, int] | None:
    """Return what an older index lacks until the next `sync`: inserts, updates and deletes of its source, and
    documents without a vector.

    None if the cluster does not tell.
    """
    waiting = {"bool": {"must_not": {"term": {ENCODER_FIELD: info.record.encoder}}}}
    try:
        lag = target_of(info.record).state(cluster, info).lag
        no_vector = cluster.count(info.name, waiting)
    except ClusterError:  # the alias has moved: that stays the result
        return None
    if lag is None:
        return None
    counts = {"inserts": lag.inserts, "updates": lag.updates, "deletes": lag.deletes}
    return counts | {"no_vector": no_vector}


def way_back(cluster: Cluster, name: str) -> IndexInfo:
    """Return the index that the alias points to and is to leave; its record names the alias that leaves and
    the index to which it returns.

    That is `name` itself where a reindex moved it. Raises NotFound or ClusterError without an older index.
    """
    current = resolve(cluster, name, whole=True)
    if is_destination(current) and not target_of(current.record).apart:
        raise ClusterError(
            f"'{current.name}' holds its vectors itself: there is no older index to go back to",
            hint=f"hybridr remove {current.name}   takes vectors and marks out of its documents",
        )
    alias = name if name in moved_here(current) else current.record.alias
    if not is_destination(current) or alias not in current.aliases:
        raise NotFound(
            f"'{name}' has no vectors behind an alias: nothing to roll back", hint=f"hybridr reindex {name}"
        )
    source, previous = require_belonging(cluster, current), previous_of(current, alias)
    if not cluster.exists(previous):
        raise NotFound(
            f"'{previous}', which '{alias}' stood for before, is gone",
            hint=f"restore it first, or: hybridr remove {source.name}   puts aliases back to it",
        )
    if previous not in (source.name, *(info.name for info in destinations(cluster, source))):
        raise DataError(
            f"'{current.name}' says that '{alias}' stood for '{previous}' before, which is neither "
            f"'{source.name}' nor made of it",
            hint=f"hybridr remove {source.name}   puts aliases back to it",
        )
    return current.with_record(current.record.changed(alias=alias, previous=previous))


def leave(
    cluster: Cluster, current: IndexInfo, before: Older | None, copy_back: bool, seen: Position | None
) -> Writes:
    """Copy writes of clients back, move the alias, copy what was written meanwhile; return what was
    copied.

    What was written after the position `seen` counts as not carried: `reindex` carries it, `remove` refuses.
    Without `seen` that is what is written after the move.
    """
    alias, previous = current.record.alias, current.record.previous
    moved = {alias, *companions(alias, current, previous)}
    others = [name for name in moved_here(current) if name not in moved]
    courier = Courier(cluster, current)
    if copy_back:
        courier.return_all()
    if before is not None:
        writes = find_writes(cluster, before.info, current)
        before.catch_up(courier, writes.changed | writes.conflicts)
        if copy_back:
            before.take(courier, writes.changed | writes.conflicts)
        before.record()
    switch(cluster, alias, current, previous)
    left_at = seen or settled_position(cluster, current.name)
    if copy_back:
        courier.return_all()
        if before is not None:
            before.take(courier)
    if before is not None:
        before.record(**NOTHING_CARRIED)
    ids = {doc_id for doc_id, _ in courier.done.conflicts}
    conflicts = with_room(ids)
    whole = left_at is not None and len(conflicts) == len(ids)
    left: dict[str, Any] = {
        "carried": left_at.seq_no if left_at and whole else None,
        "not_carried": conflicts,
    }
    if others:  # clients search it by these, and the next way back is theirs
        left = {"alias": others[-1], "previous": previous_of(current, others[-1])}
    details = {"alias": alias, "to": previous, "returned": courier.done.counts()}
    record_event(cluster, current.name, "rolled back", details, **NOTHING_CARRIED | left)
    return courier.done


class Older:
    """The older index with vectors that the alias returns to."""

    def __init__(self, cluster: Cluster, info: IndexInfo, later: IndexInfo) -> None:
        self.cluster = cluster
        self.info = info
        self.later = later
        source = cluster.index_info(info.record.source)
        self.carried = written_since(info, destinations(cluster, source))
        self.taken: dict[Key, int] = {}
        self.position: Position | None = None  # of the source, up to which all is in

    def deleted_later(self) -> Iterator[list[SourceDocument]]:
        """Yield pages of documents that clients wrote here, that were carried to the later index, and that
        were deleted there.
        """
        if self.carried is None:
            return
        until = Share(until=self.carried)
        for page in read_pages(self.cluster, self.info, page=PAGE, share=until, where=WRITTEN, fields=()):
            there = look_up(self.cluster, self.later.name, page)
            contested = self.info.record.not_carried
            yield [d for d in page if d.key not in there and d.doc_id not in contested]

    def catch_up(self, courier: Courier, pending: set[Key]) -> None:
        """Bring in what the source changed and deleted since its last round here, except keys in `pending`.

        Documents get their vectors by the next `sync`. What this index refuses is left to that, too.
        """
        cluster, source = self.cluster, self.cluster.index_info(str(self.info.record.source))
        since, until = synced_position(self.info), settled_position(cluster, source)
        if since is None or until is None or is_restored(self.info, source):
            return
        carry_over(cluster, source, cluster.index_info(self.info.name))
        share, whole = Share(since=since, until=until), True
        for page in read_pages(cluster, source, page=PAGE, share=share):
            here = look_up(cluster, self.info.name, page)
            late = self.outdated(page, here)
            free = free_of(late, here, pending)
            missed, rejected = courier.write(self.copies(free, here), self.info.name)
            whole &= len(free) == len(late) and not missed and not rejected
        if hidden_operations(cluster, source.name, since, until):
            for page in vanished_pages(cluster, source, self.info, until):
                whole &= self.erase(courier, page, pending)
        if whole:
            self.position = until

    def outdated(self, page: Sequence[SourceDocument], here: Mapping[Key, Stored]) -> list[SourceDocument]:
        """Return those documents of the source that this index lacks or holds in an earlier state; of what
        clients wrote here, those that the source changed later.
        """
        states = {key: state._replace(encoder="") for key, state in here.items()}  # a vector may be missing
        late = outdated(self.cluster, self.info, page, states, "")
        theirs = [d for d in late if d.key in here and here[d.key].written_here]
        newer = ClientWrites(self.cluster, self.info).changed_in_source(theirs) if theirs else set()
        kept_keys = {d.key for d in theirs} - newer
        return [d for d in late if d.key not in kept_keys]

    def copies(self, documents: Sequence[SourceDocument], here: Mapping[Key, Stored]) -> list[Action]:
        """Return bulk actions that write documents of the source, yet without vectors, over the states seen
        here.
        """
        return [
            bulk_action(
                "index",
                document.doc_id,
                {**as_stored_with(document.source, self.info.semantic), SEQ_NO_FIELD: document.seq_no},
                routing=document.routing,
                **replacement_options(here.get(document.key)),
            )
            for document in documents
        ]

    def erase(self, courier: Courier, page: Sequence[SourceDocument], pending: set[Key] | None) -> bool:
        """Delete documents in the state that was read, except those that may not be replaced; return whether
        all went.
        """
        free = free_of(page, look_up(self.cluster, self.info.name, page), pending)
        actions = [bulk_action("delete", document.doc_id, **document.as_read) for document in free]
        missed, _ = courier.write(actions, self.info.name)
        return len(free) == len(page) and not missed

    def take(self, courier: Courier, pending: set[Key] | None = None) -> None:
        """Write into this index what the courier copied back to the source, only over the states seen here.

        Documents get their vectors by the next `sync`. Keys in `pending` are skipped; without `pending`,
        documents that clients wrote here are skipped, because clients search this index already.
        """
        cluster, index = self.cluster, self.info.name
        changed = sorted({doc_id for doc_id, _ in courier.done.changed})
        carry_over(cluster, cluster.index_info(courier.source), cluster.index_info(index))
        for page in documents_in_pages(cluster, courier.source_info, changed, page=PAGE):
            here = look_up(cluster, index, page)
            new = [d for d in page if d.key in courier.done.changed and self.taken.get(d.key) != d.seq_no]
            free = free_of(new, here, pending)
            missed = courier.send(self.copies(free, here), index)
            self.taken |= {
                document.key: document.seq_no for document in free if document.doc_id not in missed
            }
        gone = chain(
            self.copies_of(courier.done.deleted),
            self.deleted_later(),
        )
        for page in gone:
            self.erase(courier, page, pending)

    def copies_of(self, keys: Collection[Key]) -> Iterator[list[SourceDocument]]:
        """Yield pages of the documents with these keys that this index holds."""
        ids = sorted({doc_id for doc_id, _ in keys})
        for page in documents_in_pages(self.cluster, self.info.name, ids, page=PAGE, whole=False):
            yield [document for document in page if document.key in keys]

    def record(self, **changes: Any) -> None:
        """Write into this index's record which operations of the source are already in it, with other
        `changes` of the record.
        """
        source = self.cluster.index_info(str(self.info.record.source))
        before = dict(self.info.record.taken)
        taken = {} if is_restored(self.info, source) or self.position else before
        for shard in shards_in(source) if self.taken else ():
            numbers = set()
            for part in groups_of(sorted({doc_id for doc_id, _ in self.taken}), PAGE):
                params = {"preference": f"_shards:{shard}"}
                hits = hits_by_id(self.cluster, source, part, hit_parts(()), None, params)
                documents = map(source_document, hits)
                numbers |= {d.seq_no for d in documents if self.taken.get(d.key) == d.seq_no}
            if not numbers:
                continue
            joined: list[tuple[int, int]] = []  # without gaps that hold no number
            for first, last in sorted([*taken.get(shard, ()), *((number, number) for number in numbers)]):
                if joined and first <= joined[-1][1] + 1:
                    joined[-1] = joined[-1][0], max(last, joined[-1][1])
                else:
                    joined.append((first, last))
            taken[shard] = tuple(joined[-MOST_SPANS:])
        if self.position:
            changes["synced"] = self.position.seq_no
        if taken != before:
            changes["taken"] = taken
        if changes:
            write_record(self.cluster, self.info.name, **changes)


def free_of(
    documents: Sequence[SourceDocument], here: Mapping[Key, Stored], pending: Collection[Key] | None
) -> list[SourceDocument]:
    """Return those documents that may be replaced in an older index: not `pending`, or without `pending` not
    written there by a client.
    """
    if pending is None:
        pending = {key for key, state in here.items() if state.written_here}
    return [document for document in documents if document.key not in pending]


class Courier(ClientWrites):
    """Copies writes of clients from an index with vectors to its source, each only over the state that it
    replaces.
    """

    def __init__(self, cluster: Cluster, info: IndexInfo, view: Describing | None = None) -> None:
        super().__init__(cluster, info, view)
        self.rejects = Rejects(file_of_index(REJECTS, f"{info.name}-returned", info.uuid))
        self.is_mapped = False

    def return_all(self) -> None:
        """Copy writes and deletes to the source, pass after pass, until none is left."""
        self.require_deletes()
        for _ in range(MAX_PASSES):
            moved = sum(self.copy(page) for page in self.written())
            moved += sum(self.delete(page) for page in self.gone())
            if not moved:
                return

    def require_deletes(self) -> None:
        """Raise ClusterError if more documents are missing here than this index ever deleted or replaced:
        they never arrived, and to delete them in the source would be wrong.
        """
        missing = sum(map(len, self.gone()))
        settled = settled_position(self.cluster, self.info.name) if missing else None
        if settled is None:
            return
        hidden = hidden_operations(self.cluster, self.info.name, Position({}), settled)
        deletable = hidden // 2  # a document that was written and deleted leaves two operations
        if missing > deletable:
            raise ClusterError(
                f"'{self.info.name}' lacks {quantity(missing, 'document')} of '{self.source}', and at most "
                f"{deletable:,} were deleted in it: the others never arrived",
                hint=f"hybridr reindex {self.source}   brings them; --discard leaves clients' writes behind",
            )

    def copy(self, pairs: Sequence[Pair]) -> int:
        """Write documents into the source unless it changed them too; return how many were written."""
        conflicts = self.conflicts(pairs)
        self.done.conflicts |= conflicts
        chosen = [pair for pair in pairs if pair[0].key not in conflicts]
        if chosen and not self.is_mapped:
            self.add_mapping()
        actions = []
        for document, copy in chosen:
            options = copy.as_read if copy else replacement_options(None)
            options["routing"] = document.routing
            actions.append(bulk_action("index", document.doc_id, document.source, **options))
        missed = self.send(actions)
        copied = {d.key: fingerprint(d.source) for d, _ in chosen if d.doc_id not in missed}
        self.returned |= copied
        self.done.changed |= copied.keys()
        return len(copied)

    def add_mapping(self) -> None:
        """Add the fields that the source lacks to its mapping as they are here, unless it takes no new ones
        or this user may not: documents would map them by themselves, otherwise.
        """
        self.is_mapped = True
        here, there = (self.cluster.index_info(name) for name in (self.info.name, self.source))
        if str(there.mappings.get("dynamic", "true")).lower() != "strict":
            with suppress(AccessDenied):
                add_missing_fields(self.cluster, here, there, own_fields(self.info))

    def delete(self, gone: Sequence[SourceDocument]) -> int:
        """Delete documents from the source in the state that was read; return how many were deleted."""
        missed = self.send([bulk_action("delete", document.doc_id, **document.as_read) for document in gone])
        deleted = {document.key for document in gone if document.doc_id not in missed}
        self.returned = {key: mark for key, mark in self.returned.items() if key not in deleted}
        self.done.deleted |= deleted
        return len(deleted)

    def send(self, actions: list[Action], index: str = "") -> set[str]:
        """Send bulk actions to the source, or to the named index; return the ids of documents that somebody
        else has changed since they were read, which are left as they are.

        Raises ClusterError if a document is rejected; the alias has not moved then.
        """
        index = index or self.source
        missed, rejected = self.write(actions, index)
        if rejected:
            raise ClusterError(
                f"'{index}' refuses {quantity(rejected, 'document')} written in '{self.info.name}'",
                hint=f"reasons in {self.rejects.file}; {self.remedy(index)}--discard leaves them behind",
            )
        return missed

    def write(self, actions: list[Action], index: str) -> tuple[set[str], int]:
        """Send bulk actions to an index; return the ids of documents that somebody else has changed since
        they were read, and how many documents were rejected.
        """
        outcomes = list(write_past_pipelines(self.cluster, index, actions, self.rejects))
        self.cluster.refresh(index)
        missed = {doc_id for outcome in outcomes for doc_id in outcome.conflicts}
        return missed, sum(outcome.rejected for outcome in outcomes)

    def remedy(self, index: str) -> str:
        """Return the mapping request that adds the fields that an index lacks; empty if it lacks none."""
        here, there = (self.cluster.index_info(name) for name in (self.info.name, index))
        ours = own_fields(self.info)
        missing = {name: field for name, field in here.properties.items() if name not in ours}
        lacking = missing_fields(missing, there.properties)
        if not lacking:
            return ""
        body = as_json({"properties": lacking}).decode()
        return f"it lacks fields: PUT {path_of(index, '_mapping')} {body} adds them; "
