"""Ranges of operations in which two indices hold different documents, found without reading any.

A copy bears the number (`_seq_no`) of the operation that it was made of. Where as many documents of a window
stand on both sides, and the sums of y and of y² are equal, they are taken for the same ones; y is the number
modulo the width w of a window. What is missing on one side only always shows in the count. So do one or two
on each side: within a window y is different for each number, and two numbers follow from their sum and that
of their squares. Three and more on each side go unseen only where they add up alike twice over.

The server adds up in doubles, which hold whole numbers up to 2⁵³ exactly. A window has w numbers at most, so
no sum is beyond w³: exact up to w = 208,063, which windows reach behind 1.3 * 10¹⁰ operations of a shard. The
numbers' own squares are not: from 10⁸ on one alone is rounded. Where a cluster runs no scripts, which take
the modulus, those are added up all the same; two on each side can go unseen there, one cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...cluster.connection import Cluster
from ...cluster.failures import understood
from ...cluster.reading import ID_PAGE, Position, Share, SourceDocument, read_pages
from ...cluster.record import IndexInfo
from ...errors import ClusterError

STRETCH, MOST_STRETCHES = 1 << 18, 1000
"""Operations that are looked at in one go, so that memory does not grow with the index; more where clients
write the same documents over and over."""
PARTS = (1 << 6, 1 << 10, 1 << 14)
"""Windows of a stretch: of 4,096 operations, and where these differ of 256, then of 16."""
ASKED_TOGETHER = 4096
CLAUSES = 512
WITHIN = "_value % params.width"
NO_SCRIPTS = "script"
"""Stands in what a cluster says that runs none."""


class Operations(NamedTuple):
    """Operations from `low` on, up to before `high`."""

    low: int
    high: int

    def cut(self, width: int) -> list[Operations]:
        """Cut into windows that are no wider."""
        return [Operations(low, min(low + width, self.high)) for low in range(self.low, self.high, width)]


@dataclass(frozen=True)
class Numbered:
    """An index whose documents bear numbers of operations, in a field that has doc values."""

    cluster: Cluster
    info: IndexInfo
    field: str

    def sums(self, shard: int, spans: Sequence[Operations]) -> list[tuple[int, float, float]]:
        """Count a shard's documents in each of the ascending spans, and add up y and y²; see above."""
        width = max(span.high - span.low for span in spans)
        modulus = {"script": {"source": WITHIN, "params": {"width": width}}}
        try:
            return self._added(shard, spans, {"field": self.field, **modulus})
        except ClusterError as error:
            if NO_SCRIPTS not in error.message:
                raise
            return self._added(shard, spans, {"field": self.field})

    def _added(
        self, shard: int, spans: Sequence[Operations], values: Mapping[str, Any]
    ) -> list[tuple[int, float, float]]:
        ranges = [{"from": span.low, "to": span.high} for span in spans]
        body = {
            "size": 0,
            "track_total_hits": False,
            "query": {"range": {self.field: {"gte": spans[0].low, "lt": spans[-1].high}}},
            "aggs": {
                "spans": {
                    "range": {"field": self.field, "ranges": ranges},
                    "aggs": {"numbers": {"extended_stats": values}},
                }
            },
        }
        answer = self.cluster.search(self.info, body, {"preference": f"_shards:{shard}"}, every_shard=True)
        with understood(self.cluster.url, "_search"):
            buckets = answer["aggregations"]["spans"]["buckets"]
            return [
                (
                    bucket["doc_count"],
                    bucket["numbers"]["sum"] or 0.0,
                    bucket["numbers"]["sum_of_squares"] or 0.0,
                )
                for bucket in buckets
            ]

    def pages(self, place: Share, spans: Sequence[Operations]) -> Iterator[list[SourceDocument]]:
        """Read ids and states of the documents that bear a number of these spans."""
        for start in range(0, len(spans), CLAUSES):
            part = spans[start : start + CLAUSES]
            ranges = [{"range": {self.field: {"gte": low, "lt": high}}} for low, high in part]
            where = {"bool": {"should": ranges}}
            yield from read_pages(self.cluster, self.info, page=ID_PAGE, share=place, where=where, fields=())


def differing(left: Numbered, right: Numbered, until: Position) -> Iterator[tuple[int, list[Operations]]]:
    """Yield shards of the one, each with spans, up to a position, where the other holds other documents.

    A document that is written meanwhile may show where it is, or was. Where shards are not the same, because
    somebody split one of the indices, everything differs.
    """
    end = 1 + max(until.seq_no.values(), default=-1)
    for shard in range(left.info.shards):
        if left.info.shards != right.info.shards:
            yield shard, [Operations(0, end)]
            continue
        for spans in differing_in(left, right, shard, end):
            yield shard, spans


def differing_in(left: Numbered, right: Numbered, shard: int, end: int) -> Iterator[list[Operations]]:
    """Yield ascending spans of a shard, before operation `end`, stretch by stretch."""
    width = max(STRETCH, end // MOST_STRETCHES)
    for stretch in Operations(0, end).cut(width):
        spans = [stretch]
        for parts in PARTS:
            windows = [window for span in spans for window in span.cut(width // parts)]
            spans = [
                window
                for start in range(0, len(windows), ASKED_TOGETHER)
                for window in unequal(left, right, shard, windows[start : start + ASKED_TOGETHER])
            ]
        if spans:
            yield without_seams(spans)


def unequal(left: Numbered, right: Numbered, shard: int, windows: Sequence[Operations]) -> list[Operations]:
    """Leave out the windows of which both hold as many documents, with equal sums."""
    pairs = zip(windows, left.sums(shard, windows), right.sums(shard, windows), strict=True)
    return [window for window, here, there in pairs if here != there]


def without_seams(spans: Sequence[Operations]) -> list[Operations]:
    """Join spans that touch."""
    joined = [spans[0]]
    for span in spans[1:]:
        if span.low == joined[-1].high:
            joined[-1] = Operations(joined[-1].low, span.high)
        else:
            joined.append(span)
    return joined
