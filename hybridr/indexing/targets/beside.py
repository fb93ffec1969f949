"""The target beside the source: vectors go into a new index, which gets an alias."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...cluster.aliases import alias_target
from ...cluster.connection import Cluster
from ...cluster.default_pipeline import is_searchable
from ...cluster.destinations import (
    default_alias,
    forget_destinations,
    is_destination_of,
    is_restored,
    register_destination,
    rewrite,
    view_of,
)
from ...cluster.reading import (
    ALL,
    Key,
    Position,
    Share,
    SourceDocument,
    count_missing,
    counterparts,
    documents_in_pages,
    hidden_operations,
    hit_options,
    hits_by_id,
    read_pages,
    settled_position,
    source_document,
)
from ...cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, IndexInfo
from ...cluster.writing import Action, bulk_action
from ...errors import NotFound
from ...files.remembered import forget_encoder
from ...records import Progress, silent
from ..beside_index import new_index_body, plan_new_index, updated_record, view_of_plan
from ..client_writes import ClientWrites, current_generation, find_writes, is_live, stale_documents
from ..filling import (
    MAX_PASSES,
    MAX_ROUNDS,
    Fill,
    Work,
    fill_in_passes,
    fill_share,
    send_in_bulk,
    update_mapping,
)
from ..final_pipelines import ensure_wrapped, owners_pipeline, wrapper_for_new_index
from ..job import (
    INSERTED,
    Filling,
    Job,
    Meter,
    Pending,
    document_body,
    renewal_options,
    stored_states,
    write_over,
    written_here_mark,
)
from ..lag import measure_lag, vanished_pages
from ..planning import Plan
from ..reindexing import catch_up, synced_position
from ..semantic_models import created_models, require_answer
from ..switching import Convoy, move_alias, prepare_completion
from ..verification import compare_with_source, require_verified
from . import Ending, Extent, LastLook, Round, State


class Beside:
    """A new index with all documents and their vectors; the source stays unchanged."""

    name = "beside"
    is_separate = True

    plan = staticmethod(plan_new_index)
    findings = staticmethod(compare_with_source)

    def begin(self, cluster: Cluster, todo: Plan) -> IndexInfo:
        """Create the index, or prepare that of an earlier run for the fill; return its description."""
        planned = todo.record
        if todo.exists and planned.semantic:
            require_answer(cluster, planned.semantic, todo.proposal.encoder)
        is_usable = False
        with ExitStack() as undoing:
            if not todo.live:
                first, owners = todo.requests[-4], owners_pipeline(planned.original)
                undoing.enter_context(wrapper_for_new_index(cluster, todo.destination, owners))
                body = first["body"]
                if planned.semantic and not todo.exists:
                    models = undoing.enter_context(created_models(cluster, todo))
                    body = new_index_body(todo.proposal, planned.changed(semantic=models))
                answer = cluster.request(first["method"], first["path"], body)
                is_usable = not todo.exists and answer.get("shards_acknowledged", False)
        view = view_of_plan(cluster, todo)
        info = view.index_info(todo.destination)
        if todo.exists and ensure_wrapped(cluster, info) is not info:
            view = view_of_plan(cluster, todo)
            info = view.index_info(todo.destination)
        if todo.exists and updated_record(planned, info.record) != info.record:
            info = rewrite(cluster, info.name, partial(updated_record, planned))
            view = view_of_plan(cluster, todo)
        register_destination(cluster, info, view)
        if not is_usable:
            cluster.wait_until_usable(todo.destination)
        return info

    def fill(
        self, job: Job, *, since: Position | None = None, once: bool = False, progress: Progress = silent
    ) -> Filling:
        """Copy every document of the source into the new index, and delete documents there that the source
        no longer has; return the counts.
        """
        total, task = Filling(), Fill.begun(job, COPYING, since, progress)
        for _ in range(MAX_ROUNDS):
            fill_in_passes(task, since, 1 if once else MAX_PASSES, total)
            if may_have_vanished(job, since, total):
                total.deleted += delete_vanished(job, total.until)
            if once or total.settled or counts_agree(job):
                break
            # A document can become visible after one that was written later: read all of them again.
            total.rejected = total.skipped = 0
            job.rejects.clear()
        return total

    def retry(self, job: Job, doc_ids: Sequence[str]) -> Filling:
        """Write rejected documents again, in the state that the source has now."""
        work = COPYING._replace(pages=partial(pages_of_ids, doc_ids))
        return fill_share(job, work, Meter(), ALL)

    def complete(self, job: Job, todo: Plan, filling: Filling, progress: Progress) -> Ending:
        """Encode what clients wrote here, copy what they wrote to earlier indices, verify, move the alias.

        The alias stays if documents were rejected and the settings do not accept that.
        """
        filling.add(encode_stale(job, filling.until, progress))
        view = view_of_plan(job.cluster, todo)
        source, searched = view.index_info(job.source), alias_target(view, todo.record.alias)
        if searched is None or searched.uuid == source.uuid or not is_destination_of(searched, source):
            searched = current_generation(view, source)
        convoy = Convoy.of(job, view, searched, progress=progress)
        filling.add(convoy.carry())
        info, end_record = prepare_completion(job, todo, filling, convoy.deleted, view)
        missing = frozenset({*job.rejects.ids(), *convoy.deleted})
        extent = Extent(missing, filling.until, progress=progress, source=source)
        require_verified(job.cluster, info, job.encoder, extent)
        view = end_record()
        if filling.rejected and not job.settings.accept_rejects:
            return Ending(filling.rejected, info=view.index_info(todo.destination))
        return move_alias(job, todo, filling, convoy, view)

    def sync(self, job: Job, info: IndexInfo, progress: Progress) -> Round:
        """Copy what changed in the source, and what clients wrote into indices searched before; then encode
        what clients wrote here.
        """
        if info.record.semantic:
            require_answer(job.cluster, info.record.semantic, job.encoder)
        info = ensure_wrapped(job.cluster, info)
        update_mapping(job)
        filling, info = catch_up(job, info, progress=progress)
        # A process that died may have written a copy after another process had finished, of a document that
        # the source had deleted before the recorded position.
        copies: dict[str, Any] = {"filter": [{"exists": {"field": SEQ_NO_FIELD}}]}
        copies["must_not"] = [{"range": {SEQ_NO_FIELD: INSERTED}}]
        if job.cluster.count(job.destination, {"bool": copies}) > job.cluster.count(job.source):
            filling.deleted += delete_vanished(job, filling.until)
        convoy = Convoy.of(job, view_of(job.cluster, job.source), info, left_only=True, progress=progress)
        filling.add(convoy.carry())
        convoy.record()
        renewal = encode_stale(job, filling.until, progress)
        return Round(
            filling.encoded + filling.without_text,
            filling.deleted,
            renewal.encoded + renewal.without_text - renewal.skipped - renewal.rejected,
            renewal.skipped,
            filling.rejected + renewal.rejected,
        )

    def state(self, cluster: Cluster, info: IndexInfo) -> State:
        """Return how many documents are current, how far the source is ahead, and what clients wrote here."""
        cluster.refresh(info.name)
        current = cluster.count(info.name, {"term": {ENCODER_FIELD: info.record.encoder}})
        if not (cluster.exists(info.record.source) and is_searchable(cluster, info)):
            return State(current)
        if is_restored(info, cluster.index_info(info.record.source)):
            return State(current)
        writes = find_writes(cluster, info).counts()
        lag = measure_lag(cluster, info, synced_position(info), partial(stale_documents, cluster, info))
        return State(current - lag.updates, lag, writes)

    def remove(
        self, cluster: Cluster, source: str, infos: Sequence[IndexInfo], last_look: LastLook, *, dry_run: bool
    ) -> dict[str, Any]:
        """Move the aliases of the indices to the source, in one atomic request, run the final check, and
        delete the indices; the source is never deleted.
        """
        own_names, sources = own_aliases(source, infos), cluster.indices(source)
        pairs = ((info, alias) for info in sources for alias in sorted(own_names & info.aliases.keys()))
        moves = [AliasMove(info, alias, "") for info, alias in pairs]
        moves += moves_from(infos, own_names, source if sources else "")
        actions = delete_indices(cluster, infos, moves, last_look, dry_run=dry_run)
        if not dry_run:
            for info in infos:
                forget_encoder(info.record.source_uuid)
            if cluster.exists(source):
                forget_destinations(cluster, cluster.index_info(source), {info.uuid for info in infos})
        return {"indices": [info.name for info in infos], "actions": actions}


@dataclass(frozen=True)
class AliasMove:
    """An alias that is removed from an index, and added to the index `to` unless that is empty."""

    info: IndexInfo
    alias: str
    to: str

    def actions(self) -> list[dict[str, Any]]:
        """Return the alias actions that move the alias."""
        moves = [{"remove": {"index": self.info.name, "alias": self.alias, "must_exist": True}}]
        addition = {"index": self.to, "alias": self.alias, **self.info.aliases[self.alias]}
        return [*moves, {"add": addition}] if self.to else moves

    def undo(self) -> list[dict[str, Any]]:
        """Return the alias actions that move the alias back."""
        back = {"index": self.info.name, "alias": self.alias, **self.info.aliases[self.alias]}
        removal = {"remove": {"index": self.to, "alias": self.alias, "must_exist": True}}
        return [removal, {"add": back}] if self.to else [{"add": back}]


def own_aliases(source: str, infos: Sequence[IndexInfo]) -> set[str]:
    """Return the names of the aliases that hybridr made for a source: the usual one, and those that the
    records of its indices with vectors name.
    """
    names = ({alias for alias, how in info.record.aliases.items() if how == "made"} for info in infos)
    return {default_alias(source)}.union(*names)


def moves_from(infos: Sequence[IndexInfo], own_names: Collection[str], source: str) -> list[AliasMove]:
    """Return the moves of all aliases away from `infos`: `own_names` are removed, others go to `source`."""
    pairs = ((info, alias) for info in infos for alias in sorted(info.aliases))
    return [AliasMove(info, alias, "" if alias in own_names else source) for info, alias in pairs]


def delete_indices(
    cluster: Cluster,
    infos: Sequence[IndexInfo],
    alias_moves: Sequence[AliasMove],
    last_look: LastLook,
    *,
    dry_run: bool,
) -> list[dict[str, Any]]:
    """Move aliases away, take a last look, and delete the indices; return all alias actions.

    If the look raises or the deletion is refused, the aliases are moved back. A dry run sends nothing.
    """
    moves = [action for move in alias_moves for action in move.actions()]
    deletions = [{"remove_index": {"index": info.name}} for info in infos]
    actions = [*moves, *deletions]
    if dry_run:
        return actions
    if moves:
        cluster.request("POST", "/_aliases", {"actions": moves})
    if not infos:
        return actions
    try:
        last_look()
        cluster.request("POST", "/_aliases", {"actions": deletions})
    except BaseException:
        undo = [action for move in alias_moves for action in move.undo()]
        with suppress(NotFound):  # the indices were deleted although the answer was lost
            if undo:
                cluster.request("POST", "/_aliases", {"actions": undo})
        raise
    return actions


def pages_to_copy(job: Job, share: Share, filling: Filling, meter: Meter) -> Iterator[list[Pending]]:
    """Yield pages of documents of the source that the destination lacks or holds outdated."""
    pages = read_pages(
        job.cluster, job.source_before, page=job.settings.read_documents, share=share, position=filling.until
    )
    for documents in pages:
        pending = documents_to_copy(job, documents)
        filling.skipped += len(documents) - len(pending)
        meter.add(len(documents) - len(pending))
        if pending:
            yield pending


def documents_to_copy(job: Job, documents: Sequence[SourceDocument]) -> list[Pending]:
    """Return the documents that the destination lacks or holds outdated, each with its stored state.

    Documents that clients deleted from a live destination, or wrote there, are left out unless the source
    changed them since.
    """
    stored, deleted = stored_states(job.cluster, job.destination, documents), set[Key]()
    missing = [document for document in documents if document.key not in stored]
    if is_live(job.destination_before) and missing:
        deleted = ClientWrites(job.cluster, job.destination_before).deleted_by_clients(missing)
    stale = stale_documents(job.cluster, job.destination_before, documents, stored, job.encoder.fingerprint)
    return [Pending(document, stored.get(document.key)) for document in stale if document.key not in deleted]


def pages_of_ids(
    doc_ids: Sequence[str], job: Job, share: Share, filling: Filling, meter: Meter
) -> Iterator[list[Pending]]:
    """Yield pages of the source's documents with these ids that the destination lacks or holds outdated."""
    page = job.settings.read_documents
    for documents in documents_in_pages(job.cluster, job.source_before, doc_ids, page=page):
        if pending := documents_to_copy(job, documents):
            yield pending


