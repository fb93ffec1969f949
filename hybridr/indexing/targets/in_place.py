"""The target in place: vectors inside the user's own index, each written over the state that was read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from shlex import quote
from typing import Any

from ...cluster.connection import Cluster, IndexView, path_of
from ...cluster.destinations import (
    destination_pattern,
    is_copy,
    is_in_place,
    record_event,
    require_whole,
    rewrite,
    write_record,
)
from ...cluster.mappings import mapping_obstacles, narrow_window_warnings, require_no_obstacle
from ...cluster.reading import (
    ALL,
    ID_PAGE,
    Position,
    Share,
    SourceDocument,
    documents_in_pages,
    read_pages,
    sample_documents,
    sources_by_id,
)
from ...cluster.record import MARK_FIELD, IndexInfo, Record
from ...cluster.writing import (
    Action,
    bulk_action,
    refusal_changes,
    refused_ids,
    rejects_of,
    write_past_pipelines,
)
from ...encoders.contract import Encoder
from ...errors import ClusterError, DataError
from ...files.local import fingerprint
from ...files.remembered import forget_encoder
from ...records import Progress, silent
from ..filling import MAX_PASSES, Fill, Work, fill_in_passes, fill_share
from ..in_place_index import (
    Marks,
    any_field_query,
    check_fields_free,
    check_in_place_settings,
    check_index,
    check_same_job,
    inconsistent_query,
    marked_query,
    require_own_versions,
    scripted_update,
)
from ..job import Filling, Job, Meter, Pending
from ..planning import Plan, index_to_read, propose
from ..preflight import check_disk, check_limits, estimate_disk
from ..reindexing import fill_and_retry, synced_position
from ..representations import fields_of
from ..settings import ReindexSettings
from ..terms.storage import HOME
from ..verification import (
    FOREIGN,
    Sightings,
    check_in_shares,
    compare_with_encoder,
    probe_query,
    random_documents,
    require_verified,
)
from . import Ending, Extent, Finding, LastLook, Round, State

STALE, BROKEN = "vector of an older text", "mark without its vector"
REMOVED_TOGETHER = 500
OWN_VERSIONS = 1000  # documents whose versions are checked
MARK_MAPPING = {"type": "keyword"}
CONSEQUENCES = (
    "every document is written anew: its old copy stays on disk until segments merge",
    "vector and mark are part of _source: searches that return it whole return them too",
    "every _version rises by one: do not do this where writers number versions (version_type=external)",
    "whoever writes a whole document drops its vector, until hybridr sync encodes it again",
)


class InPlace:
    """The index itself: a vector and a mark in each of its documents."""

    name = "in_place"
    is_separate = False

    def plan(self, cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
        """Check that the index can take vectors and loses nothing by it, and say what would be sent.

        Raises SettingsError (options without a meaning here), ClusterError (engine, plugin, no `index.knn`,
        blocks, disk, other vectors), DataError (empty, no text, `_source` not whole, field taken, external
        versions), ModelError (dimension), NotFound.
        """
        check_in_place_settings(settings)
        view = IndexView.of(cluster, name, destination_pattern(name))
        index_to_read(view, name)
        info = require_whole(view.index_info(name), name)
        check_index(view, info)
        side_index = HOME + info.name if settings.term_table else ""
        unknown = check_limits(cluster, info, in_place=True, side_index=side_index)
        in_place = is_in_place(info)
        proposal = propose(cluster, info, encoder, settings, view)
        own_fields = {**proposal.mappings, MARK_FIELD: MARK_MAPPING}
        require_no_obstacle(mapping_obstacles(info, own_fields), f"the fields of vectors in '{info.name}'")
        job = fingerprint([encoder.fingerprint, proposal.job_settings])
        if in_place:
            check_same_job(info, job, proposal.fields_change)
        else:
            check_fields_free(proposal, own_fields)
            require_own_versions(info.name, sample_documents(cluster, info, OWN_VERSIONS, fields=()))
        live = in_place and info.record.state == "complete"
        disk = None if live else estimate_disk(cluster, info, proposal.disk_bytes)
        check_disk(disk, info.name)
        state = "complete" if live else "filling"
        proposal = proposal.with_chosen_precision(info.record if in_place else None)
        fields = proposal.record_fields(job, info.record if in_place else None)
        record = info.record.changed(**fields, in_place=True, state=state)
        mapping = path_of(info.name, "_mapping")
        requests: list[dict[str, Any]] = [
            {"method": "PUT", "path": mapping, "body": {"properties": own_fields}},
            {"method": "PUT", "path": mapping, "body": {"_meta": info.meta_with(record)}},
            {"method": "POST", "path": path_of(info.name, "_bulk"), "documents": proposal.documents},
        ]
        details = {"index": info.name, "consequences": CONSEQUENCES}
        cautions = narrow_window_warnings(info)
        remarks = [*unknown, *CONSEQUENCES, *cautions]
        return Plan(
            proposal, info.name, record, in_place, live, requests, disk, remarks, details, cautions=cautions
        )

    def begin(self, cluster: Cluster, todo: Plan) -> IndexInfo:
        """Add the fields of vectors and marks to the mapping, then what they are made of to the record. What
        others wrote there since the plan stays.
        """
        first, earlier, planned = todo.requests[0], todo.proposal.info.record, todo.record
        cluster.request(first["method"], first["path"], first["body"])
        new = [name for name in planned.model_fields_set if getattr(planned, name) != getattr(earlier, name)]
        return write_record(cluster, todo.destination, **{name: getattr(planned, name) for name in new})

    def fill(
        self, job: Job, *, since: Position | None = None, once: bool = False, progress: Progress = silent
    ) -> Filling:
        """Write the vector of its text to every document changed after `since`, unless its mark already fits.

        Raises DataError for documents whose writer numbers the versions itself.
        """
        total = Filling()
        fill_in_passes(Fill.begun(job, WORK, since, progress), since, 1, total)
        if not once:
            skipped = total.skipped
            # Without settled positions a document can become visible before the end position: start over.
            start = total.until if total.settled else None
            fill_in_passes(Fill(job, WORK), start, MAX_PASSES, total)
            total.skipped, total.waiting = skipped, 0
        return total

    def retry(self, job: Job, doc_ids: Sequence[str]) -> Filling:
        """Encode rejected documents again, in their present state."""
        return fill_share(job, WORK._replace(pages=partial(stale_pages_by_id, doc_ids)), Meter(), ALL)

    def complete(self, job: Job, todo: Plan, filling: Filling, progress: Progress) -> Ending:
        """Verify, then record that every document has its vector, or that the refused ones were accepted."""
        cluster, refused = job.cluster, job.rejects.ids()
        extent = Extent(frozenset(refused), filling.until, progress=progress)
        info = cluster.index_info(todo.destination)
        require_verified(cluster, info, job.encoder, extent)
        accepted = refused if job.settings.accept_rejects else []
        changes = record_changes(info, filling) | refusal_changes(info, refused, accepted)
        changes["state"] = "filling" if refused and not accepted else "complete"
        details = {"documents": cluster.count(info.name), "encoded": filling.encoded}
        info = record_event(cluster, info.name, "filled in place", details, **changes)
        return Ending(len(refused), info=info)

    def sync(self, job: Job, info: IndexInfo, progress: Progress) -> Round:
        """Encode the documents written since the last round, and record how far the index was read."""
        done, changes = fill_and_retry(job, info, progress)
        write_record(job.cluster, info.name, **record_changes(info, done) | changes)
        renewed = done.encoded + done.without_text - done.rejected
        return Round(0, 0, renewed, done.waiting, done.rejected)

    def findings(
        self, cluster: Cluster, info: IndexInfo, encoder: Encoder | None, extent: Extent
    ) -> list[Finding]:
        """Compare every mark with its document's text. Raises DataError for a copy of an index."""
        if is_copy(info):
            raise DataError(
                f"'{info.name}' is a copy of '{info.record.source}', with its record",
                hint=f"hybridr sync {quote(info.name)}   looks at every document and makes the record "
                "its own",
            )
        cluster.refresh(info.name)
        sample = random_documents(cluster, info, extent.sample, extent.seed)
        sampled_ids = [document.doc_id for document in sample if document.doc_id not in extent.rejected]
        marks = Marks.of_index(info)
        share = partial(check_marks, cluster, info, marks, extent.rejected)
        sightings = check_in_shares(cluster, info.name, extent, share)
        for document in broken_documents(cluster, info, marks, extent.until):
            sightings.note(BROKEN, document)
        findings = sightings.findings(FOREIGN, STALE, BROKEN)
        if encoder is not None:
            sources = sources_by_id(cluster, info.name, sampled_ids)
            fitting = {doc_id: source for doc_id, source in sources.items() if marks.fits(source)}
            findings += compare_with_encoder(cluster, info, fitting, fitting, encoder)
        return [*findings, probe_query(cluster, info, sampled_ids, encoder)]

    def state(self, cluster: Cluster, info: IndexInfo) -> State:
        """Count the documents whose vector is that of their text.

        Only documents written after the synced position, or refused, can be stale: only these are read.
        """
        cluster.refresh(info.name)
        marks = Marks.of_index(info)
        marked = cluster.count(info.name, marked_query(marks))
        share, refused = Share(since=synced_position(info)), refused_ids(info)
        pages = read_pages(cluster, info.name, page=ID_PAGE, share=share, fields=marks.read_fields)
        changed = (document for document in chain.from_iterable(pages) if document.doc_id not in refused)
        retried = chain.from_iterable(documents_in_pages(cluster, info.name, refused, page=ID_PAGE))
        stale = sum(
            marks.by_encoder(document.source) and not marks.fits(document.source)
            for document in chain(changed, retried)
        )
        broken = sum(marks.fits(document.source) for document in broken_documents(cluster, info, marks))
        return State(marked - stale - broken)

    def remove(
        self, cluster: Cluster, source: str, infos: Sequence[IndexInfo], last_look: LastLook, *, dry_run: bool
    ) -> dict[str, Any]:
        """Remove vector and mark from every document, each over the state that was read, then the record.

        A second run continues. The `fields` stay in the mapping: OpenSearch cannot remove them. Raises
        ClusterError if documents are refused.
        """
        (info,) = infos
        fields = [*fields_of(info.record), MARK_FIELD]
        with_fields = any_field_query([*fields_of(info.record, visible=True), MARK_FIELD])
        cluster.refresh(source)
        documents = cluster.count(source, with_fields)
        if not dry_run:
            last_look()
            write_record(cluster, source, state="removing")
            remove_fields(cluster, info, with_fields, fields)
            rewrite(cluster, source, Record.load_only)
            forget_encoder(info.uuid)
        return {"indices": [], "actions": [], "documents": documents, "fields": fields}


