"""Finds documents that clients wrote directly into an index with vectors, and decides which version of a
document wins.

**The rule.** Whatever a client inserts, changes or deletes in an index that hybridr made, by an alias or by
the index's name, is carried into the index that replaces it; or the command refuses, with the counts.

A document that a client wrote in such an index has no `_seq_no` of the source, or a negative one (see
`stored_states`). A document that a client deleted is still in the source, in the state that was copied.
When an alias leaves an index, that index's record keeps the last operation that was `carried` to the next
one. When an alias returns to an index, its record keeps the operations of the source that it has `taken`:
what hybridr itself copied to the source does not count as a change of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from shlex import quote
from typing import Any

from ..cluster.connection import Cluster, IndexLookup, json_bytes
from ..cluster.destinations import MOVES, destinations, indices_in_use, is_destination, is_restored, view_of
from ..cluster.reading import (
    Key,
    Position,
    Share,
    SourceDocument,
    counterparts,
    documents_in_pages,
    hits_by_id,
    read_pages,
    settled_position,
)
from ..cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, WHOLE, IndexInfo
from ..cluster.semantic import plain_source, stored_form
from ..cluster.writing import refused_ids
from ..errors import ClusterError, NotFound, SettingsError, quantity
from ..files.local import fingerprint
from .job import INSERTED, Stored, is_current, stored_states
from .lag import NumberedIndex, differing_spans
from .representations import fields_of

CLIENT_WRITES = {"bool": {"must_not": [{"range": {SEQ_NO_FIELD: {"gte": 0}}}]}}
PAGE = 500
NAMED_IDS = 100  # in a hint
NOTHING_CARRIED: dict[str, Any] = {"carried": None, "carried_into": "", "not_carried": ()}
"""Values of the record of an index that clients search."""


@dataclass
class Writes:
    """Writes of clients in an index with vectors that its source lacks: changed and deleted documents by key.

    `conflicts` were changed in both indices; neither is overwritten. `deletes_known` says whether deletes can
    be determined.
    """

    changed: set[Key] = field(default_factory=set)
    deleted: set[Key] = field(default_factory=set)
    conflicts: set[Key] = field(default_factory=set)
    deletes_known: bool = True

    def __bool__(self) -> bool:
        return bool(self.changed or self.deleted or self.conflicts)

    def counts(self) -> dict[str, Any]:
        """Return the number of changed, deleted and conflicting documents as JSON values."""
        names = ("changed", "deleted", "conflicts")
        return {name: len(getattr(self, name)) for name in names} | {"deletes_known": self.deletes_known}


def own_fields(info: IndexInfo) -> set[str]:
    """Return the names of the fields that hybridr adds to documents of an index with vectors."""
    return {*fields_of(info.record), ENCODER_FIELD, SEQ_NO_FIELD}


def content_of(source: Mapping[str, Any], info: IndexInfo) -> dict[str, Any]:
    """Return the body of a document without the fields that hybridr added."""
    added = own_fields(info)
    own = {name: value for name, value in source.items() if name not in added}
    return dict(plain_source(own, info.semantic))


def is_live(info: IndexInfo) -> bool:
    """Return whether the alias in the record of an index points to this index."""
    return info.record.alias in info.aliases


def current_generation(cluster: IndexLookup, source: IndexInfo) -> IndexInfo | None:
    """Return the index with vectors of a source that clients search; None if they search the source."""
    return next(iter(reversed(indices_in_use(destinations(cluster, source)))), None)


def carried_position(info: IndexInfo, generations: Sequence[IndexInfo]) -> Position | None:
    """Return the position up to which writes of clients in this index are safe elsewhere; None if none are.

    `generations` are all indices with vectors of the same source. Writes that were carried into another index
    count as safe only if clients search that index, or its writes were carried on to one that they search.
    """
    by_uuid, index = {generation.uuid: generation for generation in generations}, info
    for _ in range(len(generations) + 1):
        if index.record.carried is None:
            return None
        if not index.record.carried_into:
            return None if is_live(info) else Position(dict(info.record.carried or {}))
        if index.record.carried_into not in by_uuid:
            return None
        index = by_uuid[index.record.carried_into]
        if is_live(index) and index.uuid != info.uuid:
            return Position(dict(info.record.carried or {}))
    return None


def require_no_writes(writes: Writes, info: IndexInfo, lacking: str, hint: str) -> None:
    """Raise ClusterError, with the counts, if clients wrote what the index named `lacking` lacks."""
    if writes:
        changed = len(writes.changed) + len(writes.conflicts)
        raise ClusterError(
            f"clients changed {quantity(changed, 'document')} in '{info.name}' and "
            f"deleted {len(writes.deleted)}; '{lacking}' does not have that",
            hint=hint,
        )


def require_none_of(cluster: Cluster, info: IndexInfo) -> None:
    """Raise ClusterError, with the counts, if deleting the index `info` would lose writes of clients that
    only an index with vectors holds: `info` itself, or one made from it.
    """
    for generation in [info] if is_destination(info) else destinations(cluster, info):
        if not generation.record.in_place:
            source = generation.record.source
            hint = f"hybridr remove {quote(source)} --discard deletes them, or choose another --index"
            require_no_writes(find_writes(cluster, generation), generation, source, hint)


def require_one_option(copy_back: bool, discard: bool) -> None:
    """Raise SettingsError for --copy-back together with --discard."""
    if copy_back and discard:
        raise SettingsError(
            "--copy-back keeps what clients wrote, --discard gives it up", hint="use only one of them"
        )


def caught_refusal(check: Callable[[], None], *, dry_run: bool) -> dict[str, str | None] | None:
    """Return message and hint of the ClusterError of `check`, if any. Without `dry_run`, it is raised."""
    try:
        check()
    except ClusterError as error:
        if not dry_run:
            raise
        return {"message": error.message, "hint": error.hint}
    return None


def require_nothing_lost(cluster: Cluster, old: IndexInfo, source: IndexInfo, fate: str) -> None:
    """Raise ClusterError, with the counts, if `source` lacks what clients wrote in `old`, an index with
    vectors that it does not list (`is_unlisted`), or holds it with other content.

    Deletes count too, unless `old` was made from an index that `source` replaced: then they are unknown.
    `fate` says in the hint what `--discard` does to these documents.
    """
    is_replaced = old.record.source_uuid != source.uuid
    deleted = 0 if is_replaced else sum(map(len, ClientWrites(cluster, old).deleted_pages()))
    compared = old.with_record(old.record.changed(source=source.name, synced=None, taken={}))
    pages = ClientWrites(cluster, compared).written_pairs()
    ids = sorted({document.doc_id for page in pages for document, _ in page})
    if not ids and not deleted:
        return
    reason = "was built anew" if is_replaced else "does not list that index"
    deletes = f", and still holds {deleted:,} that they deleted" if deleted else ""
    query = {"ids": {"values": ids[:NAMED_IDS]}}
    selection = {"index": old.name, "query": query, "_source": {"excludes": sorted(own_fields(old))}}
    body = json_bytes({"source": selection, "dest": {"index": source.name}}).decode()
    part = f" the first {NAMED_IDS}" if len(ids) > NAMED_IDS else ""
    raise ClusterError(
        f"'{source.name}' {reason} and lacks {quantity(len(ids), 'document')} as clients wrote them in "
        f"'{old.name}'{deletes}",
        hint=f"POST /_reindex {body} copies{part} and overwrites what is there; --discard {fate}",
    )


def find_writes(
    cluster: Cluster, info: IndexInfo, newer: IndexInfo | None = None, view: IndexLookup | None = None
) -> Writes:
    """Find the writes of clients in an index with vectors that neither its source nor the index `newer` has.

    `newer` is by default the index that clients search now. Nothing is changed. Descriptions of indices come
    from `view`, if given, instead of the cluster. Raises NotFound if the source is gone.
    """
    view = view or view_of(cluster, str(info.record.source))
    if not view.indices(str(info.record.source)):
        raise NotFound(f"'{info.record.source}', the source of '{info.name}', is gone")
    reader = ClientWrites(cluster, info, view)
    newer = newer or current_generation(view, view.index_info(reader.source))
    writes = reader.tally
    if reader.is_idle:
        return writes
    if newer is not None and newer.uuid == info.uuid:
        newer = None
    for page in reader.written_pairs():
        conflicts, documents = reader.conflicting_keys(page), [document for document, _ in page]
        if newer is not None:
            documents = lacked_documents(cluster, newer, documents)
        keys = {document.key for document in documents}
        writes.conflicts |= keys & conflicts
        writes.changed |= keys - conflicts
    for deleted in reader.deleted_pages():
        if newer is not None:  # what it holds as copies is lost, not what clients wrote there
            states = stored_states(cluster, newer.name, deleted)
            deleted = [d for d in deleted if d.key in states and not states[d.key].written_here]
        writes.deleted |= {document.key for document in deleted}
    return writes


def stale_documents(
    cluster: Cluster,
    info: IndexInfo,
    documents: Sequence[SourceDocument],
    stored: Mapping[Key, Stored],
    encoder: str | None = None,
) -> list[SourceDocument]:
    """Return the source's documents that an index with vectors lacks or holds outdated (`is_current`)."""
    unseen = [d for d in documents if d.key in stored and stored[d.key].source_seq_no is None]
    changed_keys: set[Key] | None = None
    if unseen:
        writes = ClientWrites(cluster, info)
        changed_keys = writes.changed_in_source(unseen) if writes.synced else None
    changes = {d.key: None if changed_keys is None else d.key in changed_keys for d in documents}
    return [d for d in documents if not is_current(d, stored.get(d.key), encoder, changes[d.key])]


