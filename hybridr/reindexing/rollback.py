"""The way back: the alias to what it stood for before, and what clients wrote meanwhile to the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..cluster.aliases import companions, switch, switch_actions
from ..cluster.connection import Cluster, path_of
from ..cluster.destinations import (
    destinations,
    forget_destinations,
    is_destination,
    record_event,
    require_belonging,
    resolve_whole,
    with_room,
    write_record,
)
from ..cluster.mappings import carry_over, missing_fields, properties_of
from ..cluster.reading import (
    Share,
    SourceDocument,
    documents_in_pages,
    read_pages,
    settled_position,
)
from ..cluster.record import SEQ_NO_FIELD, IndexInfo
from ..cluster.stored_source import require_whole_source
from ..cluster.writing import (
    Action,
    delete_action,
    encoded,
    index_action,
    rejects_of,
    write_past_pipelines,
)
from ..errors import ClusterError, DataError, NotFound
from ..files.manifest import fingerprint
from ..vocabulary.storage import drop_term_tables
from .client_writes import (
    PAGE,
    WRITTEN,
    ClientWrites,
    Pair,
    Writes,
    find_writes,
    own_fields,
    require_none,
    written_since,
)
from .filling import MAX_PASSES
from .job import look_up
from .targets import target_of


def rollback(
    cluster: Cluster,
    name: str,
    *,
    copy_back: bool = False,
    discard: bool = False,
    drop: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Point the alias of `name` back to what it stood for before the last switch.

    What clients wrote into the index that is left is copied to the source with `copy_back`, before the switch
    and once more after it. Gives alias, from, to, along (aliases that move with it), dropped, the actions and
    counts of writes and of what was returned. Raises NotFound when nothing was switched, ClusterError when
    there are such writes and neither `copy_back` nor `discard` was given, DataError where copying back would
    lose fields.

    >>> hybridr.rollback(cluster, "docs")["to"]
    'docs'
    """
    current = way_back(cluster, name)
    alias, previous = current.record.alias, current.record.previous
    if copy_back:
        require_whole_source(current, own_fields(current))
    before = cluster.index_info(previous) if previous != current.record.source else None
    writes = find_writes(cluster, current, before)
    writes.deleted += [one.doc_id for page in deleted_since(cluster, before, current) for one in page]
    if not (copy_back or discard or dry_run):
        require_none(writes, current, "--copy-back copies them there first, --discard leaves them behind")
    actions = switch_actions(alias, current, previous)
    returned = Writes() if dry_run else leave(cluster, current, before, copy_back)
    dropped = drop and not dry_run and not returned.conflicts
    if dropped:
        delete_left(cluster, current)
    return {
        "alias": alias,
        "from": current.name,
        "to": previous,
        "dropped": dropped,
        "along": companions(alias, current, previous),
        "actions": actions,
        "writes": writes.counts(),
        "returned": returned.counts(),
    }


def delete_left(cluster: Cluster, info: IndexInfo) -> None:
    """Delete an index with vectors that no alias leads to any more, and what is kept beside it."""
    cluster.request("DELETE", path_of(info.name))
    forget_destinations(cluster, cluster.index_info(info.record.source), {info.uuid})
    drop_term_tables(cluster, [info])


def way_back(cluster: Cluster, name: str) -> IndexInfo:
    """Find the index that an alias is to leave. Raises NotFound, ClusterError where there is no way back."""
    current = resolve_whole(cluster, name)
    if is_destination(current) and not target_of(current.record).apart:
        raise ClusterError(
            f"'{current.name}' holds its vectors itself: there is no older index to go back to",
            hint=f"hybridr remove {current.name}   takes vectors and marks out of its documents",
        )
    if not is_destination(current) or current.record.alias not in current.aliases:
        raise NotFound(
            f"'{name}' has no vectors behind an alias: nothing to roll back", hint=f"hybridr reindex {name}"
        )
    source = require_belonging(cluster, current)
    alias, previous = current.record.alias, current.record.previous
    if not cluster.exists(previous):
        raise NotFound(f"'{previous}', which '{alias}' stood for before, is gone", hint="restore it first")
    if previous not in (source.name, *(info.name for info in destinations(cluster, source))):
        raise DataError(
            f"'{current.name}' says that '{alias}' stood for '{previous}' before, which is neither "
            f"'{source.name}' nor made of it",
            hint=f"hybridr remove {source.name}   puts aliases back to it",
        )
    return current


def leave(cluster: Cluster, current: IndexInfo, before: IndexInfo | None, copy_back: bool) -> Writes:
    """Copy back, move the alias, copy what arrived while it moved; give what was returned.

    `before` is the older index with vectors that the alias goes to, if it does not go to the source.
    """
    alias, previous = current.record.alias, current.record.previous
    courier = Courier(cluster, current)
    if copy_back:
        courier.return_all()
        bring_to(cluster, before, courier)
    switch(cluster, alias, current, previous)
    left_at = settled_position(cluster, current.name)
    if copy_back:
        courier.return_all()
        bring_to(cluster, before, courier)
    if before is not None:
        write_record(cluster, before.name, carried=None, not_carried=())
    conflicts = with_room(courier.done.conflicts)
    carried = left_at.seq_no if left_at and len(conflicts) == len(courier.done.conflicts) else None
    details = {"alias": alias, "to": previous, "returned": courier.done.counts()}
    record_event(cluster, current.name, "rolled back", details, carried=carried, not_carried=conflicts)
    return courier.done


