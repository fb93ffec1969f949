"""Shares: what lies between two positions of an index, cut so that several can work on it."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ...cluster.connection import Cluster
from ...cluster.reading import Position, Share, documents_between
from ...cluster.record import IndexInfo
from ...cluster.routing import shards_in
from ...cluster.writing import filled_up

SHARE = 2000
"""Documents of a share, at least."""
MOST_SHARES = 1000


def visible_position(cluster: Cluster, index: str | IndexInfo) -> Position:
    """Say up to which operation, shard by shard, documents can be seen now; -1 for a shard without any."""
    body = {"size": 1, "sort": [{"_seq_no": "desc"}], "_source": False, "seq_no_primary_term": True}
    positions: dict[int, int] = {}
    info = index if isinstance(index, IndexInfo) else cluster.index_info(index)
    for shard in shards_in(info):
        params = {"preference": f"_shards:{shard}"}
        hits = cluster.search(info.name, body, params, every_shard=True)["hits"]["hits"]
        positions[shard] = int(hits[0]["_seq_no"]) if hits else -1
    return Position(positions)


def cut_up(cluster: Cluster, index: str, since: Position | None, until: Position) -> list[Share]:
    """Cut what lies between two positions into shares of about `SHARE` documents, about 1,000 at most.

    They are ranges of `_seq_no` of one shard, or of several small ones: they stay the same whenever and by
    whomever they are read, but for documents that are written anew and move behind `until`. How many work on
    them does not count, for an encoder's vectors depend in their last bits on which texts it reads together.
    """
    begin = Position.at(since).seq_no
    spans = {shard: (begin.get(shard, -1), last) for shard, last in sorted(until.seq_no.items())}
    counts = {shard: documents_between(cluster, index, shard, *span) for shard, span in spans.items()}
    size = max(SHARE, -(-sum(counts.values()) // MOST_SHARES))
    pieces = [piece for shard, span in spans.items() for piece in ranges_in(shard, span, counts[shard], size)]
    return [
        Share(
            Position({piece.shard: piece.first for piece in group}),
            Position({piece.shard: piece.last for piece in group}),
        )
        for group in filled_up(pieces, lambda piece: piece.documents, size)
    ]


class Piece(NamedTuple):
    """The operations of a shard behind `first` up to `last`, which left about so many documents."""

    shard: int
    first: int
    last: int
    documents: float


def ranges_in(shard: int, span: tuple[int, int], documents: int, size: int) -> list[Piece]:
    """Cut a shard into equal ranges of `size` documents at most, if they lie evenly; none without any."""
    if not documents:
        return []
    parts, (first, last) = -(-documents // size), span
    edges = [first + (last - first) * number // parts for number in range(parts + 1)]
    return [Piece(shard, low, high, documents / parts) for low, high in pairwise(edges)]
