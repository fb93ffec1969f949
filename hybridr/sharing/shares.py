"""Shares: what lies between two positions of an index, cut so that several can work on it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.reading import Position, Share, documents_between
from ..cluster.routing import shards_in

SHARE = 2000
"""Documents of a share, at least."""
MOST_SHARES = 1000


def visible_position(cluster: Cluster, index: str) -> Position:
    """Say up to which operation, shard by shard, documents can be seen now; -1 for a shard without any."""
    body = {"size": 1, "sort": [{"_seq_no": "desc"}], "_source": False, "seq_no_primary_term": True}
    found: dict[int, int] = {}
    for shard in shards_in(cluster.index_info(index)):
        params = {"preference": f"_shards:{shard}"}
        hits = cluster.search(index, body, params, every_shard=True)["hits"]["hits"]
        found[shard] = int(hits[0]["_seq_no"]) if hits else -1
    return Position(found)


def cut_up(
    cluster: Cluster, index: str, since: Position | None, until: Position, *, part: tuple[int, int] = (0, 1)
) -> list[Share]:
    """Cut what lies between two positions into shares of about `SHARE` documents, and 1,000 or so at most.

    They are ranges of `_seq_no`, each of one shard: they stay the same whenever and by whomever they are
    read, but for documents that are written anew and move behind `until`. How many work on them does not
    count, for an encoder's vectors depend on which texts it reads together, in their last bits.
    """
    shares: list[Share] = []
    begin = Position.at(since).seq_no
    spans = {shard: (begin.get(shard, -1), last) for shard, last in until.seq_no.items()}
    counts = {shard: documents_between(cluster, index, shard, *span) for shard, span in spans.items()}
    size = max(SHARE, -(-sum(counts.values()) // MOST_SHARES))
    for shard, (first, last) in sorted(spans.items()):
        parts = -(-counts[shard] // size)
        edges = [first + (last - first) * number // parts for number in range(parts + 1)] if parts else []
        shares += [
            Share(part, Position({shard: low}), Position({shard: high})) for low, high in pairwise(edges)
        ]
    return shares


def share_as_json(share: Share) -> dict[str, Any]:
    """Give a share's part and positions as JSON values."""
    since, until = (where and [[*pair] for pair in where.seq_no.items()] for where in share[1:3])
    return {"part": [*share.part], "since": since, "until": until}


def share_from_json(found: Mapping[str, Any], *, again: bool = False) -> Share:
    """Read what `share_as_json` gave."""
    since, until = (
        None if found[name] is None else Position(dict(found[name])) for name in ("since", "until")
    )
    return Share((found["part"][0], found["part"][1]), since, until, again)
