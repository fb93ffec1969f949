"""Fills a destination: reads the source, encodes what the destination lacks, writes; all three overlap."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Event, Lock
from typing import Any, NamedTuple

import numpy as np

from .bodies import ENCODER_FIELD, SEQ_NO_FIELD, vector_value
from .cluster import Cluster
from .encoder import Encoder
from .errors import ModelError, SettingsError
from .overlap import prefetched
from .pacing import Pace, search_load
from .passages import Span, Split, Windows, by_passages, chosen_windows, split
from .progress import Progress, silent
from .reading import Position, SourceDocument, hidden_operations, read_pages, settled_position, text_of
from .settings import ReindexSettings
from .stored import Stored, count_missing, documents_by_id, is_current, look_up
from .vectors import as_kept
from .writing import Action, Outcome, Rejects, by_bytes, delete_action, index_action, write

MAX_PASSES = 20
MAX_ROUNDS = 5


@dataclass
class Filling:
    """Counts of documents: encoded or copied without text, found current, refused, deleted again.

    `shortened` are those of the encoded that have more text than the most passages reach.
    `until` is how far the source was read to the end; `settled` says that nothing can appear before it.
    """

    encoded: int = 0
    without_text: int = 0
    skipped: int = 0
    rejected: int = 0
    deleted: int = 0
    shortened: int = 0
    until: Position = field(default_factory=Position)
    settled: bool = False

    def add(self, other: Filling) -> None:
        """Add the counts of another share."""
        self.encoded += other.encoded
        self.without_text += other.without_text
        self.skipped += other.skipped
        self.rejected += other.rejected
        self.deleted += other.deleted
        self.shortened += other.shortened

    def book(self, page: list[Pending]) -> None:
        """Count a page that was written."""
        texts = sum(pending.vector is not None for pending in page)
        self.encoded += texts
        self.without_text += len(page) - texts
        self.shortened += sum(not pending.whole for pending in page)


class Pending(NamedTuple):
    """A document to write, what stands in its place, and its vector (None without text).

    One split into passages has a vector `(n, dim)` for its n `spans`; `whole` says that they reach its end.
    """

    document: SourceDocument
    stored: Stored | None
    vector: np.ndarray | None
    spans: tuple[Span, ...] = ()
    whole: bool = True


@dataclass(frozen=True)
class Job:
    """Everything a share of the work needs to know."""

    cluster: Cluster
    source: str
    destination: str
    encoder: Encoder
    text_fields: tuple[str, ...]
    settings: ReindexSettings
    rejects: Rejects
    stop: Event = field(default_factory=Event)

    @cached_property
    def windows(self) -> Windows | None:
        """Give how documents are split into passages, None for one vector a document."""
        return chosen_windows(self.settings, self.encoder)

    @cached_property
    def pace(self) -> Pace:
        """Give the pace that all workers share."""
        settings = self.settings
        return Pace(
            settings.max_docs_per_second, settings.slow_search_ms, partial(search_load, self.cluster),
            sleep=self.stop.wait,
        )  # fmt: skip


class Meter:
    """Adds up the progress of all workers."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done, self._lock = progress, total, 0, Lock()

    def add(self, documents: int) -> None:
        """Book documents as done."""
        with self._lock:
            self._done += documents
            self._progress("reindex", self._done, max(self._total, self._done))


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
        read_to_the_end(job, parts, since, 1 if once else MAX_PASSES, meter, total)
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
) -> None:
    """Read all parts behind `since` again and again until nothing new is in them."""
    positions = [Position(dict(since.seq_no) if since else {}) for _ in parts]
    for _ in range(passes):
        before = [dict(position.seq_no) for position in positions]
        settled = settled_position(job.cluster, job.source, patience_s=job.settings.patience_s)
        for filling in fill_parts(job, parts, positions, settled, meter):
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
    job: Job, parts: list[tuple[int, int]], positions: list[Position], until: Position | None, meter: Meter
) -> list[Filling]:
    """Work on all parts at once; when one fails, or Ctrl-C is pressed, the others stop after their page."""
    if len(parts) == 1:
        return [fill_part(job, parts[0], positions[0], until, meter)]
    with ThreadPoolExecutor(len(parts)) as pool:
        try:
            return list(pool.map(lambda part, at: fill_part(job, part, at, until, meter), parts, positions))
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
        patience_s=job.settings.patience_s,
    )  # fmt: skip
    for documents in pages:
        stored = look_up(job.cluster, job.destination, documents, patience_s=job.settings.patience_s)
        pending = [
            Pending(document, stored.get(document.doc_id), None)
            for document in documents
            if not is_current(document, stored.get(document.doc_id), job.encoder.fingerprint)
        ]
        filling.skipped += len(documents) - len(pending)
        meter.add(len(documents) - len(pending))
        if pending:
            yield pending