def copying_actions(job: Job, page: list[Pending]) -> list[Action]:
    """Return bulk actions that write the documents, with vectors, that the source still holds."""
    return [copying_action(job, pending) for pending in still_in_source(job, page)]


def still_in_source(job: Job, page: list[Pending]) -> list[Pending]:
    """Return those documents of a page that the source still holds in the version read, or a later one.

    A page may be written late, by a process that was frozen or cut off. A document deleted since would come
    back; a document deleted and created again starts at version 1 and would be replaced by the older one. The
    destination alone cannot tell.
    """
    gone = keys_gone(job, page)
    if gone:
        job.cluster.refresh(job.source)  # a shard copy may not show yet what another one shows
        gone = keys_gone(job, [pending for pending in page if pending.document.key in gone])
    return [pending for pending in page if pending.document.key not in gone]


def keys_gone(job: Job, page: list[Pending]) -> set[Key]:
    """Return the keys of a page that the source lacks, or holds in an earlier version only."""
    documents = [pending.document for pending in page]
    originals = counterparts(job.cluster, job.source_before, documents, with_source=False)
    return {d.key for d in documents if d.key not in originals or originals[d.key].version < d.version}


def settle_conflicts(job: Job, page: list[Pending], filling: Filling) -> None:
    """Write documents again that are still missing or outdated after a version conflict.

    Another process may write the same documents, so each is written only over the state that was seen.
    """
    for _ in range(MAX_ROUNDS):
        if not page:
            break
        stored = stored_states(job.cluster, job.destination, [pending.document for pending in page])
        remaining = still_in_source(job, page)
        documents, encoder = [pending.document for pending in remaining], job.encoder.fingerprint
        stale = stale_documents(job.cluster, job.destination_before, documents, stored, encoder)
        keys = {document.key for document in stale}
        page = [entry._replace(stored=stored.get(entry.document.key)) for entry in remaining]
        page = [pending for pending in page if pending.document.key in keys]
        outcome = send_in_bulk(job, [copying_action(job, pending, after_conflict=True) for pending in page])
        filling.rejected += outcome.rejected
        conflicts = set(outcome.conflicts)
        page = [pending for pending in page if pending.document.doc_id in conflicts]


