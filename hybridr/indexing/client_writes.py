"""Finds documents that clients wrote directly into an index with vectors, and decides which version of a
document wins.

**The rule.** Whatever a client inserts, changes or deletes in an index that hybridr made, by an alias or by
the index's name, is carried into the index that takes its place; or the command refuses, with the counts.

A document that a client wrote in such an index bears no `_seq_no` of the source, or a negative one (see
`look_up`). One that a client deleted is in the source, in a state that was copied, and not in the index.
An index that its alias has left keeps in its record up to which operation that was `carried`. One that its
alias went back to keeps which operations of the source it has `taken` before the next round: what hybridr
copied to the source is no change of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from ..cluster.connection import Cluster, Describing, as_json
from ..cluster.destinations import MOVES, destinations, is_destination, is_restored, live
from ..cluster.reading import (
    Key,
    Position,
    Share,
    SourceDocument,
    documents_in_pages,
    hits_by_id,
    read_pages,
    same_documents,
    settled_position,
)
from ..cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, IndexInfo
from ..cluster.semantic import as_stored_with, plain_source
from ..cluster.writing import refused_ids
from ..errors import ClusterError, NotFound, SettingsError, quantity
from ..files.local import fingerprint
from .job import INSERTED, Stored, is_current, look_up
from .lag import Numbered, differing
from .representations import fields_of

WRITTEN = {"bool": {"must_not": [{"range": {SEQ_NO_FIELD: {"gte": 0}}}]}}
PAGE = 500
NAMED_IDS = 100  # in a hint
NOTHING_CARRIED: dict[str, Any] = {"carried": None, "carried_into": "", "not_carried": ()}
"""Values of the record of an index that clients search."""


@dataclass
class Writes:
    """Writes of clients in an index with vectors that its source lacks: changed and deleted documents by key.

    `conflicts` were changed in both indices and stay as they are. `deletes_known` says whether deletes can be
    told.
    """

    changed: set[Key] = field(default_factory=set)
    deleted: set[Key] = field(default_factory=set)
    conflicts: set[Key] = field(default_factory=set)
    deletes_known: bool = True

    def __bool__(self) -> bool:
        return bool(self.changed or self.deleted or self.conflicts)

    def counts(self) -> dict[str, Any]:
        """Return the number of changed, deleted and conflicting documents as JSON values."""
        lists = ("changed", "deleted", "conflicts")
        return {name: len(getattr(self, name)) for name in lists} | {"deletes_known": self.deletes_known}


def own_fields(info: IndexInfo) -> set[str]:
    """Return the names of the fields that hybridr adds to documents of an index with vectors."""
    return {*fields_of(info.record), ENCODER_FIELD, SEQ_NO_FIELD}


def content_of(source: Mapping[str, Any], info: IndexInfo) -> dict[str, Any]:
    """Return the body of a document without the fields that hybridr added."""
    ours = own_fields(info)
    return plain_source({name: value for name, value in source.items() if name not in ours}, info.semantic)


def is_live(info: IndexInfo) -> bool:
    """Return whether the alias in the record of an index points to this index."""
    return info.record.alias in info.aliases


def current_generation(cluster: Describing, source: IndexInfo) -> IndexInfo | None:
    """Return the index with vectors of a source that clients search; None if they search the source
    itself.
    """
    return next(iter(reversed(live(destinations(cluster, source)))), None)


def written_since(info: IndexInfo, generations: Sequence[IndexInfo]) -> Position | None:
    """Return the position from which on writes of clients in this index exist nowhere else; None means from
    the start.

    `generations` are all indices with vectors of the same source. Writes that were carried into another index
    count as safe only if clients search that index, or its writes were carried on to one that they search.
    """
    by_uuid, at = {generation.uuid: generation for generation in generations}, info
    for _ in range(len(generations) + 1):
        if at.record.carried is None:
            return None
        if not at.record.carried_into:
            return None if is_live(info) else Position(dict(info.record.carried or {}))
        if at.record.carried_into not in by_uuid:
            return None
        at = by_uuid[at.record.carried_into]
        if is_live(at) and at.uuid != info.uuid:
            return Position(dict(info.record.carried or {}))
    return None


def require_none(writes: Writes, info: IndexInfo, lacking: str, hint: str) -> None:
    """Raise ClusterError, with the counts, if clients wrote documents that the index named `lacking` does not
    have.
    """
    if writes:
        changed = len(writes.changed) + len(writes.conflicts)
        raise ClusterError(
            f"clients changed {quantity(changed, 'document')} in '{info.name}' and "
            f"deleted {len(writes.deleted)}; '{lacking}' does not have that",
            hint=hint,
        )


def require_none_of(cluster: Cluster, info: IndexInfo) -> None:
    """Raise ClusterError, with the counts, if clients wrote what an index with vectors alone holds: one that
    was made of the index `info`, or that is `info`, which is to be deleted.
    """
    for generation in [info] if is_destination(info) else destinations(cluster, info):
        if not generation.record.in_place:
            source = generation.record.source
            hint = f"hybridr remove {source} --discard gives them up, or choose another --index"
            require_none(find_writes(cluster, generation), generation, source, hint)


def require_one_fate(copy_back: bool, discard: bool) -> None:
    """Raise SettingsError if writes of clients are to be both copied back and given up."""
    if copy_back and discard:
        raise SettingsError(
            "--copy-back keeps what clients wrote, --discard gives it up", hint="take one of them"
        )


def refusal_by(check: Callable[[], None], *, dry_run: bool) -> dict[str, str | None] | None:
    """Return message and hint of the ClusterError that `check` raises, or None. Unless it is a dry run, the
    error is raised.
    """
    try:
        check()
    except ClusterError as error:
        if not dry_run:
            raise
        return {"message": error.message, "hint": error.hint}
    return None


def require_none_behind(cluster: Cluster, old: IndexInfo, source: IndexInfo, fate: str) -> None:
    """Raise ClusterError, with the count, if clients wrote documents in an index with vectors of an earlier
    source that `source`, which replaced that, lacks or holds with another content.

    `fate` says in the hint what `--discard` does to them.
    """
    compared = old.with_record(old.record.changed(source=source.name, synced=None, taken={}))
    pages = ClientWrites(cluster, compared).written()
    ids = sorted({document.doc_id for page in pages for document, _ in page})
    if not ids:
        return
    which = {"ids": {"values": ids[:NAMED_IDS]}}
    written = {"index": old.name, "query": which, "_source": {"excludes": sorted(own_fields(old))}}
    copying = as_json({"source": written, "dest": {"index": source.name}}).decode()
    part = f" the first {NAMED_IDS}" if len(ids) > NAMED_IDS else ""
    raise ClusterError(
        f"'{source.name}' was built anew and lacks {quantity(len(ids), 'document')} as clients wrote them in "
        f"'{old.name}'",
        hint=f"POST /_reindex {copying} writes{part} over what is there; --discard {fate}",
    )


def find_writes(
    cluster: Cluster, info: IndexInfo, newer: IndexInfo | None = None, view: Describing | None = None
) -> Writes:
    """Find the writes of clients in an index with vectors that neither its source nor the index `newer` has.

    Nothing is changed. Without `newer` that is the index that clients search now. Descriptions of indices
    come from `view`, if given, instead of the cluster. Raises NotFound if the source is gone.
    """
    if not cluster.exists(info.record.source):
        raise NotFound(f"'{info.record.source}', the source of '{info.name}', is gone")
    view = view or cluster
    there = ClientWrites(cluster, info, view)
    newer = newer or current_generation(view, view.index_info(there.source))
    counted = there.done
    if there.is_idle:
        return counted
    newer_index = OtherIndex(cluster, newer) if newer is not None and newer.uuid != info.uuid else None
    for page in there.written():
        conflicts, documents = there.conflicts(page), [document for document, _ in page]
        lost = newer_index.without(documents) if newer_index else documents
        keys = {document.key for document in lost}
        counted.conflicts |= keys & conflicts
        counted.changed |= keys - conflicts
    for gone in there.gone():
        deleted = newer_index.copies(gone) if newer_index else gone
        counted.deleted |= {document.key for document in deleted}
    return counted


def outdated(
    cluster: Cluster,
    info: IndexInfo,
    documents: Sequence[SourceDocument],
    stored: Mapping[Key, Stored],
    encoder: str,
) -> list[SourceDocument]:
    """Return those documents of the source that an index with vectors lacks or holds in an earlier state, by
    the rule of `is_current`.
    """
    unseen = [d for d in documents if d.key in stored and stored[d.key].source_seq_no is None]
    newer: set[Key] | None = None
    if unseen:
        writes = ClientWrites(cluster, info)
        newer = writes.changed_in_source(unseen) if writes.synced else None
    return [
        document
        for document in documents
        if not is_current(
            document,
            stored.get(document.key),
            encoder,
            None if newer is None else document.key in newer,
        )
    ]


def expected_count(cluster: Cluster, info: IndexInfo, missing: Collection[str]) -> int:
    """Return how many documents an index with vectors should hold.

    That is the count of its source, minus those of the `missing` ids that it lacks, plus documents that
    clients added to the index and the source never had.
    """
    lacking = 0
    for page in documents_in_pages(cluster, info.record.source, sorted(set(missing)), page=PAGE, whole=False):
        lacking += len(page) - len(same_documents(cluster, info, page, whole=False))
    theirs = cluster.count(info.name, {"range": {SEQ_NO_FIELD: INSERTED}})
    return cluster.count(info.record.source) - lacking + theirs


@dataclass(frozen=True)
class OtherIndex:
    """An index with vectors of the same source, which may hold what clients wrote in another one."""

    cluster: Cluster
    info: IndexInfo

    def without(self, documents: Sequence[SourceDocument]) -> list[SourceDocument]:
        """Return those of the documents (without hybridr's fields) that this index lacks or holds with
        another content.
        """
        self.cluster.refresh(self.info.name)
        here = same_documents(self.cluster, replace(self.info, semantic={}), documents)
        contents = {key: content_of(document.source, self.info) for key, document in here.items()}
        return [document for document in documents if contents.get(document.key) != document.source]

    def copies(self, documents: Sequence[SourceDocument]) -> list[SourceDocument]:
        """Return those documents of the source that this index holds as copies, not as writes of a client."""
        here = look_up(self.cluster, self.info.name, documents)
        return [d for d in documents if d.key in here and not here[d.key].written_here]


Pair = tuple[SourceDocument, SourceDocument | None]


class ClientWrites:
    """Reads the writes of clients in an index with vectors and compares them with its source.

    `returned` maps keys to fingerprints of documents that were copied from here back to the source.
    """

    def __init__(self, cluster: Cluster, info: IndexInfo, view: Describing | None = None) -> None:
        view = view or cluster
        self.cluster = cluster
        self.info = info
        self.source = str(info.record.source)
        self.refused = set(refused_ids(info))
        self.source_info = there = view.index_info(self.source)
        self.since = written_since(info, destinations(view, there))
        synced = info.record.synced
        self.restored = is_restored(info, there)
        self.synced = Position(dict(synced)) if synced and not self.restored else None
        self.taken = info.record.taken
        self.returned: dict[Key, str] = {}
        # A document that was refused cannot be told from a deleted one without the list of refused ones.
        is_exact = self.synced is not None and len(self.refused) >= info.record.rejected
        self.done = Writes(deletes_known=is_exact)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing was written here since all writes of clients were carried to another
        index.
        """
        is_whole = self.since is not None and not self.info.record.not_carried
        return is_whole and settled_position(self.cluster, self.info) == self.since

    def written(self) -> Iterator[list[Pair]]:
        """Yield pages of documents that clients wrote here and that differ from the source, each with the
        source's document or None.
        """
        for page, stored in self.written_pages():
            there = same_documents(self.cluster, self.source_info, page)
            pairs = []
            for document in page:
                content, copy = self.content_of(document), there.get(document.key)
                state = stored.get(document.key)
                if copy is not None:
                    is_lacking = copy.source != content
                else:  # what the source deleted after it was seen stays deleted
                    is_lacking = state is None or not state.came_from_source
                is_returned = self.returned.get(document.key) == fingerprint(content)
                if is_lacking and not is_returned:  # else it was changed or deleted there since
                    pairs.append((document._replace(source=content), copy))
            if pairs:
                yield pairs

    def content_of(self, document: SourceDocument) -> dict[str, Any]:
        """Return the body of a document as the source would return it: without hybridr's fields and
        embeddings.
        """
        semantic = self.source_info.semantic
        return as_stored_with(plain_source(content_of(document.source, self.info), semantic), semantic)

    def written_pages(
        self, share: Share | None = None
    ) -> Iterator[tuple[list[SourceDocument], dict[Key, Stored]]]:
        """Yield pages of documents that clients wrote here, with the stored state of each.

        In an index that clients do not search, documents that hybridr carried there from another index are
        left out.
        """
        self.cluster.refresh(self.info.name)
        share = share or Share(since=self.since)
        contested = sorted(self.info.record.not_carried) if self.since else []
        pages = chain(
            read_pages(self.cluster, self.info.name, page=PAGE, share=share, where=WRITTEN),
            documents_in_pages(self.cluster, self.info.name, contested, page=PAGE),
        )
        for page in pages:
            stored = look_up(self.cluster, self.info.name, page)
            if not is_live(self.info):
                page = [d for d in page if d.key in stored and not stored[d.key].carried_from]
            if page:
                yield page, stored

    def conflicts(self, pairs: Sequence[Pair]) -> set[Key]:
        """Return the keys of documents that the source changed too since the last round, other than by
        hybridr's own copies.
        """
        there = {document.key: copy for document, copy in pairs if copy is not None}
        stored = look_up(self.cluster, self.info.name, [document for document, _ in pairs])
        newer = self.changed_in_source([document for document, copy in pairs if copy is not None])
        return {
            key
            for key, copy in there.items()
            if key in newer
            and self.returned.get(key) != fingerprint(copy.source)
            and not (key in stored and stored[key].source_seq_no == copy.seq_no)
        }

    def changed_in_source(self, documents: Sequence[SourceDocument]) -> set[Key]:
        """Return the keys of those documents that the source changed after the synced position, except by
        operations listed in `taken`; all of them if there is no position.
        """
        if self.synced is None:
            return {document.key for document in documents}
        ids = list({document.doc_id: None for document in documents})
        newer: set[Key] = set()
        for shard, last in self.synced.seq_no.items():
            behind = {"range": {"_seq_no": {"gt": last}}}
            since = {"bool": {"must": [behind], "must_not": self.taken_here(shard)}}
            params = {"preference": f"_shards:{shard}"}
            hits = hits_by_id(self.cluster, self.source, ids, {"_source": False}, since, params)
            newer |= {(hit["_id"], hit.get("_routing") or "") for hit in hits}
        newer_ids = {doc_id for doc_id, _ in newer}
        moved = [d for d in documents if d.doc_id in newer_ids and d.key not in newer]
        there = same_documents(self.cluster, self.source_info, moved, whole=False) if moved else {}
        replaced = {key for key, document in there.items() if document.key in newer}
        return replaced | {document.key for document in documents if document.key in newer}

    def taken_here(self, shard: int) -> list[dict[str, Any]]:
        """Return queries for the operations of a shard of the source that are listed in `taken`."""
        spans = self.taken.get(shard, ())
        return [{"range": {"_seq_no": {"gte": first, "lte": last}}} for first, last in spans]

    def deleted_here(self, missing: Sequence[SourceDocument]) -> set[Key]:
        """Return the keys of those `missing` documents, which the source has and this index lacks, that
        clients deleted here.
        """
        if self.synced is None or not self.done.deletes_known:
            return set()
        changed = self.changed_in_source(missing)
        return {d.key for d in missing if d.doc_id not in self.refused and d.key not in changed}

    def gone(self) -> Iterator[list[SourceDocument]]:
        """Yield pages of documents that clients deleted here while the source still holds the copied state.

        Yields nothing for an index that a rollback left: its deletes were copied back or discarded then.
        """
        record = self.info.record
        moves = [event["event"] for event in record.history if event["event"] in MOVES]
        is_given_up = not is_live(self.info) and (record.state != "complete" or moves[-1:] != ["switched"])
        if self.synced is None or not self.done.deletes_known or is_given_up:
            return
        for page in self.doubtful_pages(self.synced):
            here = look_up(self.cluster, self.info.name, page)
            away = [d for d in page if d.key not in here and d.doc_id not in self.refused]
            if away:
                yield away

    def doubtful_pages(self, until: Position) -> Iterator[list[SourceDocument]]:
        """Yield pages of documents of the source that were copied into this index and may be missing now.

        These are documents copied back to the source, ranges in which both indices hold different operations,
        and operations `taken` after the synced position.
        """
        ids = sorted({doc_id for doc_id, _ in self.returned})
        yield from documents_in_pages(self.cluster, self.source, ids, page=PAGE, whole=False)
        originals = Numbered(self.cluster, self.cluster.index_info(self.source), "_seq_no")
        copies = Numbered(self.cluster, self.info, SEQ_NO_FIELD)
        for shard, spans in differing(originals, copies, until):
            last = until.seq_no.get(shard, -1)  # what came later was not copied, and is not missing
            yield from originals.pages(Share(until=Position({shard: last})), spans)
        for shard, numbers in self.taken.items():
            share = Share(until=Position({shard: numbers[-1][1]}))
            where = {"bool": {"should": self.taken_here(shard)}}
            yield from read_pages(self.cluster, self.source, page=PAGE, share=share, where=where, fields=())