def stale_pages(job: Job, share: Share, filling: Filling, meter: Meter) -> Iterator[list[Pending]]:
    """Yield pages of documents whose mark does not fit, then of those whose mark and vector contradict."""
    marks = marks_for(job)
    for documents in pages_with_marks(job, marks, share, filling.until):
        stale = [document for document in documents if not marks.fits(document.source)]
        filling.skipped += len(documents) - len(stale)
        meter.add(len(documents) - len(stale))
        yield from page_to_encode(job, stale)
    broken = inconsistent_query(marks, fields_of(job.settings, visible=True))
    for documents in pages_with_marks(job, marks, share, Position.at(share.since), broken):
        damaged = [document for document in documents if marks.fits(document.source)]
        filling.skipped -= len(damaged)
        yield from page_to_encode(job, damaged)


def stale_pages_by_id(
    doc_ids: Sequence[str], job: Job, share: Share, filling: Filling, meter: Meter
) -> Iterator[list[Pending]]:
    """Yield pages of the documents with these ids whose mark does not fit."""
    marks = marks_for(job)
    pages = documents_in_pages(job.cluster, job.destination, doc_ids, page=job.settings.read_documents)
    for documents in pages:
        yield from page_to_encode(
            job, [document for document in documents if not marks.fits(document.source)]
        )


