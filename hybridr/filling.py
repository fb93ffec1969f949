"""Fills a destination: reads the source, encodes what the destination lacks, writes; all three overlap."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from .bodies import ENCODER_FIELD, SEQ_NO_FIELD, vector_value
from .cluster import Cluster
from .encoding import encoded_pages
from .errors import SettingsError
from .jobs import Filling, Job, Meter, Pending, Work
from .overlap import prefetched
from .progress import Progress, silent
from .reading import Position, SourceDocument, hidden_operations, read_pages, settled_position
from .stored import Stored, count_missing, documents_by_id, is_current, look_up
from .writing import Action, Outcome, by_bytes, delete_action, index_action, write

MAX_PASSES = 20
MAX_ROUNDS = 5


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


def read_to_the_end(
    job: Job,
    parts: list[tuple[int, int]],
    since: Position | None,
    passes: int,
    meter: Meter,
    total: Filling,
    work: Work,
) -> None:
    """Read all parts behind `since` again and again until nothing new is in them."""
    positions = [Position(dict(since.seq_no) if since else {}) for _ in parts]
    for _ in range(passes):
        before = [dict(position.seq_no) for position in positions]
        settled = settled_position(job.cluster, job.source)
        for filling in fill_parts(job, parts, positions, settled, meter, work):
            total.add(filling)
        if settled:
            positions = [Position(dict(settled.seq_no)) for _ in parts]
        total.until, total.settled = earliest(positions), settled is not None
        if [position.seq_no for position in positions] == before:
            break


def earliest(positions: list[Position]) -> Position:
    """Give how far all shares have read each shard."""
    shards = set.intersection(*(set(position.seq_no) for position in positions))
    return Position({shard: min(position.seq_no[shard] for position in positions) for shard in shards})


def fill_parts(
    job: Job,
    parts: list[tuple[int, int]],
    positions: list[Position],
    until: Position | None,
    meter: Meter,
    work: Work,
) -> list[Filling]:
    """Work on all parts at once; when one fails, or Ctrl-C is pressed, the others stop after their page."""
    if len(parts) == 1:
        return [work(job, parts[0], positions[0], until, meter)]
    with ThreadPoolExecutor(len(parts)) as pool:
        try:
            return list(pool.map(lambda part, at: work(job, part, at, until, meter), parts, positions))
        except BaseException:
            job.stop.set()
            raise


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
        job.cluster, job.source, page=job.settings.read_documents, part=part, position=position, until=until,
    )  # fmt: skip
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


def send(job: Job, actions: list[Action]) -> Outcome:
    """Write actions in bodies of the chosen size."""
    total = Outcome()
    for group in by_bytes(actions, job.settings.bulk_bytes):
        outcome = write(
            job.cluster, job.destination, group, rejects=job.rejects,
            patience_s=job.settings.patience_s, params={"pipeline": "_none"},
        )  # fmt: skip
        total.written += outcome.written
        total.rejected += outcome.rejected
        total.conflicts += outcome.conflicts
    return total


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
                document.doc_id, routing=document.routing,
                if_seq_no=document.seq_no, if_primary_term=document.primary_term,
            )
            for document in gone
        ]  # fmt: skip
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