def deleted_since(
    cluster: Cluster, before: IndexInfo | None, current: IndexInfo
) -> Iterator[list[SourceDocument]]:
    """Yield what clients wrote in an older index, was carried from there, and deleted in the later one."""
    until = written_since(before) if before is not None else None
    if before is None or until is None:
        return
    for page in read_pages(cluster, before, page=PAGE, share=Share(until=until), where=WRITTEN, fields=()):
        here = look_up(cluster, current.name, page)
        left = before.record.not_carried
        yield [one for one in page if one.doc_id not in here and one.doc_id not in left]


def bring_to(cluster: Cluster, before: IndexInfo | None, courier: Courier) -> None:
    """Write what was copied back into the index that the alias goes to as well, over the state seen there.

    It gets its vectors by the next round of `sync`. What clients wrote there meanwhile stays.
    """
    if before is None:
        return
    cluster.refresh(before.name)
    carry_over(cluster, cluster.index_info(courier.source), cluster.index_info(before.name))
    newer = find_writes(cluster, before, courier.info)
    stays = {*newer.changed, *newer.conflicts}
    changed = sorted({*courier.done.changed} - stays)
    for page in documents_in_pages(cluster, courier.source, changed, page=PAGE):
        there = look_up(cluster, before.name, page)
        actions = []
        for document in page:
            state = there.get(document.doc_id)
            if state is not None and state.source_seq_no == document.seq_no:
                continue
            options: dict[str, Any] = {"op_type": "create"}
            if state is not None:
                options = {"if_seq_no": state.seq_no, "if_primary_term": state.primary_term}
            body = {**document.source, SEQ_NO_FIELD: document.seq_no}
            actions.append(index_action(document.doc_id, body, routing=document.routing, **options))
        courier.send(actions, before.name)
    deleted = sorted({*courier.done.deleted} - stays)
    gone = [one for part in documents_in_pages(cluster, before.name, deleted, page=PAGE) for one in part]
    gone += [one for part in deleted_since(cluster, before, courier.info) for one in part]
    courier.send([delete_action(one.doc_id, **one.as_read) for one in gone], before.name)


class Courier(ClientWrites):
    """Carries writes from a destination to its source, each only over the state that it was made of."""

    def __init__(self, cluster: Cluster, info: IndexInfo) -> None:
        super().__init__(cluster, info)
        self.rejects = rejects_of(f"{info.name}-returned")

    def return_all(self) -> None:
        """Copy pass after pass until one finds nothing more to do."""
        for _ in range(MAX_PASSES):
            moved = sum(self.copy(page) for page in self.written())
            moved += sum(self.delete(page) for page in self.gone())
            if not moved:
                return

    def copy(self, pairs: Sequence[Pair]) -> int:
        """Write documents into the source, where nobody changed them; give their number."""
        conflicts = self.conflicts(pairs)
        self.done.conflicts += sorted(conflicts - set(self.done.conflicts))
        chosen = [pair for pair in pairs if pair[0].doc_id not in conflicts]
        missed = self.send([returning_action(document, other) for document, other in chosen])
        copied = {d.doc_id: fingerprint(d.source) for d, _ in chosen if d.doc_id not in missed}
        self.returned |= copied
        self.done.changed += sorted(copied.keys() - set(self.done.changed))
        return len(copied)

    def delete(self, gone: Sequence[SourceDocument]) -> int:
        """Delete documents from the source, in the state that was read; give their number."""
        missed = self.send([delete_action(document.doc_id, **document.as_read) for document in gone])
        deleted = {document.doc_id for document in gone} - missed
        self.returned = {doc_id: mark for doc_id, mark in self.returned.items() if doc_id not in deleted}
        self.done.deleted += sorted(deleted - set(self.done.deleted))
        return len(deleted)

    def send(self, actions: list[Action], index: str = "") -> set[str]:
        """Write to the source, or another index; give the ids that somebody changed first, for the next pass.

        Raises ClusterError when it refuses a document; the alias has not moved then.
        """
        missed, index = set(), index or self.source
        for outcome in write_past_pipelines(self.cluster, index, actions, self.rejects):
            missed |= set(outcome.conflicts)
            if outcome.rejected:
                raise ClusterError(
                    f"'{index}' refuses {outcome.rejected} documents that were written in '{self.info.name}'",
                    hint=f"reasons in {self.rejects.file}; {self.remedy(index)}--discard leaves them behind",
                )
        self.cluster.refresh(index)
        return missed

    def remedy(self, index: str) -> str:
        """Name the request that adds to an index the fields that it lacks, where it lacks some."""
        here, there = (self.cluster.index_info(name) for name in (self.info.name, index))
        ours = own_fields(self.info)
        wanted = {name: field for name, field in properties_of(here).items() if name not in ours}
        lacking = missing_fields(wanted, properties_of(there))
        if not lacking:
            return ""
        body = encoded({"properties": lacking}).decode()
        return f"it lacks fields: PUT {path_of(index, '_mapping')} {body} adds them; "


def returning_action(document: SourceDocument, other: SourceDocument | None) -> Action:
    """Make a document that the source lacks, or replace the very state that was compared."""
    options = other.as_read if other else {"op_type": "create"}
    return index_action(document.doc_id, document.source, **{**options, "routing": document.routing})
