"""The first stage: the texts of an index as Parquet, in parts that can be told by shard and `_seq_no`.

Ranges of `_seq_no` rather than slices: the stage that writes vectors reads just these ranges of the live
index again, and a document that changed meanwhile has left its range.
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
    """What lies in the folder now, and how many of the documents were there before."""

    folder: Path
    index: str
    documents: int
    before: int
    parts: int
    fields: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Export:
    """What all shards share: where texts are read and go to, and how many are done."""

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

    Run again it goes on behind the last part; what is written into the index meanwhile, or afterwards, is
    left to the stage that writes vectors. The files are readable by their owner only. Raises DataError for a
    folder with other texts, or one that another process writes into, DownloadError for a full disk, and what
    reading an index raises.
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
    """Read where the texts in a folder are from; None when there are none."""
    parts = texts.parts()
    return read_label(texts.file(parts[-1]), TextsLabel, texts.command).origin if parts else None


def origin_for(cluster: Cluster, expected: Origin, texts: StageFolder) -> Origin:
    """Return the origin of the texts that are there already, else of those to come.

    Raises DataError when there are others in the folder than are wanted.
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
    """Write the parts of a shard behind the last one that is there. Raises ClusterError without `_source`."""
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
    """Write a page of documents as a table."""
    columns = {
        "id": [document.doc_id for document in page],
        "seq_no": [document.seq_no for document in page],
        "routing": [document.routing for document in page],
        "text": [text_of(document.source, fields) for document in page],
    }
    return parquet_table(columns, TEXTS)


def until_full(pages: Iterator[pa.Table]) -> list[pa.Table]:
    """Take pages until they make a part."""
    taken: list[pa.Table] = []
    documents = size = 0
    for page in pages:
        taken.append(page)
        documents, size = documents + page.num_rows, size + page.nbytes
        if documents >= PART_DOCUMENTS or size >= PART_BYTES:
            break
    return taken


def finish_texts(export: Export) -> None:
    """Write the manifest, which says that all parts are there. Raises ClusterError when there are none."""
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
