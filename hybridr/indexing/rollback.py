"""Rollback: points the alias back to the earlier index, and copies writes of clients to the source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from shlex import quote
from typing import Any

from ..cluster.aliases import (
    companion_aliases,
    moved_aliases,
    moving_command,
    previous_index,
    require_no_rollover,
    switch_actions,
    switch_alias,
    way_to_vectors,
)
from ..cluster.connection import Cluster, IndexLookup, json_bytes, path_of
from ..cluster.destinations import (
    destinations,
    is_destination,
    is_restored,
    record_event,
    require_source_index,
    resolve,
    view_of,
    write_record,
)
from ..cluster.mappings import (
    add_missing_fields,
    alias_obstacles,
    extend_copy_mapping,
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
    hit_options,
    hits_by_id,
    read_pages,
    settled_position,
    source_document,
)
from ..cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, IndexInfo
from ..cluster.semantic import stored_form
from ..cluster.writing import Action, Rejects, bulk_action, cut_to_room, write_past_pipelines
from ..errors import AccessDenied, ClusterError, DataError, NotFound, quantity
from ..files.local import fingerprint
from ..files.remembered import REJECTS, file_of_index
from .client_writes import (
    CLIENT_WRITES,
    NOTHING_CARRIED,
    PAGE,
    ClientWrites,
    Pair,
    Writes,
    carried_position,
    caught_refusal,
    find_writes,
    own_fields,
    require_no_writes,
    stale_documents,
)
from .filling import MAX_PASSES
from .job import Stored, replacement_options, stored_states, write_over
from .lag import Operations, joined_spans, vanished_pages
from .reindexing import synced_position
from .targets import target_of

MAX_SPANS = 200  # of a shard, in a record


def rollback(
    cluster: Cluster, name: str, *, copy_back: bool = False, discard: bool = False, dry_run: bool = False
) -> dict[str, Any]:
    """Point the alias of `name` back to the index before the last switch; return what was done.

    An older index with vectors first gets what its source has changed since, without vectors. With
    `copy_back`, what clients wrote in the index that the alias leaves is copied to the source, before the
    switch and once more after it; with `discard` it stays behind. With `dry_run` nothing is changed, and
    `refusal` holds the error that would be raised.

    The result has `alias`, `from`, `to`, `along` (aliases that move too), the alias `actions`, counts of
    `writes` and of `returned` documents, `stays` (aliases that stay, each with the command that moves it),
    and `behind` (what an older index lacks). Raises NotFound if nothing was switched, DataError for a record
    that names a wrong index, ClusterError for a block of an index, and for writes of clients without
    `copy_back` or `discard`.
    """
    view = view_of(cluster, name)
    current = index_to_leave(view, name)
    alias, previous = current.record.alias, current.record.previous
    to_source, older = previous == current.record.source, view.index_info(previous)
    older_index = None if to_source else OlderIndex(cluster, older, current, view)
    settled = settled_position(cluster, current)
    writes = find_writes(cluster, current, None if to_source else older, view)
    if older_index is not None:
        writes.deleted |= {document.key for page in older_index.deleted_later() for document in page}

    def check() -> None:
        """Raise ClusterError if a block forbids the move, or if writes of clients would be lost."""
        blocks = [block for info in (current, older) for block in alias_obstacles(cluster, info)]
        require_no_obstacle(blocks, f"moving '{alias}' back")
        if not (copy_back or discard):
            hint = f"--copy-back copies them to '{current.record.source}' first, --discard leaves them behind"
            require_no_writes(writes, current, previous, hint)

    refusal = caught_refusal(check, dry_run=dry_run)
    actions = switch_actions(alias, current, previous)
    companions = companion_aliases(alias, current, previous)
    carried = None if copy_back or discard else settled
    returned = Writes() if dry_run else move_alias_back(cluster, current, older_index, copy_back, carried)
    return {
        "alias": alias,
        "from": current.name,
        "to": previous,
        "along": companions,
        "stays": {
            name: moving_command(current, name)
            for name in sorted(current.aliases.keys() - {alias, *companions})
        },
        "actions": actions,
        "writes": writes.counts(),
        "returned": returned.counts(),
        "refusal": refusal,
        "behind": None if to_source else missing_operations(cluster, cluster.index_info(previous)),
    }


def missing_operations(cluster: Cluster, info: IndexInfo) -> dict[str, int] | None:
    """Return what an older index lacks until the next `sync`: inserts, updates and deletes of its source, and
    documents without a vector.

    None if the cluster cannot be asked.
    """
    no_current_vector = {"bool": {"must_not": {"term": {ENCODER_FIELD: info.record.encoder}}}}
    try:
        lag = target_of(info.record).state(cluster, info).lag
        no_vector = cluster.count(info.name, no_current_vector)
    except ClusterError:  # the alias has moved already: the rollback must not fail now
        return None
    if lag is None:
        return None
    counts = {"inserts": lag.inserts, "updates": lag.updates, "deletes": lag.deletes}
    return counts | {"no_vector": no_vector}


def index_to_leave(cluster: IndexLookup, name: str) -> IndexInfo:
    """Return the index that the alias points to and will leave, with a record whose `alias` is that alias and
    whose `previous` is the index to which it returns.

    The alias is `name` itself if a reindex moved it. Raises NotFound or ClusterError without an older index,
    DataError if the record names an index that does not belong to the source.
    """
    current = resolve(cluster, name, whole_index=True)
    if is_destination(current) and not target_of(current.record).is_separate:
        raise ClusterError(
            f"'{current.name}' holds its own vectors (in place): there is no older index to go back to",
            hint=f"hybridr remove {quote(current.name)}   removes vectors and marks from its documents",
        )
    alias = name if name in moved_aliases(current) else current.record.alias
    if not is_destination(current) or alias not in current.aliases:
        raise NotFound(
            f"'{name}' has no vectors behind an alias: nothing to roll back",
            hint=way_to_vectors(cluster, current, name),
        )
    require_no_rollover(cluster, current)
    source, previous = require_source_index(cluster, current), previous_index(current, alias)
    if not cluster.indices(previous):
        raise NotFound(
            f"'{previous}', to which '{alias}' pointed before, does not exist any more",
            hint=f"hybridr remove {quote(source.name)}   moves aliases to '{source.name}'; "
            f"or restore '{previous}'",
        )
    if previous not in (source.name, *(info.name for info in destinations(cluster, source))):
        raise DataError(
            f"the record of '{current.name}' says that '{alias}' pointed to '{previous}' before, which is "
            f"neither '{source.name}' nor made from it",
            hint=f"hybridr remove {quote(source.name)}   moves aliases to '{source.name}'",
        )
    return current.with_record(current.record.changed(alias=alias, previous=previous))


def move_alias_back(
    cluster: Cluster, current: IndexInfo, older: OlderIndex | None, copy_back: bool, until: Position | None
) -> Writes:
    """Copy writes of clients to the source if `copy_back`, move the alias, copy what was written meanwhile;
    return what was copied.

    What clients write after the position `until` (by default: after the move) counts as not carried over:
    `reindex` carries it, `remove` refuses.
    """
    alias, previous = current.record.alias, current.record.previous
    moving_aliases = {alias, *companion_aliases(alias, current, previous)}
    other_aliases = [name for name in moved_aliases(current) if name not in moving_aliases]
    courier = Courier(cluster, current, view_of(cluster, str(current.record.source)))
    if copy_back:
        courier.return_all()
    if older is not None:
        writes = find_writes(cluster, older.info, current)
        older.catch_up(courier, writes.changed | writes.conflicts)
        if copy_back:
            older.take(courier, writes.changed | writes.conflicts)
        older.record()
    switch_alias(cluster, alias, current, previous)
    position = until or settled_position(cluster, current.name)
    if copy_back:
        courier.return_all()
        if older is not None:
            older.take(courier)
    if older is not None:
        older.record(**NOTHING_CARRIED)
    ids = {doc_id for doc_id, _ in courier.tally.conflicts}
    conflicts = cut_to_room(ids)
    carried = position.seq_no if position and len(conflicts) == len(ids) else None
    changes: dict[str, Any] = {"carried": carried, "not_carried": conflicts}
    if other_aliases:  # clients still search it by these aliases, and the next rollback moves one of them
        changes = {"alias": other_aliases[-1], "previous": previous_index(current, other_aliases[-1])}
    details = {"alias": alias, "to": previous, "returned": courier.tally.counts()}
    record_event(cluster, current.name, "rolled back", details, **NOTHING_CARRIED | changes)
    return courier.tally


class OlderIndex:
    """The older index with vectors to which the alias returns ("here"); `later` is the index that it leaves.

    `taken` maps documents that were copied here from the source to their `_seq_no` there. `position` is the
    position of the source up to which all its changes are here; None if some are missing.
    """

    def __init__(self, cluster: Cluster, info: IndexInfo, later: IndexInfo, view: IndexLookup) -> None:
        self.cluster = cluster
        self.info = info
        self.later = later
        self.carried = carried_position(info, destinations(view, view.index_info(info.record.source)))
        self.taken: dict[Key, int] = {}
        self.position: Position | None = None

    def deleted_later(self) -> Iterator[list[SourceDocument]]:
        """Yield pages of documents that clients wrote here, that were carried to the later index, and that
        were deleted there.
        """
        if self.carried is None:
            return
        until = Share(until=self.carried)
        for page in read_pages(
            self.cluster, self.info, page=PAGE, share=until, where=CLIENT_WRITES, fields=()
        ):
            states = stored_states(self.cluster, self.later.name, page)
            contested = self.info.record.not_carried
            yield [d for d in page if d.key not in states and d.doc_id not in contested]

    def catch_up(self, courier: Courier, pending: set[Key]) -> None:
        """Copy here what the source changed since the synced position, and delete what it deleted, except
        keys in `pending`.

        The next `sync` makes the vectors, and retries documents that this index refuses.
        """
        cluster, source = self.cluster, self.cluster.index_info(str(self.info.record.source))
        since, until = synced_position(self.info), settled_position(cluster, source)
        if since is None or until is None or is_restored(self.info, source):
            return
        extend_copy_mapping(cluster, source, cluster.index_info(self.info.name))
        share, is_complete = Share(since=since, until=until), True
        for page in read_pages(cluster, source, page=PAGE, share=share):
            stored = stored_states(cluster, self.info.name, page)
            stale = self.stale_copies(page, stored)
            replaceable = replaceable_documents(stale, stored, pending)
            missed, rejected = courier.write(self.copy_actions(replaceable, stored), self.info.name)
            is_complete &= len(replaceable) == len(stale) and not missed and not rejected
        if hidden_operations(cluster, source.name, since, until):
            for page in vanished_pages(cluster, source, self.info, until):
                is_complete &= self.delete(courier, page, pending)
        if is_complete:
            self.position = until

    def stale_copies(
        self, page: Sequence[SourceDocument], stored: Mapping[Key, Stored]
    ) -> list[SourceDocument]:
        """Return those documents of the source that this index lacks or holds in an earlier state.

        Documents that clients wrote here are included only if the source changed them later.
        """
        stale = stale_documents(self.cluster, self.info, page, stored)  # of others a vector may be missing
        edits = [d for d in stale if d.key in stored and stored[d.key].written_here]
        changed = ClientWrites(self.cluster, self.info).changed_in_source(edits) if edits else set()
        kept_keys = {d.key for d in edits} - changed
        return [d for d in stale if d.key not in kept_keys]

    def copy_actions(self, documents: Sequence[SourceDocument], stored: Mapping[Key, Stored]) -> list[Action]:
        """Return bulk actions that write documents without vectors, each only over the state read here."""
        actions = []
        for document in documents:
            body = {**stored_form(document.source, self.info.semantic), SEQ_NO_FIELD: document.seq_no}
            actions.append(write_over(document, body, stored.get(document.key)))
        return actions

    def delete(self, courier: Courier, page: Sequence[SourceDocument], pending: set[Key] | None) -> bool:
        """Delete documents in the state that was read, if they may be replaced; return whether all were."""
        replaceable = replaceable_documents(page, stored_states(self.cluster, self.info.name, page), pending)
        actions = [bulk_action("delete", document.doc_id, **document.as_read) for document in replaceable]
        missed, _ = courier.write(actions, self.info.name)
        return len(replaceable) == len(page) and not missed

    def take(self, courier: Courier, pending: set[Key] | None = None) -> None:
        """Write and delete here what the courier copied back to the source, only over the states seen here.

        The next `sync` makes the vectors. Keys in `pending` are skipped; without `pending`, documents that
        clients wrote here are skipped, because clients search this index already.
        """
        cluster, index = self.cluster, self.info.name
        changed = sorted({doc_id for doc_id, _ in courier.tally.changed})
        extend_copy_mapping(cluster, cluster.index_info(courier.source), cluster.index_info(index))
        for page in documents_in_pages(cluster, courier.source_info, changed, page=PAGE):
            stored = stored_states(cluster, index, page)
            new = [d for d in page if d.key in courier.tally.changed and self.taken.get(d.key) != d.seq_no]
            replaceable = replaceable_documents(new, stored, pending)
            missed = courier.send(self.copy_actions(replaceable, stored), index)
            self.taken |= {d.key: d.seq_no for d in replaceable if d.doc_id not in missed}
        deleted = courier.tally.deleted
        ids = sorted({doc_id for doc_id, _ in deleted})
        for page in documents_in_pages(cluster, index, ids, page=PAGE, with_source=False):
            self.delete(courier, [document for document in page if document.key in deleted], pending)
        for page in self.deleted_later():
            self.delete(courier, page, pending)

    def record(self, **changes: Any) -> None:
        """Write `changes` into this index's record, and which operations of the source are already here."""
        source = self.cluster.index_info(str(self.info.record.source))
        former_spans = dict(self.info.record.taken)
        spans = {} if is_restored(self.info, source) or self.position else former_spans
        for shard in range(source.shards) if self.taken else ():
            numbers = set()
            for part in groups_of(sorted({doc_id for doc_id, _ in self.taken}), PAGE):
                params = {"preference": f"_shards:{shard}"}
                hits = hits_by_id(self.cluster, source, part, hit_options(()), None, params)
                documents = map(source_document, hits)
                numbers |= {d.seq_no for d in documents if self.taken.get(d.key) == d.seq_no}
            if not numbers:
                continue
            taken = [*spans.get(shard, ()), *((number, number) for number in numbers)]
            joined = joined_spans(Operations(first, last + 1) for first, last in sorted(taken))
            spans[shard] = tuple((span.low, span.high - 1) for span in joined[-MAX_SPANS:])
        if self.position:
            changes["synced"] = self.position.seq_no
        if spans != former_spans:
            changes["taken"] = spans
        if changes:
            write_record(self.cluster, self.info.name, **changes)