def expected_count(cluster: Cluster, info: IndexInfo, missing: Collection[str]) -> int:
    """Return how many documents an index with vectors should hold.

    That is the count of its source, minus the source's documents with `missing` ids that the index lacks,
    plus documents that clients added to the index and the source never had.
    """
    lacking = 0
    for page in documents_in_pages(
        cluster, info.record.source, sorted(set(missing)), page=PAGE, with_source=False
    ):
        lacking += len(page) - len(counterparts(cluster, info, page, with_source=False))
    added = cluster.count(info.name, {"range": {SEQ_NO_FIELD: INSERTED}})
    return cluster.count(info.record.source) - lacking + added


def lacked_documents(
    cluster: Cluster, info: IndexInfo, documents: Sequence[SourceDocument]
) -> list[SourceDocument]:
    """Return those documents (without hybridr's fields) that an index lacks or holds with other content."""
    cluster.refresh(info.name)
    copies = counterparts(cluster, replace(info, semantic={}), documents)
    contents = {key: content_of(document.source, info) for key, document in copies.items()}
    return [document for document in documents if contents.get(document.key) != document.source]


Pair = tuple[SourceDocument, SourceDocument | None]


class ClientWrites:
    """Reads the writes of clients in an index with vectors ("here") and compares them with its source.

    Writes up to the position `carried_until` are safe in another index. `synced` is the position of the
    source up to which its changes are here; None if unknown. `returned_hashes` maps keys to fingerprints of
    documents that were copied from here back to the source. `tally` collects what was read or copied.
    """

    def __init__(self, cluster: Cluster, info: IndexInfo, view: IndexLookup | None = None) -> None:
        view = view or cluster
        self.cluster = cluster
        self.info = info
        self.source = str(info.record.source)
        self.refused = set(refused_ids(info))
        self.source_info = view.index_info(self.source)
        self.carried_until = carried_position(info, destinations(view, self.source_info))
        synced = info.record.synced
        self.source_restored = is_restored(info, self.source_info)
        self.synced = Position(dict(synced)) if synced and not self.source_restored else None
        self.taken = info.record.taken
        self.returned_hashes: dict[Key, str] = {}
        # Without the whole list of refused documents, they cannot be distinguished from deleted ones.
        is_exact = self.synced is not None and len(self.refused) >= info.record.rejected
        self.tally = Writes(deletes_known=is_exact)

    @property
    def is_idle(self) -> bool:
        """Return whether clients wrote nothing here since their writes were carried to another index."""
        is_carried = self.carried_until is not None and not self.info.record.not_carried
        return (
            is_carried and settled_position(self.cluster, self.info, self.carried_until) == self.carried_until
        )

    def written_pairs(self) -> Iterator[list[Pair]]:
        """Yield pages of documents that clients wrote here and that differ from the source, each paired with
        the source's document (None if the source has none).
        """
        for page, stored in self.written_pages():
            originals = counterparts(self.cluster, self.source_info, page)
            pairs = []
            for document in page:
                content, original = self.content_of(document), originals.get(document.key)
                state = stored.get(document.key)
                if original is not None:
                    is_different = original.source != content
                else:  # deleted in the source after hybridr copied it: stays deleted
                    is_different = state is None or not state.came_from_source
                is_returned = self.returned_hashes.get(document.key) == fingerprint(content)
                if is_different and not is_returned:  # the source has changed a returned one since
                    pairs.append((document._replace(source=content), original))
            if pairs:
                yield pairs

    def content_of(self, document: SourceDocument) -> dict[str, Any]:
        """Return a document's body as the source would return it: without hybridr's fields and embeddings."""
        semantic = self.source_info.semantic
        return stored_form(plain_source(content_of(document.source, self.info), semantic), semantic)

    def written_pages(
        self, share: Share | None = None
    ) -> Iterator[tuple[list[SourceDocument], dict[Key, Stored]]]:
        """Yield pages of documents that clients wrote here, with the stored state of each.

        An index that clients do not search yields no documents that hybridr carried there from another index.
        """
        self.cluster.refresh(self.info.name)
        share, whole = share or Share(since=self.carried_until), replace(self.info, scope=WHOLE)
        contested = sorted(self.info.record.not_carried) if self.carried_until else []
        pages = chain(
            read_pages(self.cluster, whole, page=PAGE, share=share, where=CLIENT_WRITES),
            documents_in_pages(self.cluster, self.info.name, contested, page=PAGE),
        )
        for page in pages:
            stored = stored_states(self.cluster, self.info.name, page)
            if not is_live(self.info):
                page = [d for d in page if d.key in stored and not stored[d.key].carried_from]
            if page:
                yield page, stored

    def conflicting_keys(self, pairs: Sequence[Pair]) -> set[Key]:
        """Return the keys of documents that the source changed too since the synced position.

        What hybridr copied back itself, and a source state that was seen here, do not count as changes.
        Without a synced position every document of the source counts as changed.
        """
        originals = {document.key: original for document, original in pairs if original is not None}
        stored = stored_states(self.cluster, self.info.name, [document for document, _ in pairs])
        changed_keys = self.changed_in_source(
            [document for document, _ in pairs if document.key in originals]
        )
        return {
            key
            for key, original in originals.items()
            if key in changed_keys
            and self.returned_hashes.get(key) != fingerprint(original.source)
            and not (key in stored and stored[key].source_seq_no == original.seq_no)
        }

    def changed_in_source(self, documents: Sequence[SourceDocument]) -> set[Key]:
        """Return the keys of those documents that the source changed after the synced position, except by
        operations listed in the record's `taken`; all keys without a synced position.
        """
        if self.synced is None:
            return {document.key for document in documents}
        ids = list({document.doc_id: None for document in documents})
        keys: set[Key] = set()
        for shard, last in self.synced.seq_no.items():
            later_range = {"range": {"_seq_no": {"gt": last}}}
            query = {"bool": {"must": [later_range], "must_not": self.taken_queries(shard)}}
            params = {"preference": f"_shards:{shard}"}
            hits = hits_by_id(self.cluster, self.source, ids, {"_source": False}, query, params)
            keys |= {(hit["_id"], hit.get("_routing") or "") for hit in hits}
        later_ids = {doc_id for doc_id, _ in keys}
        rerouted = [d for d in documents if d.doc_id in later_ids and d.key not in keys]  # other routing
        originals = (
            counterparts(self.cluster, self.source_info, rerouted, with_source=False) if rerouted else {}
        )
        replaced = {key for key, original in originals.items() if original.key in keys}
        return replaced | {document.key for document in documents if document.key in keys}

    def taken_queries(self, shard: int) -> list[dict[str, Any]]:
        """Return queries for the operations of a source shard that the record lists in `taken`."""
        spans = self.taken.get(shard, ())
        return [{"range": {"_seq_no": {"gte": first, "lte": last}}} for first, last in spans]

    def deleted_by_clients(self, missing: Sequence[SourceDocument]) -> set[Key]:
        """Return the keys of the `missing` documents (the source has them) that clients deleted here."""
        if self.synced is None or not self.tally.deletes_known:
            return set()
        changed = self.changed_in_source(missing)
        return {d.key for d in missing if d.doc_id not in self.refused and d.key not in changed}

    def deleted_pages(self) -> Iterator[list[SourceDocument]]:
        """Yield pages of documents that clients deleted here and the source still holds in the copied state.

        Yields nothing for an index from which a rollback moved the alias: its deletes were copied back or
        discarded then.
        """
        record = self.info.record
        moves = [event["event"] for event in record.history if event["event"] in MOVES]
        is_given_up = not is_live(self.info) and (record.state != "complete" or moves[-1:] != ["switched"])
        if self.synced is None or not self.tally.deletes_known or is_given_up:
            return
        for page in self.doubtful_pages(self.synced):
            states = stored_states(self.cluster, self.info.name, page)
            missing = [d for d in page if d.key not in states and d.doc_id not in self.refused]
            if missing:
                yield missing

    def doubtful_pages(self, until: Position) -> Iterator[list[SourceDocument]]:
        """Yield pages of documents of the source that were copied into this index and may be missing here.

        These are documents copied back to the source, documents in ranges of operations that differ between
        both indices, and operations in the record's `taken`.
        """
        ids = sorted({doc_id for doc_id, _ in self.returned_hashes})
        yield from documents_in_pages(self.cluster, self.source, ids, page=PAGE, with_source=False)
        originals = NumberedIndex(self.cluster, self.source_info, "_seq_no")
        copies = NumberedIndex(self.cluster, self.info, SEQ_NO_FIELD)
        for shard, spans in differing_spans(originals, copies, until):
            last = until.seq_no.get(shard, -1)  # later documents were not copied, so they are not missing
            yield from originals.pages(Share(until=Position({shard: last})), spans)
        for shard, numbers in self.taken.items():
            share = Share(until=Position({shard: numbers[-1][1]}))
            where = {"bool": {"should": self.taken_queries(shard)}}
            yield from read_pages(self.cluster, self.source, page=PAGE, share=share, where=where, fields=())
