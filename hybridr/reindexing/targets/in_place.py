"""The target in place: vectors inside the user's own index, each written over the state that was read.

The fields of an existing index cannot be hidden from `_source`, so a client's partial update keeps the vector
and whatever says that it is current. Hence the mark beside each vector names encoder and text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...cluster.reading import Position, SourceDocument, read_pages, text_of
from ...cluster.record import IndexInfo
from ...cluster.writing import Action, update_action
from ...errors import DataError
from ...files.manifest import fingerprint
from ...progress import Progress, silent
from ..filling import MAX_PASSES, encoded_pages, prefetched, read_to_the_end, send
from ..job import Filling, Job, Meter, Pending

CHANGE = "for (name in params.drop) { ctx._source.remove(name) } ctx._source.putAll(params.set)"
MARK_FIELD = "hybridr_mark"
ENCODER_DIGITS, TEXT_DIGITS = 16, 32  # 64 bits tell encoders apart, 128 bits texts


@dataclass
class Renewal(Filling):
    """Counts of a filling; `waiting` were changed by clients while they were encoded."""

    waiting: int = 0

    def add(self, other: Filling) -> None:
        """Add the counts of another share."""
        super().add(other)
        self.waiting += other.waiting if isinstance(other, Renewal) else 0


def fill_in_place(
    job: Job, *, since: Position | None = None, once: bool = False, progress: Progress = silent
) -> Renewal:
    """Give every document behind `since` the vector of its text; documents with a fitting mark are skipped.

    Passes go on until one finds nothing new, unless the index shall be read but `once`. Raises DataError for
    documents whose writer keeps versions of its own.
    """
    workers = job.settings.workers
    parts = [(worker, workers) for worker in range(workers)]
    total = Renewal()
    job.pace.wait(0)  # looks how long searches take before the work begins
    meter = Meter(progress, 0 if since else job.cluster.count(job.destination))
    read_to_the_end(job, parts, since, 1, meter, total, renew_part)
    if not once:
        skipped = total.skipped
        # Without settled positions a document can become visible behind what was read: begin again.
        again = total.until if total.settled else None
        read_to_the_end(job, parts, again, MAX_PASSES, Meter(silent, 0), total, renew_part)
        total.skipped, total.waiting = skipped, 0
    return total


def renew_part(
    job: Job, part: tuple[int, int], position: Position, until: Position | None, meter: Meter
) -> Renewal:
    """Read one share from `position` to `until`, or to what is visible now, and write what is stale."""
    done = Renewal()
    with (
        closing(prefetched(stale_pages(job, part, position, until, done, meter))) as pages,
        closing(prefetched(encoded_pages(job, pages))) as encoded,
    ):
        for page in encoded:
            write_page(job, page, done)
            meter.add(len(page))
            if job.stop.is_set():
                break
    return done


def stale_pages(
    job: Job, part: tuple[int, int], position: Position, until: Position | None, done: Renewal, meter: Meter
) -> Iterator[list[Pending]]:
    """Read text and mark of every document, and leave out those whose mark fits and is true."""
    marks, start = marks_of(job), Position(dict(position.seq_no))
    for documents in pages_of(job, marks, part, position, until):
        stale = [document for document in documents if not marks.fits(document.source)]
        done.skipped += len(documents) - len(stale)
        meter.add(len(documents) - len(stale))
        yield from checked(job, stale)
    broken = other_than(broken_query(marks, job.settings.vector_field))
    for documents in pages_of(job, marks, part, start, until, broken):
        damaged = [document for document in documents if marks.fits(document.source)]
        done.skipped -= len(damaged)
        yield from checked(job, damaged)


def pages_of(
    job: Job,
    marks: Marks,
    part: tuple[int, int],
    position: Position,
    until: Position | None,
    unless: dict[str, Any] | None = None,
) -> Iterator[list[SourceDocument]]:
    """Read what tells whether a mark fits, and what must be encoded."""
    return read_pages(
        job.cluster,
        job.destination,
        page=job.settings.read_documents,
        part=part,
        position=position,
        until=until,
        unless=unless,
        fields=marks.read_fields,
    )


def checked(job: Job, documents: list[SourceDocument]) -> Iterator[list[Pending]]:
    """Give documents to encode, if there are any. Raises DataError as `require_own_versions` does."""
    require_own_versions(job.destination, documents)
    if documents:
        yield [Pending(document, None, None) for document in documents]


def require_own_versions(index: str, documents: list[SourceDocument]) -> None:
    """Raise DataError for a document whose writer numbers its versions (`version_type=external`).

    An update raises the version by one, and the writer's next one may then be refused as not newer: a lost
    update. Only versions above the number of operations of the shard prove it.
    """
    given = next((document for document in documents if document.version > document.seq_no + 1), None)
    if given is not None:
        raise DataError(
            f"'{index}' has documents with versions of their own (version_type=external), such as "
            f"'{given.doc_id}' with {given.version}: writing in place raises them, and the next version of "
            "their writer could be refused",
            hint=f"without --in-place the index stays as it is: hybridr reindex {index}",
        )


def write_page(job: Job, page: list[Pending], done: Renewal) -> None:
    """Write a page; what clients changed meanwhile waits for the next pass."""
    job.pace.wait(len(page))
    outcome = send(job, [action_of(job, pending) for pending in page])
    waiting = set(outcome.conflicts)
    written = [pending for pending in page if pending.document.doc_id not in waiting]
    texts = sum(pending.vector is not None for pending in written)
    done.encoded += texts
    done.without_text += len(written) - texts
    done.rejected += outcome.rejected
    done.waiting += len(waiting)


def action_of(job: Job, pending: Pending) -> Action:
    """Write our fields over exactly the state that was read; the vector of a text that is gone goes too."""
    document, field = pending.document, job.settings.vector_field
    mark = {MARK_FIELD: marks_of(job).of(text_of(document.source, job.text_fields))}
    if pending.vector is not None:
        change: dict[str, Any] = {"doc": {**mark, field: pending.vector}}
    else:
        change = changing(mark, drop=[field])
    return update_action(
        document.doc_id,
        change,
        routing=document.routing,
        if_seq_no=document.seq_no,
        if_primary_term=document.primary_term,
    )


def changing(added: dict[str, Any], drop: list[str]) -> dict[str, Any]:
    """Change a document by script: a partial document cannot take a field away."""
    return {"script": {"lang": "painless", "source": CHANGE, "params": {"set": added, "drop": drop}}}


def marks_of(job: Job) -> Marks:
    """Give what the marks of a job are made of."""
    return Marks(job.encoder.fingerprint, job.settings.max_tokens, tuple(job.text_fields))


def place_changes(info: IndexInfo, filling: Filling) -> dict[str, Any]:
    """Give what the record says after a filling: how far it came, and of which index."""
    synced = filling.until.seq_no if filling.settled else None
    return {"source": info.name, "source_uuid": info.uuid, "synced": synced}


class Marks(NamedTuple):
    """What the marks of an index are made of: the encoder's fingerprint, its input limit, the text fields."""

    encoder: str
    max_tokens: int | None
    fields: tuple[str, ...]

    @classmethod
    def of_index(cls, info: IndexInfo) -> Marks:
        """Read from the index's record what its marks are made of."""
        return cls(info.record.encoder, info.record.max_tokens, tuple(info.record.fields))

    @property
    def encoder_part(self) -> str:
        """Give what all marks of this encoder begin with."""
        return fingerprint([self.encoder, self.max_tokens])[:ENCODER_DIGITS] + "-"

    @property
    def of_no_text(self) -> str:
        """Give the mark of a document without text, which has no vector."""
        return self.of("")

    @property
    def read_fields(self) -> tuple[str, ...]:
        """Name what must be read of a document to tell whether its mark fits."""
        return (*self.fields, MARK_FIELD)

    def of(self, text: str) -> str:
        """Give the mark of a vector of this text."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return self.encoder_part + digest[:TEXT_DIGITS]

    def of_source(self, source: dict[str, Any]) -> str:
        """Give the mark that a document should bear."""
        return self.of(text_of(source, self.fields))

    def fits(self, source: dict[str, Any]) -> bool:
        """Tell whether the document bears the mark of its present text."""
        return bool(source.get(MARK_FIELD) == self.of_source(source))

    def by_encoder(self, source: dict[str, Any]) -> bool:
        """Tell whether this encoder looked at the document, in whatever state."""
        return str(source.get(MARK_FIELD, "")).startswith(self.encoder_part)


def marked_query(marks: Marks) -> dict[str, Any]:
    """Match the documents that this encoder looked at, in whatever state."""
    return {"prefix": {MARK_FIELD: marks.encoder_part}}


def broken_query(marks: Marks, vector_field: str) -> dict[str, Any]:
    """Match documents whose mark speaks of a vector that is not there, or of none where one is."""
    vector: dict[str, Any] = {"exists": {"field": vector_field}}
    no_text: dict[str, Any] = {"term": {MARK_FIELD: marks.of_no_text}}
    lacking = {"bool": {"must_not": [vector, no_text]}}
    return {
        "bool": {
            "filter": [marked_query(marks)],
            "should": [lacking, both(vector, no_text)],
            "minimum_should_match": 1,
        }
    }


def held_query(vector_field: str) -> dict[str, Any]:
    """Match the documents that hold a vector or a mark."""
    exists: list[dict[str, Any]] = [{"exists": {"field": name}} for name in (vector_field, MARK_FIELD)]
    return {"bool": {"should": exists, "minimum_should_match": 1}}


def both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Match what both queries match."""
    return {"bool": {"filter": [one, other]}}


def other_than(query: dict[str, Any]) -> dict[str, Any]:
    """Match what a query does not."""
    return {"bool": {"must_not": [query]}}