def pages_with_marks(
    job: Job, marks: Marks, share: Share, position: Position, where: dict[str, Any] | None = None
) -> Iterator[list[SourceDocument]]:
    """Yield pages of documents, each with its text fields and its mark."""
    return read_pages(
        job.cluster,
        job.destination,
        page=job.settings.read_documents,
        share=share,
        position=position,
        where=where,
        fields=marks.read_fields,
    )


def page_to_encode(job: Job, documents: list[SourceDocument]) -> Iterator[list[Pending]]:
    """Yield the documents to encode as one page, unless there are none. Raises as `require_own_versions`."""
    require_own_versions(job.destination, documents)
    if documents:
        yield [Pending(document) for document in documents]


def marking_actions(job: Job, page: list[Pending]) -> list[Action]:
    """Return bulk updates that give each document its vector and its mark (encoder and hash of its text).

    Each update holds only for the state of the document that was read. Fields without a value,
    because the text is gone, are dropped.
    """
    marks, actions = marks_for(job), []
    for pending in page:
        document, values = pending.document, job.recipe.values(pending.encoded)
        mark = {MARK_FIELD: marks.of(job.recipe.text_of(document.source))}
        dropped = [name for name in job.recipe.fields if name not in values]
        # A partial document would be merged into an existing object.
        needs_script = dropped or any(isinstance(value, dict) for value in values.values())
        change = scripted_update(mark | values, drop=dropped) if needs_script else {"doc": mark | values}
        actions.append(bulk_action("update", document.doc_id, change, **document.as_read))
    return actions


