"""Proves that every document of an index with vectors in place bears the mark of its present text.

Ids, texts and marks of all documents are compared; a random sample of vectors is encoded again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain

from ..cluster import Cluster, IndexInfo
from ..encoder import Encoder
from ..errors import DataError
from ..progress import Progress, silent
from ..reading import Position, SourceDocument, read_pages
from ..stored import sources_by_id
from ..verification import PAGE, SAMPLE, Finding, Verification, compare_vectors, probe, random_documents
from .marks import Marks, broken_query, marked_query, other_than


def verify_in_place(
    cluster: Cluster,
    info: IndexInfo,
    encoder: Encoder | None = None,
    *,
    rejected: Sequence[str] = (),
    until: Position | None = None,
    sample: int = SAMPLE,
    seed: int | None = None,
    progress: Progress = silent,
) -> Verification:
    """Compare every mark with the document's text; without an encoder no text is encoded again.

    `rejected` are ids that the index refused; documents written after `until` are not looked at. Raises
    DataError for a copy that bears another index's record.
    """
    if info.meta["source_uuid"] != info.uuid:
        raise DataError(
            f"'{info.name}' is a copy of '{info.meta['source']}', with its record",
            hint=f"hybridr sync {info.name}   looks at every document and makes the record its own",
        )
    cluster.refresh(info.name)
    marks, refused = Marks.of_index(info), frozenset(rejected)
    chosen = [
        document
        for document in random_documents(cluster, info, sample, random.Random(seed))
        if document.doc_id not in refused
    ]
    findings = compare_marks(cluster, info, marks, refused, until, progress)
    if encoder is not None:
        found = sources_by_id(cluster, info.name, [document.doc_id for document in chosen])
        fitting = {doc_id: source for doc_id, source in found.items() if marks.fits(source)}
        findings.append(compare_vectors(info, fitting, fitting, encoder))
    return Verification(info.name, info.name, [*findings, probe(cluster, info, chosen, encoder)])


def compare_marks(
    cluster: Cluster,
    info: IndexInfo,
    marks: Marks,
    refused: frozenset[str],
    until: Position | None,
    progress: Progress,
) -> list[Finding]:
    """Look at every document: its mark against its text, then the vector that the mark speaks of."""
    foreign: list[str] = []
    stale: list[str] = []
    total, done = cluster.count(info.name), 0
    progress("verify", 0, total)
    for page in read_pages(cluster, info.name, page=PAGE, until=until, fields=marks.read_fields):
        for document in page:
            if marks.fits(document.source) or document.doc_id in refused:
                continue
            (stale if marks.by_encoder(document.source) else foreign).append(document.doc_id)
        done += len(page)
        progress("verify", done, max(total, done))
    broken = [document.doc_id for document in broken_documents(cluster, info, marks, until)]
    return [
        Finding("without a vector of this encoder", done, foreign),
        Finding("vector of an older text", done, stale),
        Finding("mark without its vector", done, broken),
    ]


def broken_documents(
    cluster: Cluster, info: IndexInfo, marks: Marks, until: Position | None = None
) -> Iterator[SourceDocument]:
    """Yield documents whose mark and vector belie each other."""
    unless = other_than(broken_query(marks, info.meta["vector_field"]))
    pages = read_pages(cluster, info.name, page=PAGE, until=until, unless=unless, fields=marks.read_fields)
    return chain.from_iterable(pages)


def count_current(cluster: Cluster, info: IndexInfo, since: Position | None) -> int:
    """Count the documents whose vector is that of their text.

    Only what was written after `since`, the settled position of the last round, can be stale: that is read.
    """
    cluster.refresh(info.name)
    marks = Marks.of_index(info)
    query = {"size": 0, "track_total_hits": True, "query": marked_query(marks)}
    marked = int(cluster.search(info.name, query)["hits"]["total"]["value"])
    at = Position(dict(since.seq_no)) if since else None
    pages = read_pages(cluster, info.name, page=PAGE, position=at, fields=marks.read_fields)
    stale = sum(
        marks.by_encoder(document.source) and not marks.fits(document.source)
        for document in chain.from_iterable(pages)
    )
    broken = sum(marks.fits(document.source) for document in broken_documents(cluster, info, marks))
    return marked - stale - broken
