"""Bytes that vectors take: on disk by what they are made of, in the heap, and in memory for searches.

A constant that is not Lucene's or OpenSearch's own was fitted to what `benchmarks/run.py scale` measured at
10,000 and 100,000 documents. docs/measured/scale.md explains each term, and holds predictions against larger
sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..cluster.vector_forms import BYTES_PER_NEIGHBOUR, FLOAT_TEXT_BYTES, OVERHEAD, TEXT_BYTES, Form

LINK_BYTES = 1.7  # of each of up to 2 m links of a vector on disk, where lucene keeps them as differences
NODE_BYTES = 24  # beside the links of a vector of faiss: its id, offset and level, and links of higher levels
MARK_BYTES = 4  # what stands beside a vector: the encoder's name, the source's `_seq_no`
SHARD_BYTES = 30 * 2**30  # OpenSearch's documentation: 10 to 30 GiB a shard where searches must be fast
MOST_DOCUMENTS = 2**31 - 129  # of a shard (Lucene, `IndexWriter.MAX_DOCS`)
SEGMENT_BYTES = 5 * 2**30  # merges make none larger by themselves (`index.merge.policy.max_merged_segment`)
LEAST_HEAP_BYTES = 2**30  # what an embedded node has
LINK_HEAP_BYTES = 8  # of a link while its graph is built: a neighbour and its score, 4 bytes each
MERGES = 2  # graphs that a node may build at once


@dataclass(frozen=True)
class Quantity:
    """How much there is to keep; `text_bytes` is what the index takes for a document without its vector."""

    documents: int
    vectors: int
    dim: int
    form: Form
    m: int
    text_bytes: float


@dataclass(frozen=True)
class Housing:
    """Where it is kept: data nodes, their processors together, and copies (a primary and its replicas)."""

    nodes: int
    processors: int
    copies: int


@dataclass(frozen=True)
class Volume:
    """Bytes. The first four are those of one copy: vectors, graph, everything else, vectors as JSON text.

    That text is kept for recovery until a merge drops it. `disk` has all copies without it, `peak_disk` is
    what the filling may need for a time, with it and with room for merges. `hot` is what searches walk, in
    all copies; `heap` and `memory` are those of one node. `shards` counts primaries.
    """

    vectors: int
    graph: int
    text: int
    recovery: int
    disk: int
    peak_disk: int
    hot: int
    heap: int
    memory: int
    shards: int


def volume_of(quantity: Quantity, housing: Housing) -> Volume:
    """Compute what a quantity takes where it is kept."""
    vectors = round(quantity.vectors * quantity.dim * quantity.form.disk_bits / 8)
    graph = round(quantity.vectors * graph_bytes(quantity))
    text = round(quantity.documents * (quantity.text_bytes + MARK_BYTES))
    recovery = quantity.vectors * quantity.dim * TEXT_BYTES.get(quantity.form.vectors, FLOAT_TEXT_BYTES)
    copy = vectors + graph + text
    needed = max(ceil(copy / SHARD_BYTES), ceil(quantity.documents / MOST_DOCUMENTS))
    shards, filled = even_shards(needed, housing), copy + recovery
    hot, heap = housing.copies * hot_bytes(quantity), heap_bytes_of(quantity, copy)
    return Volume(
        vectors,
        graph,
        text,
        recovery,
        disk=housing.copies * copy,
        # A merge has written its result before what it read is deleted.
        peak_disk=housing.copies * filled + min(filled, MERGES * SEGMENT_BYTES * housing.nodes),
        hot=hot,
        heap=heap,
        memory=max(2 * heap, heap + ceil(hot * share_of(shards * housing.copies, housing.nodes))),
        shards=shards,
    )


def graph_bytes(quantity: Quantity) -> float:
    """Give the bytes of a vector's node in the graph: faiss has 4 for each of 2 m links, used or not."""
    if quantity.form.engine == "faiss":
        return 2 * quantity.m * 4 + NODE_BYTES
    return 2 * quantity.m * LINK_BYTES


def even_shards(needed: int, housing: Housing) -> int:
    """Give the fewest primary shards, `needed` at least, that load all nodes alike once each has one."""
    if needed * housing.copies <= housing.nodes:
        return needed
    enough = range(needed, needed + housing.nodes)
    return next(shards for shards in enough if shards * housing.copies % housing.nodes == 0)


def share_of(shards: int, nodes: int) -> float:
    """Give the share of all shards, copies included, that the node with most of them holds."""
    return ceil(shards / nodes) / shards


def hot_bytes(quantity: Quantity) -> int:
    """Give the bytes of one copy that a search may touch: OpenSearch's estimate for HNSW."""
    vector = quantity.dim * quantity.form.bits / 8
    return round(quantity.vectors * OVERHEAD * (vector + BYTES_PER_NEIGHBOUR * quantity.m))


def heap_bytes_of(quantity: Quantity, copy: int) -> int:
    """Give the heap of a node that builds the graphs of its largest segments, in whole GiB."""
    in_segment = quantity.vectors * min(1.0, SEGMENT_BYTES / copy)
    built = MERGES * in_segment * 2 * quantity.m * LINK_HEAP_BYTES
    return ceil((LEAST_HEAP_BYTES / 2 + built) / 2**30) * 2**30
