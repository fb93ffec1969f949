"""The second stage of a reindex: encodes each part of texts into a part of vectors, without a cluster.

Batches are those of a reindex, because the last bits of a vector depend on the texts encoded with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from shlex import quote
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from ...cluster.reading import SourceDocument
from ...encoders.contract import Encoder, base_model_name, offers_of
from ...encoders.opening import load_encoder
from ...encoders.passages import Split
from ...errors import DataError, SettingsError, quantity
from ...files.local import fingerprint, write_manifest
from ...files.remembered import remember_encoder
from ...records import Progress, Reported, silent
from ..filling import encoded_pages
from ..job import Meter, Pending
from ..recipe import TextRecipe
from ..representations import EncodedDocument, representations_in
from ..runners.threads import in_threads
from ..settings import ReindexSettings
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
    lists_of_vectors,
    parquet_table,
    read_label,
    read_part,
    vectors_schema,
    write_part,
)

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = "text"
VALUES_A_GROUP = 1 << 20  # of vectors; a row group is read whole


@dataclass(frozen=True)
class Encoding:
    """Arguments of the encoding of each part: both folders, the recipe, and the sha256 of texts' parts."""

    texts: StageFolder
    vectors: StageFolder
    recipe: TextRecipe
    making: Making
    digests: dict[str, str]
    stop: Event = field(default_factory=Event)


@dataclass(frozen=True)
class Encoded(Reported):
    """The result of encoding texts: documents and parts in the folder; `before` documents were there."""

    folder: Path
    index: str
    documents: int
    before: int
    parts: int
    encoder: str
    seconds: float


def encode_texts(
    folder: Path,
    encoder: Encoder | Path | str,
    settings: ReindexSettings | None = None,
    *,
    progress: Progress = silent,
) -> Encoded:
    """Encode each part of texts in `folder` and write the vectors to `folder`/vectors.

    Finished parts stay, so a second run continues; two processes can share the parts. Raises DataError for
    texts that are incomplete, damaged or of another origin, and for parts that another process still works on
    at the end, FingerprintMismatch for vectors of another encoder, SettingsError for token bits,
    DownloadError for a full disk, ModelError.
    """
    started, settings = time.monotonic(), settings or ReindexSettings()
    texts, vectors = StageFolder.texts(folder), StageFolder.vectors(folder)
    manifest = texts.finished()
    origin = texts.entry(manifest, "origin", Origin)
    for kind in representations_in(settings):
        if kind.staged:
            raise SettingsError(
                f"{kind.compared} are not made in stages: {kind.staged}",
                hint=f"leave {kind.setting} out, or: hybridr reindex {quote(origin.index)} {kind.option()}",
            )
    settings = settings.model_copy(update={"vectors": "float", "compression": None})  # an index chooses later
    if isinstance(encoder, (str, Path)):
        encoder = load_encoder(encoder, precision=settings.chosen_precision, backend=settings.backend)
    remember_encoder(encoder.fingerprint, offers_of(encoder).folder)
    recipe = TextRecipe(encoder, settings, (TEXT,))
    task = Encoding(texts, vectors, recipe, Making.of(recipe), manifest["outputs"])
    vectors.compare()
    done_parts = set(made_parts(task))
    sizes = {name: count_rows(texts.file(name), texts.command) for name in task.digests}
    waiting = [name for name in sizes if name not in done_parts]
    earlier, total = sum(sizes[name] for name in done_parts), sum(sizes.values())
    meter = Meter(progress, total, "encode")
    meter.add(earlier)
    if waiting:
        vectors.reopen()
        in_threads(partial(encode_part, task, meter), waiting, settings.workers, task.stop)
    finish_vectors(task, manifest, origin)
    meter.add(total - meter.done)  # by other processes
    seconds = time.monotonic() - started
    return Encoded(folder, origin.index, total, earlier, len(sizes), task.making.encoder, seconds)