def replaceable_documents(
    documents: Sequence[SourceDocument], stored: Mapping[Key, Stored], pending: Collection[Key] | None
) -> list[SourceDocument]:
    """Return those documents that may be replaced in an older index: those not in `pending`, which is by
    default what clients wrote there.
    """
    if pending is None:
        pending = {key for key, state in stored.items() if state.written_here}
    return [document for document in documents if document.key not in pending]


class Courier(ClientWrites):
    """Copies clients' writes from an index with vectors to its source, if it is still as it was read."""

    def __init__(self, cluster: Cluster, info: IndexInfo, view: IndexLookup | None = None) -> None:
        super().__init__(cluster, info, view)
        self.rejects = Rejects(file_of_index(REJECTS, f"{info.name}-returned", info.uuid))
        self.is_mapped = False

    def return_all(self) -> None:
        """Copy writes and deletes to the source, pass after pass, until none is left."""
        self.require_plausible_deletes()
        for _ in range(MAX_PASSES):
            moved = sum(self.copy(page) for page in self.written_pairs())
            moved += sum(self.delete(page) for page in self.deleted_pages())
            if not moved:
                return

    def require_plausible_deletes(self) -> None:
        """Raise ClusterError if more documents are missing here than this index ever deleted or replaced.

        Such documents never arrived here, so deleting them in the source would be wrong.
        """
        missing = sum(map(len, self.deleted_pages()))
        settled = settled_position(self.cluster, self.info.name) if missing else None
        if settled is None:
            return
        hidden = hidden_operations(self.cluster, self.info.name, Position({}), settled)
        deletable = hidden // 2  # a document that was written and deleted leaves two operations
        if missing > deletable:
            raise ClusterError(
                f"'{self.info.name}' lacks {quantity(missing, 'document')} of '{self.source}', and at most "
                f"{deletable:,} were deleted in it: the others never arrived",
                hint=f"hybridr reindex {quote(self.source)}   adds them; "
                "--discard leaves clients' writes behind",
            )

    def copy(self, pairs: Sequence[Pair]) -> int:
        """Write documents into the source, except those that it changed too (conflicts); return the count."""
        conflicts = self.conflicting_keys(pairs)
        self.tally.conflicts |= conflicts
        copyable = [pair for pair in pairs if pair[0].key not in conflicts]
        if copyable and not self.is_mapped:  # else the source would map new fields dynamically
            self.is_mapped = True
            own_info, source_info = (self.cluster.index_info(name) for name in (self.info.name, self.source))
            if str(source_info.mappings.get("dynamic", "true")).lower() != "strict":
                with suppress(AccessDenied):
                    add_missing_fields(self.cluster, own_info, source_info, own_fields(self.info))
        actions = []
        for document, original in copyable:
            options = original.as_read if original else replacement_options(None)
            options["routing"] = document.routing
            actions.append(bulk_action("index", document.doc_id, document.source, **options))
        missed = self.send(actions)
        copied = {d.key: fingerprint(d.source) for d, _ in copyable if d.doc_id not in missed}
        self.returned_hashes |= copied
        self.tally.changed |= copied.keys()
        return len(copied)

    def delete(self, gone: Sequence[SourceDocument]) -> int:
        """Delete documents from the source in the state that was read; return how many were deleted."""
        missed = self.send([bulk_action("delete", document.doc_id, **document.as_read) for document in gone])
        deleted = {document.key for document in gone if document.doc_id not in missed}
        self.returned_hashes = {key: mark for key, mark in self.returned_hashes.items() if key not in deleted}
        self.tally.deleted |= deleted
        return len(deleted)

    def send(self, actions: list[Action], index: str = "") -> set[str]:
        """Send bulk actions to the source, or to the named index; return the ids of documents that others
        have changed since they were read, and that were not written.

        Raises ClusterError if a document is rejected.
        """
        index = index or self.source
        missed, rejected = self.write(actions, index)
        if rejected:
            own_info, other_info = (self.cluster.index_info(name) for name in (self.info.name, index))
            own_names, fields = own_fields(self.info), own_info.properties.items()
            client_fields = {name: field for name, field in fields if name not in own_names}
            adding = ""
            if lacking := missing_fields(client_fields, other_info.properties):
                body = json_bytes({"properties": lacking}).decode()
                adding = f"it lacks fields: PUT {path_of(index, '_mapping')} {body} adds them; "
            raise ClusterError(
                f"'{index}' refuses {quantity(rejected, 'document')} written in '{self.info.name}'",
                hint=f"reasons: {self.rejects.file}; {adding}--discard leaves them behind",
            )
        return missed

    def write(self, actions: list[Action], index: str) -> tuple[set[str], int]:
        """Send bulk actions to an index; return the ids of documents that others have changed since they
        were read, and how many documents were rejected.
        """
        outcomes = list(write_past_pipelines(self.cluster, index, actions, self.rejects))
        self.cluster.refresh(index)
        missed = {doc_id for outcome in outcomes for doc_id in outcome.conflicts}
        return missed, sum(outcome.rejected for outcome in outcomes)
