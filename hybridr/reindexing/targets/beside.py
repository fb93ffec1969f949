"""The target beside the source: an index of its own, behind an alias."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from ...cluster.connection import Cluster
from ...cluster.legs.dense import vector_value
from ...cluster.reading import (
    Position,
    SourceDocument,
    count_missing,
    documents_by_id,
    hidden_operations,
    read_pages,
    settled_position,
)
from ...cluster.record import ENCODER_FIELD, SEQ_NO_FIELD
from ...cluster.writing import Action, delete_action, index_action
from ...errors import SettingsError
from ...progress import Progress, silent
from ..filling import MAX_PASSES, MAX_ROUNDS, encoded_pages, prefetched, read_to_the_end, send
from ..job import Filling, Job, Meter, Pending, Stored, is_current, look_up, written_here_mark


def fill(
    job: Job, *, since: Position | None = None, once: bool = False, progress: Progress = silent
) -> Filling:
    """Bring every document of the source, or of this slice, into the destination; give the counts.

    With `since`, the settled `until` of an earlier filling, only what happened after it. Passes go on until
    one finds nothing new, so what is written meanwhile arrives too, unless it shall be read but `once`;
    documents that vanished from the source are deleted (whole jobs only).
    """
    share, shares = map(int, (job.settings.slice or "1/1").split("/"))
    if share > shares:
        raise SettingsError(f"slice {job.settings.slice}: the share must be 1 to {shares}")
    workers = job.settings.workers
    parts = [((share - 1) * workers + worker, shares * workers) for worker in range(workers)]
    meter = Meter(progress, 0 if since else job.cluster.count(job.source) // shares)
    total = Filling()
    job.pace.wait(0)  # looks how long searches take before the work begins
    for _ in range(MAX_ROUNDS):
        read_to_the_end(job, parts, since, 1 if once else MAX_PASSES, meter, total, fill_part)
        if shares > 1:
            break
        if not none_vanished(job, since, total):
            total.deleted += delete_vanished(job)
        if once or total.settled or counts_agree(job):
            break
        # A document can become visible after one that was written later: look at all of them once more.
        total.rejected = total.skipped = 0
        job.rejects.clear()
    return total


def fill_part(
    job: Job, part: tuple[int, int], position: Position, until: Position | None, meter: Meter
) -> Filling:
    """Read one share from `position` to `until`, or to what is visible now."""
    filling = Filling()
    with (
        closing(prefetched(pending_pages(job, part, position, until, filling, meter))) as pages,
        closing(prefetched(encoded_pages(job, pages))) as encoded,
    ):
        for page in encoded:
            write_page(job, page, filling)
            meter.add(len(page))
            if job.stop.is_set():
                break
    return filling


def pending_pages(
    job: Job,
    part: tuple[int, int],
    position: Position,
    until: Position | None,
    filling: Filling,
    meter: Meter,
) -> Iterator[list[Pending]]:
    """Read pages and leave out what the destination has already."""
    pages = read_pages(
        job.cluster, job.source, page=job.settings.read_documents, part=part, position=position, until=until
    )
    for documents in pages:
        stored = look_up(job.cluster, job.destination, documents)
        pending = [
            Pending(document, stored.get(document.doc_id), None)
            for document in documents
            if not is_current(document, stored.get(document.doc_id), job.encoder.fingerprint)
        ]
        filling.skipped += len(documents) - len(pending)
        meter.add(len(documents) - len(pending))
        if pending:
            yield pending


def write_page(job: Job, page: list[Pending], filling: Filling) -> None:
    """Write a page; what conflicts is looked at once more, since a deleted id may have come back."""
    job.pace.wait(len(page))
    outcome = send(job, [action_of(job, pending) for pending in page])
    filling.rejected += outcome.rejected
    conflicts = set(outcome.conflicts)
    if conflicts:
        filling.rejected += settle(job, [p for p in page if p.document.doc_id in conflicts])
    filling.book(page)


def settle(job: Job, page: list[Pending]) -> int:
    """Write what is still missing or older after a conflict; give the number of refused documents.

    Another process may write the same documents: each one is written only over what was seen of it.
    """
    rejected = 0
    for _ in range(MAX_ROUNDS):
        if not page:
            break
        stored = look_up(job.cluster, job.destination, [pending.document for pending in page])
        seen = [pending._replace(stored=stored.get(pending.document.doc_id)) for pending in page]
        behind = [p for p in seen if not is_current(p.document, p.stored, job.encoder.fingerprint)]
        outcome = send(job, [replacing_action(job, pending) for pending in behind])
        rejected += outcome.rejected
        conflicts = set(outcome.conflicts)
        page = [pending for pending in behind if pending.document.doc_id in conflicts]
    return rejected


def replacing_action(job: Job, pending: Pending) -> Action:
    """Write over exactly the state that was seen.

    One that is missing after a conflict was deleted less than `index.gc_deletes` ago: the tombstone's
    version is in the way of the source's.
    """
    if pending.stored is not None:
        return action_of(job, pending)
    document = pending.document
    return index_action(document.doc_id, body_of(job, pending), routing=document.routing, op_type="create")


def action_of(job: Job, pending: Pending) -> Action:
    """Write with the source's version, so that a newer state is never overwritten by an older one.

    A document that was deleted and made again starts at version 1: its higher `_seq_no` tells, and it
    replaces exactly the state that was seen.
    """
    document, stored = pending.document, pending.stored
    if stored is not None and stored.version > document.version:
        options: dict[str, Any] = {"if_seq_no": stored.seq_no, "if_primary_term": stored.primary_term}
    else:
        options = {"version": document.version, "version_type": "external_gte"}
    return index_action(document.doc_id, body_of(job, pending), routing=document.routing, **options)


def body_of(job: Job, pending: Pending, mark: int | None = None) -> dict[str, Any]:
    """Put the vector and its two companions into the document; `mark` None is the source's `_seq_no`."""
    body = {
        **pending.document.source,
        ENCODER_FIELD: job.encoder.fingerprint,
        SEQ_NO_FIELD: pending.document.seq_no if mark is None else mark,
    }
    body.pop(job.settings.vector_field, None)
    if pending.vector is not None:
        body[job.settings.vector_field] = vector_value(pending.vector, pending.spans)
    return body


