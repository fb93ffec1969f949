"""The lag of an index with vectors: what its source took since, and what the source deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..cluster.connection import Cluster
from ..cluster.destinations import refused_ids
from ..cluster.reading import (
    ID_PAGE,
    Position,
    Share,
    SourceDocument,
    documents_by_id,
    documents_in_pages,
    hidden_operations,
    read_pages,
    settled_position,
)
from ..cluster.record import SEQ_NO_FIELD, IndexInfo
from .job import INSERTED, is_current, look_up
from .work.operation_ranges import Numbered, differing
from .work.shares import visible_position

LAST = 2**62


@dataclass(frozen=True)
class Lag:
    """Changes of the source that are not yet in a destination; some of inserts and updates it `refused`."""

    inserts: int
    updates: int
    deletes: int
    refused: int = 0


def lag_of(cluster: Cluster, info: IndexInfo, since: Position | None) -> Lag:
    """Count what the source has and the destination has not: since a position, and what was refused."""
    source = cluster.index_info(info.record.source)
    settled = settled_position(cluster, source)
    refused = refused_ids(info)
    written = read_pages(cluster, source, page=ID_PAGE, share=Share(since=since), fields=())
    others = ([document for document in page if document.doc_id not in refused] for page in written)
    late = behind(cluster, info, others)
    failed = behind(cluster, info, documents_in_pages(cluster, source, refused, page=ID_PAGE, whole=False))
    late += failed
    deletes, again = 0, failed.total()
    if not (since and settled and not hidden_operations(cluster, source.name, since, settled)):
        until = settled or visible_position(cluster, source)
        deletes = sum(map(len, vanished_pages(cluster, source, info, until)))
    return Lag(late["inserts"], late["updates"], deletes, again)


def behind(cluster: Cluster, info: IndexInfo, pages: Iterable[Sequence[SourceDocument]]) -> Counter[str]:
    """Count the `inserts` and `updates` among documents of the source that a destination has not taken."""
    counts: Counter[str] = Counter()
    for page in pages:
        stored = look_up(cluster, info.name, page)
        for document in page:
            there = stored.get(document.doc_id)
            if there is None:
                counts["inserts"] += 1
            elif not is_current(document, there._replace(encoder=""), ""):  # a vector may be missing yet
                counts["updates"] += 1
    return counts


def vanished_pages(
    cluster: Cluster, source: IndexInfo, destination: IndexInfo, until: Position
) -> Iterator[list[SourceDocument]]:
    """Yield the destination's documents that came from the source until then and are no longer in it."""
    cluster.refresh(destination.name)
    for page in doubtful_pages(cluster, source, destination, until):
        ids = [document.doc_id for document in page]
        there = documents_by_id(cluster, source, ids, whole=False)
        gone = [document for document in page if document.doc_id not in there]
        copied = look_up(cluster, destination.name, gone)
        yield [d for d in gone if d.doc_id in copied and copied[d.doc_id].came_from_source]


def doubtful_pages(
    cluster: Cluster, source: IndexInfo, destination: IndexInfo, until: Position
) -> Iterator[list[SourceDocument]]:
    """Read the destination where it holds other documents than were copied, and what clients wrote over.

    The last operation that can be seen may be one before a deletion, or before what another process copied.
    """
    copies = Numbered(cluster, destination, SEQ_NO_FIELD)
    originals = Numbered(cluster, source, "_seq_no")
    for shard, spans in differing(copies, originals, until):
        yield from copies.pages(Share(until=Position({shard: LAST})), spans)
    seen_here, last = {"lt": INSERTED["gte"]}, max(until.seq_no.values(), default=-1)
    others = {"bool": {"should": [{"range": {SEQ_NO_FIELD: bounds}} for bounds in (seen_here, {"gt": last})]}}
    yield from read_pages(cluster, destination, page=ID_PAGE, where=others, fields=())
