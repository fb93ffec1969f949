"""Seconds that vectors take: reading, encoding and writing at the same time, then what follows them.

The constants are processor seconds of this project's bench machine (Xeon, 2.8 GHz) for one document, fitted
to what `benchmarks/run.py scale` measured at 10,000 and 100,000 documents; docs/scale.md explains each term.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from .sizes import Housing, Quantity

READ_S = 0.0005  # of the client and the node: a page is searched, and looked up where it goes
INDEX_S = 0.0006  # of the node: a document without its vector
STEP_S = 1.2e-4  # of the node, for 384 dimensions: one step down the graph, of which there are log2(n)
DIMENSIONS = 384  # of the vectors that were measured
VERIFY_S = 0.0003  # of the client and the node: a state is read on both sides
STREAMS = 2  # of a node's threads that one worker keeps busy: its requests, and the merges behind them


@dataclass(frozen=True)
class Crew:
    """Who encodes: workers, and what each does in a second.

    `processor_s` is what a document takes of a worker's processors where it is known; `beside` says that the
    one worker and the one node share a machine.
    """

    workers: int
    documents_per_second: float
    processor_s: float = 0.0
    beside: bool = False


@dataclass(frozen=True)
class Duration:
    """Seconds by the clock; the first three overlap."""

    reading: float
    encoding: float
    writing: float
    verifying: float
    total: float


def duration_of(quantity: Quantity, housing: Housing, crew: Crew, shards: int) -> Duration:
    """Compute how long a crew takes to fill an index."""
    documents = quantity.documents
    reading = documents * READ_S / crew.workers
    encoding = documents / (crew.documents_per_second * crew.workers)
    node_s = documents * INDEX_S + quantity.vectors * vector_s(quantity, shards)
    writing = node_s / min(housing.processors, STREAMS * crew.workers)
    filling = max(reading, encoding, writing)
    if crew.beside:
        shared = documents * (crew.processor_s + READ_S) + node_s
        filling = max(filling, shared / housing.processors)
    verifying = documents * VERIFY_S
    return Duration(reading, encoding, writing, verifying, filling + verifying)


def vector_s(quantity: Quantity, shards: int) -> float:
    """Give the node's processor seconds for one vector: the graph of its shard, and its merges."""
    dimensions = quantity.dim * quantity.form.bits / (32 * DIMENSIONS)
    return STEP_S * dimensions * log2(max(2.0, quantity.vectors / shards))
