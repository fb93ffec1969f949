"""Finds where an index with vectors differs from its source; cuts operations into shares of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeAlias

from ..cluster.connection import Cluster
from ..cluster.reading import (
    ID_PAGE,
    Key,
    Position,
    Share,
    SourceDocument,
    counterparts,
    documents_between,
    documents_in_pages,
    hidden_operations,
    read_pages,
    settled_position,
)
from ..cluster.record import SEQ_NO_FIELD, IndexInfo
from ..cluster.routing import has_same_layout
from ..cluster.writing import group_by_size, refused_ids
from ..errors import ClusterError
from .job import INSERTED, Stored, stored_states

STRETCH, MAX_STRETCHES = 1 << 18, 1000
"""Operations compared at a time, so that memory does not grow with the index. If updates have used up very
many operations, stretches are longer instead of more than 1,000."""
PARTS = (1 << 6, 1 << 10, 1 << 14)
"""Windows per stretch: of 4,096 operations first, then of 256 and of 16 within those that differ. A short
stretch begins with the smallest windows of which it has at most `FIRST_WINDOWS`."""
FIRST_WINDOWS = 256
WINDOWS_AT_ONCE = 4096
CLAUSES = 512
WITHIN = "_value % params.width"
NO_SCRIPTS = "script"
"""Part of the error message of a cluster that runs no scripts."""
SHARE = 2000
"""Smallest number of documents in a share."""
MAX_SHARES = 1000
LAST = 2**62
Outdated: TypeAlias = Callable[[Sequence[SourceDocument], Mapping[Key, Stored]], list[SourceDocument]]


class Operations(NamedTuple):
    """A half-open range of operations (`_seq_no`): from `low` up to, but without, `high`."""

    low: int
    high: int

    def cut(self, width: int) -> list[Operations]:
        """Return the range cut into ranges of at most `width` operations."""
        return [Operations(low, min(low + width, self.high)) for low in range(self.low, self.high, width)]


@dataclass(frozen=True)
class NumberedIndex:
    """An index and the numeric field that holds the operation (`_seq_no`) of each document."""

    cluster: Cluster
    info: IndexInfo
    field: str

    def sums(self, shard: int, spans: Sequence[Operations]) -> list[tuple[int, float, float]]:
        """Return, for each of the ascending spans of a shard, the count of documents and the sums of y and
        y².

        y is the operation modulo the width of the span, or the operation itself where the cluster runs no
        scripts.
        """
        width, field_values = max(span.high - span.low for span in spans), {"field": self.field}
        modulus = {"source": WITHIN, "params": {"width": width}}
        try:
            buckets = self._added_up(shard, spans, {**field_values, "script": modulus})
        except ClusterError as error:
            if NO_SCRIPTS not in error.message:
                raise
            buckets = self._added_up(shard, spans, field_values)
        with self.cluster.reading_answer("_search"):
            counted = [(bucket["doc_count"], bucket["numbers"]) for bucket in buckets]
            return [(count, sums["sum"] or 0.0, sums["sum_of_squares"] or 0.0) for count, sums in counted]

    def _added_up(self, shard: int, spans: Sequence[Operations], values: Mapping[str, Any]) -> list[Any]:
        """Return statistics of `values` for each span of operations in a shard, by one aggregation."""
        ranges = [{"from": span.low, "to": span.high} for span in spans]
        numbers = {"numbers": {"extended_stats": values}}
        grouped = {"range": {"field": self.field, "ranges": ranges}, "aggs": numbers}
        bounds = {"range": {self.field: {"gte": spans[0].low, "lt": spans[-1].high}}}
        body = {"size": 0, "track_total_hits": False, "query": bounds, "aggs": {"spans": grouped}}
        answer = self.cluster.search(self.info, body, {"preference": f"_shards:{shard}"}, every_shard=True)
        with self.cluster.reading_answer("_search"):
            return list(answer["aggregations"]["spans"]["buckets"])

    def pages(self, place: Share, spans: Sequence[Operations]) -> Iterator[list[SourceDocument]]:
        """Yield pages of the documents whose sequence number lies in one of `spans`, without their fields."""
        for start in range(0, len(spans), CLAUSES):
            part = spans[start : start + CLAUSES]
            ranges = [{"range": {self.field: {"gte": low, "lt": high}}} for low, high in part]
            where = {"bool": {"should": ranges}}
            yield from read_pages(self.cluster, self.info, page=ID_PAGE, share=place, where=where, fields=())


def differing_spans(
    left: NumberedIndex, right: NumberedIndex, until: Position
) -> Iterator[tuple[int, list[Operations]]]:
    """Yield each shard with the ascending spans of operations, up to `until`, in which the two indices
    differ.

    These are spans with different counts of documents or different sums of numbers. A document that is
    written meanwhile may show up at its old or new place. Unless both indices put a document into the same
    shard, everything counts as different.
    """
    operations = Operations(0, 1 + max(until.seq_no.values(), default=-1))
    if not has_same_layout(left.info, right.info):
        yield from ((shard, [operations]) for shard in range(left.info.shards))
        return
    width = max(STRETCH, operations.high // MAX_STRETCHES)
    for shard, stretch in product(range(left.info.shards), operations.cut(width)):
        spans, widths = [stretch], [width // parts for parts in PARTS]
        while len(widths) > 1 and stretch.high - stretch.low <= FIRST_WINDOWS * widths[1]:
            del widths[0]
        for window_width in widths:
            windows = [window for span in spans for window in span.cut(window_width)]
            spans = []
            for start in range(0, len(windows), WINDOWS_AT_ONCE):
                chunk = windows[start : start + WINDOWS_AT_ONCE]
                sums = left.sums(shard, chunk), right.sums(shard, chunk)
                pairs = zip(chunk, *sums, strict=True)
                spans += [window for window, left_sums, right_sums in pairs if left_sums != right_sums]
        if spans:
            yield shard, joined_spans(spans)


def joined_spans(spans: Iterable[Operations]) -> list[Operations]:
    """Return ascending spans, with those joined that overlap or follow each other."""
    joined: list[Operations] = []
    for span in spans:
        if joined and span.low <= joined[-1].high:
            joined[-1] = Operations(joined[-1].low, max(span.high, joined[-1].high))
        else:
            joined.append(span)
    return joined


def visible_position(cluster: Cluster, index: str | IndexInfo) -> Position:
    """Return the `_seq_no` of the last visible document of each shard; -1 for an empty shard."""
    body = {"size": 1, "sort": [{"_seq_no": "desc"}], "_source": False, "seq_no_primary_term": True}
    positions: dict[int, int] = {}
    info = index if isinstance(index, IndexInfo) else cluster.index_info(index)
    for shard in range(info.shards):
        params = {"preference": f"_shards:{shard}"}
        hits = cluster.search(info.name, body, params, every_shard=True)["hits"]["hits"]
        positions[shard] = int(hits[0]["_seq_no"]) if hits else -1
    return Position(positions)


def cut_into_shares(cluster: Cluster, index: str, since: Position | None, until: Position) -> list[Share]:
    """Cut the operations between two positions into shares of about `SHARE` documents, at most about 1,000
    shares.

    A share is a range of `_seq_no` of one shard, or of several small shards. Shares do not depend on the
    number of workers, because the last bits of vectors depend on which texts are encoded together.
    """
    begin = Position.at(since).seq_no
    spans = {shard: (begin.get(shard, -1), last) for shard, last in sorted(until.seq_no.items())}
    counts = {shard: documents_between(cluster, index, shard, *span) for shard, span in spans.items()}
    size = max(SHARE, -(-sum(counts.values()) // MAX_SHARES))
    pieces: list[tuple[int, int, int, float]] = []  # shard, range of operations, mean count of documents
    for shard, (first, last) in spans.items():
        if not counts[shard]:
            continue
        parts = -(-counts[shard] // size)
        edges = [first + (last - first) * number // parts for number in range(parts + 1)]
        pieces += [(shard, low, high, counts[shard] / parts) for low, high in pairwise(edges)]
    shares = []
    for group in group_by_size(pieces, lambda piece: piece[3], size):
        begins = Position({shard: low for shard, low, _, _ in group})
        shares.append(Share(begins, Position({shard: high for shard, _, high, _ in group})))
    return shares


@dataclass(frozen=True)
class Lag:
    """Counts of the source's changes that a destination lacks; `refused` are those that it rejected."""

    inserts: int
    updates: int
    deletes: int
    refused: int = 0


