"""The first stage of a reindex: writes the texts of an index to Parquet, in parts by shard and range of
`_seq_no`.

Ranges of `_seq_no`, not slices: the third stage reads the same ranges of the live index again, and a document
that changed meanwhile has left its range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ...cluster.connection import Cluster
from ...cluster.destinations import require_whole
from ...cluster.fields import choose_text_fields
from ...cluster.known_problems import require_no_loss
from ...cluster.reading import (
    Position,
    Share,
    SourceDocument,
    read_pages,
    require_whole_source,
    settled_position,
    text_of,
)
from ...cluster.record import IndexInfo
from ...cluster.routing import shards_in
from ...errors import ClusterError, DataError
from ...files.manifest import write_manifest
from ...records import Progress, Reported, silent
from ..job import Meter
from ..lag import cut_up, visible_position
from ..planning import source_of
from ..runners.threads import in_threads
from ..settings import ReindexSettings
from .bundle import (
    TEXTS,
    Origin,
    StageFolder,
    TextsLabel,
    claimed,
    count_rows,
    parquet_table,
    part_name,
    read_label,
    write_part,
)

if TYPE_CHECKING:
    import pyarrow as pa

PART_DOCUMENTS, PART_BYTES = 5_000, 64 << 20  # a part ends with the page that reaches one of them
VERSION = metadata.version("hybridr")


@dataclass(frozen=True)
class TextsExported(Reported):
    """The result of an export of texts: documents and parts in the folder, and how many were there before."""

    folder: Path
    index: str
    documents: int
    before: int
    parts: int
    fields: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Export:
    """What the export of each shard needs: source, target folder, shares to read and progress."""

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

    Run again, the export goes on after the last part; what is written into the index meanwhile or later is
    left to the third stage. Only the owner can read the files. Raises DataError for a folder with other
    texts, or one that another process writes into, DownloadError for a full disk, and what reading an index
    raises.
    """
    started, settings = time.monotonic(), settings or ReindexSettings()
    cluster = cluster.patient(settings.patience_s)
    require_whole(cluster.index_info(name), name)
    info = source_of(cluster, name)
    require_whole_source(info)
    require_no_loss(cluster, info)
    texts = StageFolder.texts(folder, info.name)
    if cluster.count(info.name) == 0:
        raise DataError(f"index '{info.name}' is empty", hint=f"hybridr load FOLDER --index {info.name}")
    stored = origin_in(texts)
    begun = stored.fields if stored and stored.uuid == info.uuid else ()
    fields = choose_text_fields(cluster, info, settings.fields or begun)
    expected = Origin(index=info.name, uuid=info.uuid, fields=fields)
    with claimed(texts.folder / "texts") as ours:
        if not ours:
            raise DataError(
                f"another process writes texts into {texts.folder}", hint="wait until it has ended"
            )
        for left in texts.folder.glob(".*.parquet.*"):  # of a process that was killed
            left.unlink()
        texts.compare()
        origin = origin_for(cluster, expected, texts)
        texts.reopen()
        texts.drop_behind_gaps()
        meter = Meter(progress, cluster.count(info.name), "export-text")
        meter.add(sum(count_rows(texts.file(part), texts.command) for part in texts.parts()))
        shares = cut_up(cluster, info.name, None, origin.position or visible_position(cluster, info.name))
        export, before = Export(cluster, info, texts, origin, settings, shares, meter), meter.done
        in_threads(partial(export_shard, export), shards_in(info), settings.workers, export.stop)
        finish_texts(export)
    parts, seconds = len(texts.parts()), time.monotonic() - started
    return TextsExported(folder, info.name, meter.done, before, parts, expected.fields, seconds)


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
    """Write the remaining parts of a shard, after the last one that is there. Raises ClusterError without
    `_source`.
    """
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
        left = Share(since=Position({shard: begin}), until=Position({shard: last}))
        pages = read_pages(export.cluster, export.info, page=size, share=left, fields=fields)
        tables_of_pages = (page_table(page, fields) for page in pages)
        for first_table in tables_of_pages:
            if export.stop.is_set():
                return
            tables = until_full(chain([first_table], tables_of_pages))
            until = tables[-1]["seq_no"][-1].as_py()
            label = TextsLabel(hybridr=VERSION, origin=export.origin, shard=shard, since=since, until=until)
            write_part(texts.file(part_name(shard, number)), label, TEXTS, tables)
            export.meter.add(sum(table.num_rows for table in tables))
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


def until_full(pages: Iterator[pa.Table]) -> list[pa.Table]:
    """Return the next page tables that together make a part of the intended size."""
    taken: list[pa.Table] = []
    documents = size = 0
    for page in pages:
        taken.append(page)
        documents, size = documents + page.num_rows, size + page.nbytes
        if documents >= PART_DOCUMENTS or size >= PART_BYTES:
            break
    return taken


def finish_texts(export: Export) -> None:
    """Write the manifest that marks the export as complete. Raises ClusterError if there is no part."""
    parts = export.texts.parts()
    if not parts:
        raise ClusterError(f"no document of '{export.info.name}' could be read", hint="hybridr doctor")
    write_manifest(
        export.texts.folder,
        stage="export-text",
        settings={"fields": export.origin.fields, "read_documents": export.settings.read_documents},
        inputs={"index": export.info.name, "uuid": export.info.uuid, "documents": export.meter.done},
        outputs=parts,
        extra={"origin": export.origin.to_json()},
    )