def made_parts(task: Encoding) -> list[str]:
    """Return the names of the parts whose vectors are finished.

    Raises FingerprintMismatch or DataError for vectors of another encoder or of other texts.
    """
    vectors, names = task.vectors, []
    for name in vectors.parts():
        file = vectors.file(name)
        if name not in task.digests:
            raise DataError(f"{file} has no part of texts", hint=f"rm {quote(str(file))}")
        label = read_label(file, VectorsLabel, vectors.command)
        check_making(label.making, task.making, str(file), f"start anew: rm -r {quote(str(vectors.folder))}")
        if label.texts != task.digests[name]:
            raise DataError(
                f"{file} was made of other texts", hint=f"rm {quote(str(file))}; {vectors.command}"
            )
        names.append(name)
    return names


def encode_part(task: Encoding, meter: Meter, name: str) -> None:
    """Encode a part's texts and write their vectors, unless these exist or another process has the part."""
    file, digest, dim = task.vectors.file(name), task.digests[name], task.making.dim
    with claimed(file) as is_claimed:
        if not is_claimed or file.exists():
            return
        command, texts = task.texts.command, task.texts.unchanged(name, digest)
        label = read_label(texts, TextsLabel, command)
        pages = (pending_documents(table) for table in read_part(texts, TEXTS, command))
        entries: list[Pending] = []
        with closing(encoded_pages(task.recipe, pages)) as encoded:
            for part in encoded:
                entries += part
                if task.stop.is_set():
                    return
        entries.sort(key=lambda pending: pending.document.seq_no)
        values = {**dict(label), "hybridr": metadata.version("hybridr")}
        vectors_label = VectorsLabel(**values, making=task.making, texts=digest)
        write_part(file, vectors_label, vectors_schema(dim), vector_tables(entries, dim))
        meter.add(len(entries))


def pending_documents(table: pa.Table) -> list[Pending]:
    """Return the documents of a page of texts, ready to be encoded."""
    columns = (table[name].to_pylist() for name in ("id", "seq_no", "routing", "text"))
    return [
        Pending(SourceDocument(doc_id, {TEXT: text}, 0, seq_no, 0, routing))
        for doc_id, seq_no, routing, text in zip(*columns, strict=True)
    ]


def vector_tables(entries: list[Pending], dim: int) -> Iterator[pa.Table]:
    """Yield encoded documents as Parquet tables with a bounded number of values each."""
    group: list[Pending] = []
    values = 0
    for pending in entries:
        group.append(pending)
        values += pending.encoded.vectors.size if pending.encoded else 0
        if values >= VALUES_A_GROUP:
            yield vector_table(group, dim)
            group, values = [], 0
    if group or not entries:
        yield vector_table(group, dim)


def vector_table(group: list[Pending], dim: int) -> pa.Table:
    """Return encoded documents as one Parquet table."""
    no_output = EncodedDocument(np.zeros((0, dim), dtype=np.float32), Split(()))
    outputs = [pending.encoded or no_output for pending in group]
    columns = {
        "id": [pending.document.doc_id for pending in group],
        "seq_no": [pending.document.seq_no for pending in group],
        "digest": [digest_of_text(str(pending.document.source[TEXT])) for pending in group],
        "whole": [entry.split.whole for entry in outputs],
        "start": [[start for start, _ in entry.split.spans] for entry in outputs],
        "end": [[end for _, end in entry.split.spans] for entry in outputs],
        "vectors": lists_of_vectors([entry.vectors for entry in outputs], dim),
    }
    return parquet_table(columns, vectors_schema(dim))


def finish_vectors(task: Encoding, texts: dict[str, Any], origin: Origin) -> None:
    """Write the manifest that marks the vectors as complete.

    Raises DataError for parts that another process has not finished yet.
    """
    names, making, folder = made_parts(task), task.making.model_dump(mode="json"), task.vectors.folder
    if missing := sorted(task.digests.keys() - set(names)):
        raise DataError(
            f"another process has {quantity(len(missing), 'part')} of {folder}, such as {missing[0]}",
            hint=f"when it has ended: {task.vectors.command}   does what is left",
        )
    base = base_model_name(offers_of(task.recipe.encoder).folder)
    encoder = {"fingerprint": task.making.encoder, "base": base}
    write_manifest(
        folder,
        stage="encode",
        settings=making,
        inputs=task.digests,
        outputs=names,
        parents=[fingerprint(texts)],
        extra={"origin": origin.model_dump(mode="json"), "making": making, "encoder": encoder},
    )