def marks_for(job: Job) -> Marks:
    """Return the inputs of a job's marks."""
    return Marks(job.encoder.fingerprint, job.settings.max_tokens, tuple(job.recipe.text_fields))


def count_as_waiting(job: Job, page: list[Pending], filling: Filling) -> None:
    """Count documents that clients changed meanwhile as waiting: they were not written."""
    filling.book(page, -1)
    filling.waiting += len(page)


WORK = Work(stale_pages, marking_actions, count_as_waiting)


def record_changes(info: IndexInfo, filling: Filling) -> dict[str, Any]:
    """Return the changes to the record after a fill: the index, and the position up to which it was read."""
    synced = filling.until.seq_no if filling.settled else None
    return {"source": info.name, "source_uuid": info.uuid, "synced": synced}


def check_marks(
    cluster: Cluster, info: IndexInfo, marks: Marks, rejected: Collection[str], share: Share
) -> Sightings:
    """Check the marks of a share's documents, except the rejected ones."""
    sightings = Sightings()
    for page in read_pages(cluster, info.name, page=ID_PAGE, share=share, fields=marks.read_fields):
        sightings.looked_at += len(page)
        for document in page:
            if not marks.fits(document.source) and document.doc_id not in rejected:
                sightings.note(STALE if marks.by_encoder(document.source) else FOREIGN, document)
    return sightings


def broken_documents(
    cluster: Cluster, info: IndexInfo, marks: Marks, until: Position | None = None
) -> Iterator[SourceDocument]:
    """Yield documents whose mark and vector contradict each other."""
    broken = inconsistent_query(marks, fields_of(info.record, visible=True))
    pages = read_pages(
        cluster, info.name, page=ID_PAGE, share=Share(until=until), where=broken, fields=marks.read_fields
    )
    return chain.from_iterable(pages)


def remove_fields(cluster: Cluster, info: IndexInfo, with_fields: dict[str, Any], fields: list[str]) -> None:
    """Remove fields from documents, in passes until none has them; clients' writes are not overwritten."""
    index, rejects = info.name, rejects_of(info)
    for _ in range(MAX_PASSES):
        cluster.refresh(index)
        count = 0
        for page in read_pages(cluster, index, page=REMOVED_TOGETHER, where=with_fields, fields=()):
            count += len(page)
            drop = scripted_update({}, fields)
            actions = [bulk_action("update", document.doc_id, drop, **document.as_read) for document in page]
            for outcome in write_past_pipelines(cluster, index, actions, rejects):
                if outcome.rejected:
                    raise ClusterError(
                        f"'{index}' refused documents, which still hold vectors; reasons in {rejects.file}",
                        hint=f"mend them, then again: hybridr remove {quote(index)}",
                    )
        if not count:
            return
    raise ClusterError(
        f"somebody goes on writing vectors into '{index}'",
        hint=f"stop hybridr sync, then again: hybridr remove {quote(index)}",
    )
