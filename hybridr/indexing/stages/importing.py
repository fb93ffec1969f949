"""The third stage of a reindex: writes vectors from Parquet into a new index beside the source.

Each part names a range of `_seq_no` of a shard. The live index is read in just this range, so documents
changed or deleted since the export are not in it any more. A vector is used only if the digest of its text is
that of the document; other documents are encoded again. Everything else is done as by `reindex`, which can
also continue an import that was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...cluster.connection import Cluster
from ...cluster.reading import Position
from ...cluster.record import Record
from ...encoders.contract import Encoder, Vectors
from ...encoders.passages import Split
from ...errors import DataError, SettingsError
from ...records import Progress, silent
from ..filling import encode, prefetched, write_pages
from ..job import Filling, Job, Meter, Pending
from ..planning import Plan, source_of
from ..recipe import TextRecipe
from ..reindexing import ReindexResult, plan, prepare, reindex_planned
from ..representations import EncodedDocument, representations_in, settings_in
from ..runners.threads import in_threads
from ..settings import ReindexSettings
from ..targets.beside import COPYING, Beside, pages_to_copy
from .bundle import (
    Making,
    Origin,
    StageFolder,
    VectorsLabel,
    check_making,
    count_rows,
    digest_of_text,
    read_label,
    read_part,
    undamaged,
    vectors_in,
    vectors_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa


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
    """Finished vectors: their folder, the origin of the texts, how they were made, and the sha256 of each
    part.
    """

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
    cluster = cluster.patient(settings.patience_s)
    ready = ready_in(folder)
    chosen = import_settings(cluster, name, encoder, settings, ready)
    taken = Meter()
    fill = partial(fill_from, ready, taken=taken, progress=progress)
    todo = prepare(cluster, name, encoder, chosen)
    done = reindex_planned(todo, fill=fill, progress=progress)
    return Imported(**{field.name: getattr(done, field.name) for field in fields(done)}, taken=taken.done)


def plan_import(
    cluster: Cluster, name: str, folder: Path, encoder: Encoder, settings: ReindexSettings
) -> tuple[Plan, int]:
    """Return the plan of an import, after all checks that need no write, and the number of documents with
    vectors in `folder`.

    Raises DataError for vectors that are incomplete, damaged, of another index or made in another way,
    FingerprintMismatch for those of another encoder, SettingsError for what stages cannot do, and the errors
    of `plan`.
    """
    ready = ready_in(folder)
    chosen = import_settings(cluster, name, encoder, settings, ready)
    rows = (count_rows(ready.vectors.file(part), ready.vectors.command) for part in ready.digests)
    return plan(cluster, name, encoder, chosen), sum(rows)


def ready_in(folder: Path) -> Ready:
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
    info = source_of(cluster, name)
    if info.uuid != ready.origin.uuid:
        raise DataError(
            f"{ready.vectors.folder} holds vectors of '{ready.origin.index}' ({ready.origin.uuid}), "
            f"'{info.name}' is another index ({info.uuid})",
            hint=f"hybridr export-text {info.name} --out FOLDER",
        )
    record_settings = settings_in(Record(passages=ready.making.windows)) | {
        "fields": ready.origin.fields,
        "max_tokens": ready.making.max_tokens,
        "precision": None,  # that of the encoder, which made the vectors
    }
    chosen = settings.model_copy(update=record_settings)
    check_making(
        ready.making,
        Making.of(TextRecipe(encoder, chosen, ready.origin.fields)),
        str(ready.vectors.folder),
        f"encode again: rm -r {ready.vectors.folder}; {ready.vectors.command}",
    )
    return chosen


def fill_from(ready: Ready, job: Job, todo: Plan, taken: Meter, progress: Progress) -> Filling:
    """Write the documents of all parts, then whatever else the source holds; return the counts."""
    total, meter = Filling(), Meter(progress, job.cluster.count(job.source))
    job.pace.wait(0)  # looks how long searches take before the work begins
    work = partial(import_part, ready, job, meter, taken)
    for filling in in_threads(work, sorted(ready.digests), job.settings.workers, job.stop):
        total.add(filling)

    def later(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Report progress of documents that changed since the export."""
        progress("since the export", done, total, note)

    # What an earlier run wrote, and the source deleted before the export, is found by looking at everything.
    since = None if todo.exists else ready.origin.position
    rest = Beside().fill(job, since=since, progress=later)
    if since is None:  # then everything was counted there once more, with what was just written
        written = total.encoded + total.without_text
        total.skipped, rest.skipped = max(total.skipped, rest.skipped - written), 0
        total.rejected = 0
    total.add(rest)
    total.until, total.settled = rest.until, rest.settled
    return total


def import_part(ready: Ready, job: Job, meter: Meter, taken: Meter, name: str) -> Filling:
    """Write the documents that the source still holds in the range of a part; return the counts.

    `taken` counts documents that get a vector from the folder. Raises DataError if the part is not the one in
    the manifest.
    """
    command, file = ready.vectors.command, ready.vectors.unchanged(name, ready.digests[name])
    label = read_label(file, VectorsLabel, command)
    if (label.origin, label.making) != (ready.origin, ready.making):
        raise DataError(f"{file} is not of the vectors that the manifest speaks of", hint=command)
    rows: dict[str, Row] = {}
    with undamaged(file, command):
        for table in read_part(file, vectors_schema(ready.making.dim), command):
            rows |= rows_in(table, ready.making.dim)
    filling = Filling(until=Position.at(label.share.since))
    read = pages_to_copy(job, label.share, filling, meter)
    with closing(prefetched(with_known_vectors(job, read, rows, taken))) as pages:
        write_pages(job, COPYING, pages, filling, meter)
    return filling


def rows_in(table: pa.Table, dim: int) -> dict[str, Row]:
    """Return the rows of a row group of vectors, by document id. Raises ValueError for inconsistent or
    non-finite vectors.
    """
    columns = (table[name].to_pylist() for name in ("id", "digest", "whole", "start", "end"))
    rows = {}
    for doc_id, digest, whole, start, end, own in zip(*columns, vectors_in(table, dim), strict=True):
        spans = tuple(zip(start, end, strict=True))
        if len(spans) != len(own) or not np.isfinite(own).all():
            counts = f"{len(own)} vectors for {len(spans)} spans"
            raise ValueError(f"document '{doc_id}' has {counts}, or no numbers")
        rows[doc_id] = Row(digest, own, Split(spans, whole))
    return rows


def with_known_vectors(
    job: Job, pages: Iterator[list[Pending]], rows: dict[str, Row], taken: Meter
) -> Iterator[list[Pending]]:
    """Yield the pages with vectors: from the part where the text is the same, else encoded now."""
    for page in pages:
        entries: list[Pending] = []
        others: list[Pending] = []
        for pending in page:
            row, text = rows.get(pending.document.doc_id), job.recipe.text_of(pending.document.source)
            pending = pending._replace(text=text)
            if row is not None and row.fits(text):
                said = EncodedDocument(row.vectors, row.split) if row.split.spans else None
                entries.append(pending._replace(encoded=said))
            else:
                others.append(pending)
        taken.add(sum(pending.encoded is not None for pending in entries))
        yield entries + (encode(job.recipe, others) if others else [])
