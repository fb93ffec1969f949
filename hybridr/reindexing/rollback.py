"""The way back: the alias to what it stood for before, and what clients wrote meanwhile to the source.

A document that clients wrote in a destination bears no `_seq_no` of the source, or a negative one (see
`stored`). One that they deleted is in the source, in a state that was copied, and not in the destination.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ..cluster.aliases import companions, switch, switch_actions
from ..cluster.connection import Cluster, path_of
from ..cluster.destinations import (
    destinations,
    forget_destinations,
    is_destination,
    is_restored,
    record_event,
    refused_ids,
    require_belonging,
    resolve_whole,
)
from ..cluster.reading import Position, Share, SourceDocument, documents_by_id, read_pages
from ..cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, IndexInfo
from ..cluster.stored_source import require_whole_source
from ..cluster.writing import Action, delete_action, index_action, rejects_of, write_past_pipelines
from ..errors import ClusterError, DataError, NotFound
from ..files.manifest import fingerprint
from ..sharing.operation_ranges import Numbered, differing
from ..vocabulary.storage import drop_term_tables
from .filling import MAX_PASSES
from .imprints import fields_of
from .job import Stored, look_up
from .targets import target_of

WRITTEN = {"bool": {"must_not": [{"range": {SEQ_NO_FIELD: {"gte": 0}}}]}}
PAGE = 500


@dataclass
class Writes:
    """What clients did to a destination and its source does not know: ids, and whether deletes can be told.

    `conflicts` were changed on both sides; they stay as they are.
    """

    changed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    deletes_known: bool = True

    def __bool__(self) -> bool:
        return bool(self.changed or self.deleted or self.conflicts)

    def counts(self) -> dict[str, Any]:
        """Give the numbers as JSON values."""
        lists = ("changed", "deleted", "conflicts")
        return {name: len(getattr(self, name)) for name in lists} | {"deletes_known": self.deletes_known}


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
    writes = find_writes(cluster, current)
    if not (copy_back or discard or dry_run):
        require_none(writes, current, "--copy-back copies them there first, --discard leaves them behind")
    actions = switch_actions(alias, current, previous)
    returned = Writes() if dry_run else leave(cluster, current, copy_back)
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


def leave(cluster: Cluster, current: IndexInfo, copy_back: bool) -> Writes:
    """Copy back, move the alias, copy what arrived while it moved; give what was returned."""
    alias, previous = current.record.alias, current.record.previous
    courier = Courier(cluster, current)
    if copy_back:
        courier.return_all()
    switch(cluster, alias, current, previous)
    if copy_back:
        courier.return_all()
    details = {"alias": alias, "to": previous, "returned": courier.done.counts()}
    record_event(cluster, current.name, "rolled back", details)
    return courier.done


def own_fields(info: IndexInfo) -> set[str]:
    """Name what hybridr adds to documents of an index with vectors."""
    return {*fields_of(info.record), ENCODER_FIELD, SEQ_NO_FIELD}


def require_none(writes: Writes, info: IndexInfo, hint: str) -> None:
    """Raise ClusterError, with the counts, when clients wrote what the source does not know."""
    if writes:
        raise ClusterError(
            f"clients changed {len(writes.changed) + len(writes.conflicts)} documents in '{info.name}' and "
            f"deleted {len(writes.deleted)}; '{info.record.source}' does not have that",
            hint=hint,
        )


def find_writes(cluster: Cluster, info: IndexInfo) -> Writes:
    """Find what clients did to a destination and its source does not know; nothing is changed."""
    if not cluster.exists(info.record.source):
        raise NotFound(f"'{info.record.source}', the source of '{info.name}', is gone")
    courier = Courier(cluster, info)
    found = courier.done
    for page in courier.written():
        conflicts = courier.conflicts(page)
        found.conflicts += sorted(conflicts)
        found.changed += [document.doc_id for document, _ in page if document.doc_id not in conflicts]
    found.deleted += [document.doc_id for page in courier.gone() for document in page]
    return found


Pair = tuple[SourceDocument, SourceDocument | None]


class Courier:
    """Carries writes from a destination to its source, each only over the state that it was made of."""

    def __init__(self, cluster: Cluster, info: IndexInfo) -> None:
        self.cluster = cluster
        self.info = info
        self.source = str(info.record.source)
        self.rejects = rejects_of(f"{info.name}-returned")
        self.refused = set(refused_ids(info))
        synced = info.record.synced
        restored = is_restored(info, cluster.index_info(self.source))
        self.synced = Position(dict(synced)) if synced and not restored else None
        self.returned: dict[str, str] = {}
        # A document that was refused cannot be told from a deleted one without the list of refused ones.
        known = self.synced is not None and len(self.refused) >= info.record.rejected
        self.done = Writes(deletes_known=known)

    def return_all(self) -> None:
        """Copy pass after pass until one finds nothing more to do."""
        for _ in range(MAX_PASSES):
            moved = sum(self.copy(page) for page in self.written())
            moved += sum(self.delete(page) for page in self.gone())
            if not moved:
                return

    def written(self) -> Iterator[list[Pair]]:
        """Yield what clients wrote here, beside the state in the source, where the two differ."""
        self.cluster.refresh(self.info.name)
        ours = own_fields(self.info)
        for page in read_pages(self.cluster, self.info.name, page=PAGE, where=WRITTEN):
            stored = look_up(self.cluster, self.info.name, page)
            there = documents_by_id(self.cluster, self.source, [document.doc_id for document in page])
            pairs = []
            for document in page:
                content = {name: value for name, value in document.source.items() if name not in ours}
                other = there.get(document.doc_id)
                if differs(content, other, stored.get(document.doc_id)):
                    pairs.append((document._replace(source=content), other))
            if pairs:
                yield pairs

    def conflicts(self, pairs: Sequence[Pair]) -> set[str]:
        """Name those that the source changed as well since the last round, other than by our own copies."""
        there = {document.doc_id: other for document, other in pairs if other is not None}
        stored = look_up(self.cluster, self.info.name, [document for document, _ in pairs])
        newer = self.changed_in_source(list(there))
        return {
            doc_id
            for doc_id, other in there.items()
            if doc_id in newer
            and self.returned.get(doc_id) != fingerprint(other.source)
            and not (doc_id in stored and stored[doc_id].source_seq_no == other.seq_no)
        }

    def changed_in_source(self, doc_ids: list[str]) -> set[str]:
        """Name those that the source changed behind the settled position; all when there is none."""
        if self.synced is None:
            return set(doc_ids)
        changed: set[str] = set()
        for shard, last in self.synced.seq_no.items():
            ids = {"ids": {"values": doc_ids}}
            query = {"bool": {"filter": [ids, {"range": {"_seq_no": {"gt": last}}}]}}
            body = {"size": len(doc_ids), "query": query, "_source": False}
            answer = self.cluster.search(self.source, body, {"preference": f"_shards:{shard}"})
            changed |= {hit["_id"] for hit in answer["hits"]["hits"]}
        return changed

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

    def gone(self) -> Iterator[list[SourceDocument]]:
        """Yield what the source holds in a state that was copied, or came back, and clients deleted here."""
        if self.synced is None or not self.done.deletes_known:
            return
        for page in chain(self.returned_pages(), self.doubtful_pages(self.synced)):
            here = look_up(self.cluster, self.info.name, page)
            away = [d for d in page if d.doc_id not in here and d.doc_id not in self.refused]
            if away:
                yield away

    def doubtful_pages(self, until: Position) -> Iterator[list[SourceDocument]]:
        """Read the source, in states that were copied, where the destination holds other copies than that."""
        originals = Numbered(self.cluster, self.cluster.index_info(self.source), "_seq_no")
        copies = Numbered(self.cluster, self.info, SEQ_NO_FIELD)
        for shard, spans in differing(originals, copies, until):
            last = until.seq_no.get(shard, -1)  # what came later was not copied, and is not missing
            yield from originals.pages(Share(until=Position({shard: last})), spans)

    def returned_pages(self) -> Iterator[list[SourceDocument]]:
        """Read from the source what was copied back."""
        ids = list(self.returned)
        for start in range(0, len(ids), PAGE):
            part = ids[start : start + PAGE]
            yield list(documents_by_id(self.cluster, self.source, part, whole=False).values())

    def delete(self, gone: Sequence[SourceDocument]) -> int:
        """Delete documents from the source, in the state that was read; give their number."""
        missed = self.send([delete_action(document.doc_id, **document.as_read) for document in gone])
        deleted = {document.doc_id for document in gone} - missed
        self.returned = {doc_id: mark for doc_id, mark in self.returned.items() if doc_id not in deleted}
        self.done.deleted += sorted(deleted - set(self.done.deleted))
        return len(deleted)

    def send(self, actions: list[Action]) -> set[str]:
        """Write to the source; give the ids that somebody changed first, for the next pass.

        Raises ClusterError when the source refuses a document; the alias has not moved then.
        """
        missed: set[str] = set()
        for outcome in write_past_pipelines(self.cluster, self.source, actions, self.rejects):
            missed |= set(outcome.conflicts)
            if outcome.rejected:
                raise ClusterError(
                    f"'{self.source}' refuses {outcome.rejected} documents that were written in "
                    f"'{self.info.name}'",
                    hint=f"reasons in {self.rejects.file}; --discard leaves them behind",
                )
        self.cluster.refresh(self.source)
        return missed


def differs(content: dict[str, Any], other: SourceDocument | None, stored: Stored | None) -> bool:
    """Tell whether the source lacks this content; one that it deleted after it was seen stays deleted."""
    if other is not None:
        return other.source != content
    return stored is None or not stored.came_from_source


def returning_action(document: SourceDocument, other: SourceDocument | None) -> Action:
    """Make a document that the source lacks, or replace the very state that was compared."""
    options = other.as_read if other else {"op_type": "create"}
    return index_action(document.doc_id, document.source, **{**options, "routing": document.routing})