def measure_lag(cluster: Cluster, info: IndexInfo, since: Position | None, outdated: Outdated) -> Lag:
    """Count the inserts, updates and deletes of the source since a position that the destination lacks, and
    documents that it rejected. `outdated` chooses those of a page that it lacks or holds in an earlier state.
    """
    source = cluster.index_info(info.record.source)
    settled = settled_position(cluster, source)
    refused = refused_ids(info)
    changed_pages = read_pages(cluster, source, page=ID_PAGE, share=Share(since=since), fields=())
    pages = ([document for document in page if document.doc_id not in refused] for page in changed_pages)
    counts = count_outdated(cluster, info, pages, outdated)
    refused_pages = documents_in_pages(cluster, source, refused, page=ID_PAGE, with_source=False)
    refused_counts = count_outdated(cluster, info, refused_pages, outdated)
    counts += refused_counts
    deletes, refused_total = 0, refused_counts.total()
    if not (since and settled and not hidden_operations(cluster, source.name, since, settled)):
        until = settled or visible_position(cluster, source)
        deletes = sum(map(len, vanished_pages(cluster, source, info, until)))
    return Lag(counts["inserts"], counts["updates"], deletes, refused_total)


def count_outdated(
    cluster: Cluster, info: IndexInfo, pages: Iterable[Sequence[SourceDocument]], outdated: Outdated
) -> Counter[str]:
    """Count `inserts` and `updates`: the source's documents that the destination lacks or holds outdated."""
    counts: Counter[str] = Counter()
    for page in pages:
        stored = stored_states(cluster, info.name, page)
        for document in outdated(page, stored):  # its vector may be missing
            counts["updates" if document.key in stored else "inserts"] += 1
    return counts