def counts_agree(job: Job) -> bool:
    """Tell whether source and destination hold equally many documents, less those that were refused."""
    cluster = job.cluster
    cluster.refresh(job.destination)
    refused = count_missing(cluster, job.destination, job.rejects.ids())
    return cluster.count(job.destination) + refused == cluster.count(job.source)


def none_vanished(job: Job, since: Position | None, total: Filling) -> bool:
    """Prove without reading every id that the source deleted nothing the destination still holds."""
    cluster, source = job.cluster, job.source
    if since is not None:
        return total.settled and not hidden_operations(cluster, source, since, total.until)
    if not counts_agree(job):
        return False
    # Equal counts prove it only while nothing happens: an insert may stand against a delete.
    return not total.settled or settled_position(cluster, source) == total.until


def delete_vanished(job: Job) -> int:
    """Delete what the source no longer holds, but only what came from it; give the number."""
    deleted = 0
    for gone in vanished_pages(job.cluster, job.source, job.destination):
        actions = [
            delete_action(
                document.doc_id,
                routing=document.routing,
                if_seq_no=document.seq_no,
                if_primary_term=document.primary_term,
            )
            for document in gone
        ]
        deleted += send(job, actions).written
    job.cluster.refresh(job.destination)
    return deleted


def vanished_pages(cluster: Cluster, source: str, destination: str) -> Iterator[list[SourceDocument]]:
    """Yield the destination's documents that came from the source and are no longer in it."""
    cluster.refresh(destination)
    for page in read_pages(cluster, destination, page=1000, fields=()):
        ids = [document.doc_id for document in page]
        there = documents_by_id(cluster, source, ids, whole=False)
        gone = [document for document in page if document.doc_id not in there]
        copied = look_up(cluster, destination, gone) if gone else {}
        yield [d for d in gone if d.doc_id in copied and came_from_source(copied[d.doc_id])]


def came_from_source(stored: Stored) -> bool:
    """Tell whether the source held this document when hybridr last looked."""
    return stored.source_seq_no is not None and stored.source_seq_no >= 0


def current_query(encoder: str) -> dict[str, Any]:
    """Match the documents that this encoder looked at last."""
    return {"term": {ENCODER_FIELD: encoder}}


def renew(job: Job) -> Filling:
    """Give every document of the destination without a current vector the vector of its text.

    Each one is written only over the state that was read (`if_seq_no`): what a client changes meanwhile
    stays, and is found by the next call.
    """
    done = Filling()
    job.cluster.refresh(job.destination)
    with (
        closing(prefetched(pages_to_renew(job))) as pages,
        closing(prefetched(encoded_pages(job, pages))) as encoded,
    ):
        for page in encoded:
            job.pace.wait(len(page))
            outcome = send(job, renewing_actions(job, page))
            done.book(page)
            done.rejected += outcome.rejected
            done.skipped += len(outcome.conflicts)
    return done


def pages_to_renew(job: Job) -> Iterator[list[Pending]]:
    """Read the documents of the destination that bear no mark of this encoder."""
    pages = read_pages(
        job.cluster,
        job.destination,
        page=job.settings.read_documents,
        unless=current_query(job.encoder.fingerprint),
    )
    for documents in pages:
        yield [Pending(document, None, None) for document in documents]


def renewing_actions(job: Job, page: list[Pending]) -> list[Action]:
    """Write each document over itself, with its vector and the state that the source is in now."""
    ids = [pending.document.doc_id for pending in page]
    there = documents_by_id(job.cluster, job.source, ids, whole=False)
    actions = []
    for pending in page:
        document = pending.document
        at = there[document.doc_id].seq_no if document.doc_id in there else -1
        body = body_of(job, pending, written_here_mark(at))
        actions.append(
            index_action(
                document.doc_id,
                body,
                routing=document.routing,
                if_seq_no=document.seq_no,
                if_primary_term=document.primary_term,
            )
        )
    return actions