def copying_action(job: Job, pending: Pending, *, after_conflict: bool = False) -> Action:
    """Return a bulk action with the source's version, so that an older state never overwrites a newer one.

    A document that was deleted and created again starts at version 1: it replaces exactly the state that was
    seen. With `after_conflict`, a document that is missing is created without a version: it was deleted less
    than `index.gc_deletes` ago, and the version of its tombstone would refuse the source's.
    """
    document, stored = pending.document, pending.stored
    body, is_later = document_body(job, pending), stored is not None and stored.version > document.version
    if is_later or (after_conflict and stored is None):
        return write_over(document, body, stored)
    options = {"version": document.version, "version_type": "external_gte"}
    return bulk_action("index", document.doc_id, body, routing=document.routing, **options)


def may_have_vanished(job: Job, since: Position | None, total: Filling) -> bool:
    """Return whether the source may have deleted documents of the destination, by counts and positions."""
    if since is not None:
        return not total.settled or bool(hidden_operations(job.cluster, job.source, since, total.until))
    if not counts_agree(job):
        return True
    # Equal counts prove this only without concurrent writes: an insert may offset a delete.
    return total.settled and settled_position(job.cluster, job.source_before, total.until) != total.until


def delete_vanished(job: Job, until: Position) -> int:
    """Delete copies of documents that the source no longer holds, up to a position; return their count."""
    deleted = 0
    for gone in vanished_pages(job.cluster, job.source_before, job.destination_before, until):
        actions = [bulk_action("delete", document.doc_id, **document.as_read) for document in gone]
        deleted += send_in_bulk(job, actions).written
    job.cluster.refresh(job.destination)
    return deleted