def vanished_pages(
    cluster: Cluster, source: IndexInfo, destination: IndexInfo, until: Position
) -> Iterator[list[SourceDocument]]:
    """Yield pages of copies, up to a position, of documents that the source no longer holds."""
    cluster.refresh(destination.name)
    for page in doubtful_pages(cluster, source, destination, until):
        originals = counterparts(cluster, source, page, with_source=False)
        gone = [document for document in page if document.key not in originals]
        states = stored_states(cluster, destination.name, gone)
        yield [d for d in gone if d.key in states and states[d.key].came_from_source]


def doubtful_pages(
    cluster: Cluster, source: IndexInfo, destination: IndexInfo, until: Position
) -> Iterator[list[SourceDocument]]:
    """Yield pages of documents of the destination whose copy may be stale: where operations differ from the
    source, and where clients wrote.

    A position is that of the last visible operation, so documents with later numbers are read too.
    """
    copies = NumberedIndex(cluster, destination, SEQ_NO_FIELD)
    originals = NumberedIndex(cluster, source, "_seq_no")
    for shard, spans in differing_spans(copies, originals, until):
        yield from copies.pages(Share(until=Position({shard: LAST})), spans)
    marks, last = {"lt": INSERTED["gte"]}, max(until.seq_no.values(), default=-1)
    query = {"bool": {"should": [{"range": {SEQ_NO_FIELD: bounds}} for bounds in (marks, {"gt": last})]}}
    yield from read_pages(cluster, destination, page=ID_PAGE, where=query, fields=())