def encoded_pages(job: Job, pages: Iterator[list[Pending]]) -> Iterator[list[Pending]]:
    """Give each document with text its vector, or those of its passages. Raises ModelError for bad values."""
    for page in pages:
        texts = [text_of(pending.document.source, job.text_fields) for pending in page]
        splits = [split(text, job.encoder, job.windows) for text in texts]
        for group in by_passages(splits):
            yield encode(job, page[group], texts[group], splits[group])


def encode(job: Job, page: list[Pending], texts: list[str], splits: list[Split]) -> list[Pending]:
    """Encode the passages of all documents together."""
    parts = [text[a:b] for text, (spans, _) in zip(texts, splits, strict=True) for a, b in spans]
    owners = [number for number, (spans, _) in enumerate(splits) for _ in spans]
    vectors = job.encoder.encode_documents(parts, max_tokens=job.settings.max_tokens)  # (parts, dim)
    if not np.isfinite(vectors).all():
        bad = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ModelError(
            f"the encoder gives no finite vector for document '{page[owners[bad]].document.doc_id}'",
            hint="the encoder is damaged: export it again",
        )
    rows = np.split(as_kept(vectors, job.settings.vectors), np.cumsum([len(one.spans) for one in splits]))
    return [
        with_vectors(pending, found, one, job.windows is not None)
        for pending, found, one in zip(page, rows, splits, strict=False)
    ]


def with_vectors(pending: Pending, vectors: np.ndarray, found: Split, passages: bool) -> Pending:
    """Give a document its vectors `(n, dim)`, of which it has one at most without passages."""
    if not found.spans:
        return pending._replace(vector=None)
    if not passages:
        return pending._replace(vector=vectors[0])
    return pending._replace(vector=vectors, spans=found.spans, whole=found.whole)


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
    """Write what is still missing or older after a conflict; give the number of refused documents."""
    documents = [pending.document for pending in page]
    stored = look_up(job.cluster, job.destination, documents, patience_s=job.settings.patience_s)
    actions = []
    for pending in page:
        document = pending.document
        found = stored.get(document.doc_id)
        if found is None:
            # Deleted here less than index.gc_deletes ago: the tombstone's version is in the way.
            actions.append(index_action(document.doc_id, body_of(job, pending), routing=document.routing))
        elif not is_current(document, found, job.encoder.fingerprint):
            actions.append(action_of(job, pending._replace(stored=found)))
    return send(job, actions).rejected if actions else 0


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
    cluster, patience_s = job.cluster, job.settings.patience_s
    cluster.refresh(job.destination, patience_s=patience_s)
    refused = count_missing(cluster, job.destination, job.rejects.ids(), patience_s=patience_s)
    return cluster.count(job.destination) + refused == cluster.count(job.source)


def none_vanished(job: Job, since: Position | None, total: Filling) -> bool:
    """Prove without reading every id that the source deleted nothing the destination still holds."""
    cluster, source, patience_s = job.cluster, job.source, job.settings.patience_s
    if since is not None:
        return total.settled and not hidden_operations(
            cluster, source, since, total.until, patience_s=patience_s
        )
    if not counts_agree(job):
        return False
    # Equal counts prove it only while nothing happens: an insert may stand against a delete.
    return not total.settled or settled_position(cluster, source, patience_s=patience_s) == total.until


def delete_vanished(job: Job) -> int:
    """Delete what the source no longer holds, but only what came from it; give the number."""
    deleted = 0
    for gone in vanished_pages(job.cluster, job.source, job.destination, job.settings.patience_s):
        actions = [
            delete_action(
                document.doc_id, routing=document.routing,
                if_seq_no=document.seq_no, if_primary_term=document.primary_term,
            )
            for document in gone
        ]  # fmt: skip
        deleted += send(job, actions).written
    job.cluster.refresh(job.destination, patience_s=job.settings.patience_s)
    return deleted


def vanished_pages(
    cluster: Cluster, source: str, destination: str, patience_s: float = 0.0
) -> Iterator[list[SourceDocument]]:
    """Yield the destination's documents that came from the source and are no longer in it."""
    cluster.refresh(destination, patience_s=patience_s)
    for page in read_pages(cluster, destination, page=1000, fields=(), patience_s=patience_s):
        ids = [document.doc_id for document in page]
        there = documents_by_id(cluster, source, ids, whole=False, patience_s=patience_s)
        gone = [document for document in page if document.doc_id not in there]
        copied = look_up(cluster, destination, gone, patience_s=patience_s) if gone else {}
        yield [d for d in gone if d.doc_id in copied and came_from_source(copied[d.doc_id])]


def came_from_source(stored: Stored) -> bool:
    """Tell whether the source held this document when hybridr last looked."""
    return stored.source_seq_no is not None and stored.source_seq_no >= 0