def counts_agree(job: Job) -> bool:
    """Return whether source and destination hold equally many documents, apart from rejected ones."""
    cluster = job.cluster
    cluster.refresh(job.destination)
    refused = count_missing(cluster, job.destination, job.rejects.ids())
    return cluster.count(job.destination) + refused == cluster.count(job.source)


def encode_stale(job: Job, until: Position, progress: Progress) -> Filling:
    """Encode every document of the destination that has no current vector; return the counts. The source was
    read up to the position `until`.

    Each is written only over the state that was read: a document that a client changes meanwhile is counted
    as skipped and found by the next call.
    """
    job.cluster.refresh(job.destination)
    renewing = Work(pages_to_renew, partial(renewing_actions, until), count_as_skipped)
    renewal = fill_share(job, renewing, Meter(progress, None, "encode clients' writes"), ALL)
    renewal.from_clients = renewal.encoded
    return renewal


def pages_to_renew(job: Job, share: Share, filling: Filling, meter: Meter) -> Iterator[list[Pending]]:
    """Yield pages of documents of the destination that lack the fingerprint of this encoder."""
    pages = read_pages(
        job.cluster,
        job.destination_before,
        page=job.settings.read_documents,
        share=share,
        position=filling.until,
        where={"bool": {"must_not": [{"term": {ENCODER_FIELD: job.encoder.fingerprint}}]}},
    )
    for documents in pages:
        yield [Pending(document) for document in documents]


