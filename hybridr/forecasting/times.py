"""Seconds that vectors take: reading, encoding and writing at the same time, then what follows them.

The constants are processor seconds of this project's bench machine (Xeon, 2.8 GHz) for one document, fitted
to what `benchmarks/run.py scale` measured at 10,000 and 100,000 documents; docs/scale.md explains each term.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from .sizes import Housing, Quantity

READ_S = 2.5e-4  # by the clock: a page is searched, and looked up where it goes
INDEX_S = 3.7e-4  # of the node's processors: a document is read, written without its vector, verified
STEP_S = 8.6e-5  # of the node's processors: one of log2(n) steps into a graph of 384 values each
DIMENSIONS = 384  # of the vectors that were measured
VERIFY_S = 6e-5  # by the clock: its state is read on both sides, by four at once
STREAMS = 2  # of a node's threads that one worker keeps busy: its requests, and the merges behind them


@dataclass(frozen=True)
class Workforce:
    """Who encodes: workers, and the documents each does in a second.

    `beside` says that the one worker and the one node share their processors.
    """

    workers: int
    documents_per_second: float
    beside: bool = False


@dataclass(frozen=True)
class Duration:
    """Seconds by the clock; the first three overlap."""

    reading: float
    encoding: float
    writing: float
    verifying: float
    total: float


def duration_of(quantity: Quantity, housing: Housing, workforce: Workforce, shards: int) -> Duration:
    """Compute how long a workforce takes to fill an index of so many primary shards.

    It has no replicas meanwhile, so that nodes without a primary shard have nothing to do.
    """
    reading = quantity.documents * READ_S / workforce.workers
    encoding = quantity.documents / (workforce.documents_per_second * workforce.workers)
    work, busy = node_s(quantity, shards), min(1.0, shards / housing.nodes)
    writing = work / min(housing.processors * busy, STREAMS * workforce.workers)
    shared = work / housing.processors if workforce.beside else 0.0
    verifying = quantity.documents * VERIFY_S
    total = max(reading, encoding + shared, writing) + verifying
    return Duration(reading, encoding, writing, verifying, total)


def node_s(quantity: Quantity, shards: int) -> float:
    """Give the processor seconds of all nodes: documents, and vectors into the graphs of their shards."""
    steps = log2(max(2.0, quantity.vectors / shards)) * quantity.dim / DIMENSIONS
    return quantity.documents * INDEX_S + quantity.vectors * STEP_S * steps
