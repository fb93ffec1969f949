"""The stages of a reindex that need the cluster: texts to Parquet (the first), and vectors from Parquet
into a new index beside the source (the third).

Parts are ranges of `_seq_no` of a shard, not slices: the third stage reads the same ranges of the live
index again, and a document that changed or was deleted since the export has left its range. A vector is
used only if the digest of its text is that of the document; other documents are encoded again. Everything
else is done as by `reindex`, which can also continue an import that was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import metadata
from pathlib import Path
from shlex import quote
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...cluster.connection import Cluster
from ...cluster.destinations import require_whole
from ...cluster.field_values import require_whole_source, text_of
from ...cluster.fields import choose_text_fields, empty_index
from ...cluster.known_problems import require_no_loss
from ...cluster.reading import (
    Position,
    Share,
    SourceDocument,
    documents_between,
    read_pages,
    settled_position,
)
from ...cluster.record import IndexInfo, Record
from ...encoders.contract import Encoder, Vectors
from ...encoders.passages import Split
from ...errors import AccessDenied, ClusterError, DataError, SettingsError, quantity
from ...files.local import write_manifest
from ...records import Progress, Reported, silent
from ..filling import encode, prefetched, write_pages
from ..job import Filling, Job, Meter, Pending
from ..lag import LAST, cut_into_shares, visible_position
from ..planning import Plan, index_to_read
from ..recipe import TextRecipe
from ..reindexing import ReindexResult, plan, prepare, reindex_planned
from ..representations import EncodedDocument, representations_in, settings_in
from ..runners.threads import in_threads
from ..settings import ReindexSettings
from ..targets.beside import COPYING, Beside, pages_to_copy
from .bundle import (
    TEXTS,
    Making,
    Origin,
    StageFolder,
    TextsLabel,
    VectorsLabel,
    check_making,
    claimed,
    count_rows,
    digest_of_text,
    parquet_table,
    part_name,
    read_label,
    read_part,
    undamaged,
    vectors_in,
    vectors_schema,
    write_part,
)

if TYPE_CHECKING:
    import pyarrow as pa

PART_DOCUMENTS, PART_BYTES = 5_000, 64 << 20  # a part ends with the page that reaches one of them
VERSION = metadata.version("hybridr")


@dataclass(frozen=True)
class TextsExported(Reported):
    """The result of an export of texts: documents and parts in the folder, and how many were there before.

    Since the texts were read, the index took `written` documents, and `gone` of those in the folder were
    changed or deleted. The third stage handles both.
    """

    folder: Path
    index: str
    documents: int
    before: int
    parts: int
    fields: tuple[str, ...]
    seconds: float
    written: int
    gone: int


@dataclass(frozen=True)
class Export:
    """Arguments of the export of each shard: source, target folder, shares to read and progress."""

    cluster: Cluster
    info: IndexInfo
    texts: StageFolder
    origin: Origin
    settings: ReindexSettings
    shares: list[Share]
    meter: Meter
    stop: Event = field(default_factory=Event)


def export_text(
    cluster: Cluster,
    name: str,
    folder: Path,
    settings: ReindexSettings | None = None,
    *,
    progress: Progress = silent,
) -> TextsExported:
    """Write the texts of all documents of `name`, as a reindex would encode them, into `folder`/texts.

    A second run continues after the last part. Documents written into the index meanwhile or later are
    left to the third stage. Only the owner can read the files. Raises DataError for a folder with other
    texts, or one that another process writes into, DownloadError for a full disk, and what reading an index
    raises.
    """
    started, settings = time.monotonic(), settings or ReindexSettings()
    cluster = cluster.with_patience(settings.patience_s)
    require_whole(cluster.index_info(name), name)
    info = index_to_read(cluster, name)
    require_whole_source(info)
    require_no_loss(cluster, info)
    texts = StageFolder.texts(folder, info.name)
    if cluster.count(info.name) == 0:
        raise empty_index(info)
    stored = origin_in(texts)
    earlier_fields = stored.fields if stored and stored.uuid == info.uuid else ()
    fields = choose_text_fields(cluster, info, settings.fields or earlier_fields)
    expected = Origin(index=info.name, uuid=info.uuid, fields=fields)
    with claimed(texts.folder / "texts") as is_claimed:
        if not is_claimed:
            raise DataError(
                f"another process writes texts into {texts.folder}", hint="wait until it has ended"
            )
        for leftover in texts.folder.glob(".*.parquet.*"):  # of a process that was killed
            leftover.unlink()
        texts.compare()
        origin = origin_for(cluster, expected, texts)
        texts.reopen()
        texts.drop_behind_gaps()
        meter = Meter(progress, cluster.count(info.name), "export-text")
        meter.add(sum(count_rows(texts.file(part), texts.command) for part in texts.parts()))
        until = origin.position or visible_position(cluster, info.name)
        shares = cut_into_shares(cluster, info.name, None, until)
        export, earlier = Export(cluster, info, texts, origin, settings, shares, meter), meter.done
        in_threads(partial(export_shard, export), range(info.shards), settings.workers, export.stop)
        if not (parts := texts.parts()):
            raise ClusterError(f"no document of '{info.name}' could be read", hint="hybridr doctor")
        write_manifest(
            texts.folder,
            stage="export-text",
            settings={"fields": origin.fields, "read_documents": settings.read_documents},
            inputs={"index": info.name, "uuid": info.uuid, "documents": meter.done},
            outputs=parts,
            extra={"origin": origin.model_dump(mode="json")},
        )
    later, unchanged = count_around(cluster, info, until)
    counts = {"documents": meter.done, "before": earlier, "written": later, "gone": meter.done - unchanged}
    seconds = time.monotonic() - started
    return TextsExported(folder, info.name, parts=len(parts), fields=fields, seconds=seconds, **counts)


def count_around(cluster: Cluster, info: IndexInfo, position: Position) -> tuple[int, int]:
    """Return how many documents of an index were written after a position, and how many before it."""
    with suppress(AccessDenied):
        cluster.refresh(info.name)
    spans = position.seq_no.items()
    later = sum(documents_between(cluster, info.name, shard, last, LAST) for shard, last in spans)
    return later, sum(documents_between(cluster, info.name, shard, -1, last) for shard, last in spans)


def origin_in(texts: StageFolder) -> Origin | None:
    """Return the origin of the texts in a folder, read from the last part; None if there are no parts."""
    parts = texts.parts()
    return read_label(texts.file(parts[-1]), TextsLabel, texts.command).origin if parts else None


def origin_for(cluster: Cluster, expected: Origin, texts: StageFolder) -> Origin:
    """Return the origin of the texts in the folder, or for an empty folder the expected one with the current
    position.

    Raises DataError if the folder holds texts of another origin.
    """
    stored = origin_in(texts)
    if stored is None:
        settled = settled_position(cluster, expected.index)
        return expected.model_copy(update={"settled": settled.seq_no if settled else None})
    if stored.model_copy(update={"settled": None}) != expected:
        raise DataError(
            f"{texts.folder} holds texts of '{stored.index}' ({stored.uuid}), "
            f"fields {', '.join(stored.fields)}; wanted are those of '{expected.index}' ({expected.uuid}), "
            f"fields {', '.join(expected.fields)}",
            hint="--out with another folder",
        )
    return stored


def export_shard(export: Export, shard: int) -> None:
    """Write the missing parts of a shard, after the last one. Raises ClusterError without `_source`."""
    texts, fields = export.texts, export.origin.fields
    names = [name for name in texts.parts() if name.startswith(f"{shard:05d}-")]
    number, since = len(names), -1
    if names:
        since = read_label(texts.file(names[-1]), TextsLabel, texts.command).until
    for share in export.shares:  # as a reindex reads them: no page has documents of two shares
        first, last = ((where.seq_no.get(shard) if where else None) for where in (share.since, share.until))
        if last is None or last <= since:
            continue
        begin, size = max(since, -1 if first is None else first), export.settings.read_documents
        remaining = Share(since=Position({shard: begin}), until=Position({shard: last}))
        pages = read_pages(export.cluster, export.info, page=size, share=remaining, fields=fields)
        tables_of_pages = (page_table(page, fields) for page in pages)
        for first_table in tables_of_pages:
            if export.stop.is_set():
                return
            tables = [first_table]
            documents, part_bytes = first_table.num_rows, first_table.nbytes
            while documents < PART_DOCUMENTS and part_bytes < PART_BYTES:
                if (table := next(tables_of_pages, None)) is None:
                    break
                tables.append(table)
                documents, part_bytes = documents + table.num_rows, part_bytes + table.nbytes
            until = tables[-1]["seq_no"][-1].as_py()
            label = TextsLabel(hybridr=VERSION, origin=export.origin, shard=shard, since=since, until=until)
            write_part(texts.file(part_name(shard, number)), label, TEXTS, tables)
            export.meter.add(documents)
            number, since = number + 1, until


def page_table(page: list[SourceDocument], fields: tuple[str, ...]) -> pa.Table:
    """Return a page of documents as a Parquet table of id, `_seq_no`, routing and text."""
    columns = {
        "id": [document.doc_id for document in page],
        "seq_no": [document.seq_no for document in page],
        "routing": [document.routing for document in page],
        "text": [text_of(document.source, fields) for document in page],
    }
    return parquet_table(columns, TEXTS)


class Row(NamedTuple):
    """A document in a part of vectors: the digest of its text, its vectors `(n, dim)` and their spans."""

    digest: bytes
    vectors: Vectors
    split: Split

    def fits(self, text: str) -> bool:
        """Return whether these vectors were made from this text: same digest, and spans within the text (none
        for an empty text).
        """
        is_inside = all(0 <= start < end <= len(text) for start, end in self.split.spans)
        return is_inside and bool(self.split.spans) == bool(text) and self.digest == digest_of_text(text)


@dataclass(frozen=True)
class Ready:
    """Finished vectors: folder, origin of the texts, how they were made, and the sha256 of each part."""

    vectors: StageFolder
    origin: Origin
    making: Making
    digests: dict[str, str]


@dataclass(frozen=True)
class Imported(ReindexResult):
    """The result of an import: that of a reindex, with the number of vectors `taken` from the folder."""

    taken: int = 0


def import_vectors(
    cluster: Cluster,
    name: str,
    folder: Path,
    encoder: Encoder,
    settings: ReindexSettings | None = None,
    *,
    progress: Progress = silent,
) -> Imported:
    """Fill a new index with the documents of `name` and the vectors in `folder`, verify it, switch the alias.

    Documents that were written since the export, or whose text differs, are encoded by `encoder`, which must
    be the one that made the vectors. Raises the errors of `plan_import` and of `reindex`.
    """
    settings = settings or ReindexSettings()
    cluster = cluster.with_patience(settings.patience_s)
    ready = read_ready(folder)
    options = import_settings(cluster, name, encoder, settings, ready)
    reused = Meter()
    fill = partial(fill_from, ready, reused=reused, progress=progress)
    todo = prepare(cluster, name, encoder, options)
    done = reindex_planned(todo, fill=fill, progress=progress)
    return Imported(**{field.name: getattr(done, field.name) for field in fields(done)}, taken=reused.done)


def plan_import(
    cluster: Cluster, name: str, folder: Path, encoder: Encoder, settings: ReindexSettings
) -> tuple[Plan, int]:
    """Return the plan of an import, after all checks that need no write, and the number of documents with
    vectors in `folder`.

    Raises DataError for vectors that are incomplete, damaged, of another index or made in another way,
    FingerprintMismatch for those of another encoder, SettingsError for what stages cannot do, and the errors
    of `plan`.
    """
    ready = read_ready(folder)
    options = import_settings(cluster, name, encoder, settings, ready)
    rows = (count_rows(ready.vectors.file(part), ready.vectors.command) for part in ready.digests)
    return plan(cluster, name, encoder, options), sum(rows)


def read_ready(folder: Path) -> Ready:
    """Return the finished vectors in a folder. Raises DataError if they are not complete."""
    vectors = StageFolder.vectors(folder)
    manifest = vectors.finished()
    origin, making = vectors.entry(manifest, "origin", Origin), vectors.entry(manifest, "making", Making)
    return Ready(vectors, origin, making, manifest["outputs"])


def import_settings(
    cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings, ready: Ready
) -> ReindexSettings:
    """Return the settings of the reindex, with everything that decides the vectors taken from the folder.

    Raises the errors of `plan_import`.
    """
    options = [name for name in ("in_place", "target", "semantic") if getattr(settings, name)]
    for option in (*options, *(kind.setting for kind in representations_in(settings) if kind.staged)):
        raise SettingsError(
            f"import-vectors writes one whole new index: it has no {option}", hint=f"leave {option} out"
        )
    info = index_to_read(cluster, name)
    if info.uuid != ready.origin.uuid:
        raise DataError(
            f"{ready.vectors.folder} holds vectors of '{ready.origin.index}' ({ready.origin.uuid}), "
            f"'{info.name}' is another index ({info.uuid})",
            hint=f"hybridr export-text {quote(info.name)} --out FOLDER",
        )
    record_settings = settings_in(Record(passages=ready.making.windows)) | {
        "fields": ready.origin.fields,
        "max_tokens": ready.making.max_tokens,
        "precision": None,  # that of the encoder, which made the vectors
    }
    import_options = settings.model_copy(update=record_settings)
    check_making(
        ready.making,
        Making.of(TextRecipe(encoder, import_options, ready.origin.fields)),
        str(ready.vectors.folder),
        f"encode again: rm -r {quote(str(ready.vectors.folder))}; {ready.vectors.command}",
    )
    return import_options


def fill_from(ready: Ready, job: Job, todo: Plan, reused: Meter, progress: Progress) -> Filling:
    """Write the documents of all parts, then whatever else the source holds; return the counts."""
    total, meter = Filling(), Meter(progress, job.cluster.count(job.source))
    job.pace.wait(0)  # measures searches before the load begins
    work = partial(import_part, ready, job, meter, reused)
    for filling in in_threads(work, sorted(ready.digests), job.settings.workers, job.stop):
        total.add(filling)
    # Copies of an earlier run that the source deleted before the export are found only by a full pass.
    since = None if todo.exists else ready.origin.position
    rest = Beside().fill(job, since=since, progress=lambda _, *count: progress("since the export", *count))
    if since is None:  # the full pass counted everything again, with what was just written
        imported = total.encoded + total.without_text
        total.skipped, rest.skipped = max(total.skipped, rest.skipped - imported), 0
        total.rejected = 0
    total.add(rest)
    total.until, total.settled = rest.until, rest.settled
    return total


def import_part(ready: Ready, job: Job, meter: Meter, reused: Meter, name: str) -> Filling:
    """Write the documents that the source still holds in the range of a part; return the counts.

    `reused` counts documents that get a vector from the folder. Raises DataError if the part is not the one
    in the manifest.
    """
    command, file = ready.vectors.command, ready.vectors.unchanged(name, ready.digests[name])
    label = read_label(file, VectorsLabel, command)
    if (label.origin, label.making) != (ready.origin, ready.making):
        raise DataError(f"{file} does not belong to the vectors of the manifest", hint=command)
    rows: dict[str, Row] = {}
    with undamaged(file, command):
        for table in read_part(file, vectors_schema(ready.making.dim), command):
            rows |= read_rows(table, ready.making.dim)
    filling = Filling(until=Position.at(label.share.since))
    copies = pages_to_copy(job, label.share, filling, meter)
    with closing(prefetched(with_known_vectors(job, copies, rows, reused))) as pages:
        write_pages(job, COPYING, pages, filling, meter)
    return filling


def read_rows(table: pa.Table, dim: int) -> dict[str, Row]:
    """Return id -> row of a row group. Raises ValueError for inconsistent or non-finite vectors."""
    columns = (table[name].to_pylist() for name in ("id", "digest", "whole", "start", "end"))
    rows = {}
    for doc_id, digest, is_whole, start, end, group in zip(*columns, vectors_in(table, dim), strict=True):
        spans = tuple(zip(start, end, strict=True))
        if len(spans) != len(group) or not np.isfinite(group).all():
            counts = f"{quantity(len(group), 'vector')} for {quantity(len(spans), 'span')}"
            raise ValueError(f"document '{doc_id}' has {counts}, or no numbers")
        rows[doc_id] = Row(digest, group, Split(spans, is_whole))
    return rows


def with_known_vectors(
    job: Job, pages: Iterator[list[Pending]], rows: dict[str, Row], reused: Meter
) -> Iterator[list[Pending]]:
    """Yield the pages with vectors: those of the part if the text is unchanged, else encoded now."""
    for page in pages:
        entries: list[Pending] = []
        others: list[Pending] = []
        for pending in page:
            row, text = rows.get(pending.document.doc_id), job.recipe.text_of(pending.document.source)
            pending = pending._replace(text=text)
            if row is not None and row.fits(text):
                output = EncodedDocument(row.vectors, row.split) if row.split.spans else None
                entries.append(pending._replace(encoded=output))
            else:
                others.append(pending)
        reused.add(sum(pending.encoded is not None for pending in entries))
        yield entries + (encode(job.recipe, others) if others else [])