def renewing_actions(until: Position, job: Job, page: list[Pending]) -> list[Action]:
    """Return bulk actions that write each document over itself, with its vector and the mark of the state
    that the source has.

    What the source changed after `until` is marked with an earlier state, so that the next round copies it.
    """
    documents = [pending.document for pending in page]
    originals = counterparts(job.cluster, job.source_before, documents, with_source=False)
    ids = list({original.doc_id: None for original in originals.values()})
    read_states = set[tuple[Key, int]]()
    for shard, last in until.seq_no.items() if ids else ():
        params, query = {"preference": f"_shards:{shard}"}, {"range": {"_seq_no": {"lte": last}}}
        hits = hits_by_id(job.cluster, job.source_before, ids, hit_options(()), query, params)
        read_states |= {(document.key, document.seq_no) for document in map(source_document, hits)}
    states = stored_states(job.cluster, job.destination, documents)
    actions = []
    for pending in page:
        document, seq_no = pending.document, -1
        if (original := originals.get(document.key)) is not None:
            is_read = (original.key, original.seq_no) in read_states
            seq_no = original.seq_no if is_read else original.seq_no - 1
        state, mark = states.get(document.key), written_here_mark(seq_no)
        options = renewal_options(document, state)
        if state and not state.written_here and "version" in options:  # a copy that a rollback made
            mark = state.source_seq_no or 0
        body = document_body(job, pending, mark)
        actions.append(bulk_action("index", document.doc_id, body, **options))
    return actions


def count_as_skipped(job: Job, page: list[Pending], filling: Filling) -> None:
    """Count documents that clients changed meanwhile as skipped."""
    filling.skipped += len(page)


COPYING = Work(pages_to_copy, copying_actions, settle_conflicts)
