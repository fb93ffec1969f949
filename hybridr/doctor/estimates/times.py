"""Seconds that vectors take: reading, encoding and writing at the same time, then what follows them.

The constants are processor seconds of this project's bench machine (Xeon, 2.8 GHz) for one document, fitted
to what `benchmarks/run.py scale` measured at 10,000 and 100,000 documents; docs/measured/scale.md explains
each term.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

READ_S = 2.5e-4  # by the clock: a page is searched, and looked up where it goes
INDEX_S = 3.7e-4  # of the node's processors: a document is read, written without its vector, verified
STEP_S = 8.6e-5  # of the node's processors: one of log2(n) steps into a graph of 384 values each
DIMENSIONS = 384  # of the vectors that were measured
VERIFY_S = 6e-5  # by the clock: its state is read on both sides, by four at once
ENCODED_AGAIN = 64  # documents whose vectors are compared with their text encoded again
START_S = 2.5
"""By the clock, whatever the size: a process starts, opens its encoder, makes the index; at the end its alias
moves."""
STREAMS = 2  # of a node's threads that one reindex keeps busy: its requests, and the merges behind them


@dataclass(frozen=True)
class Quantity:
    """How much is encoded and written: documents, their vectors, and the values of a vector."""

    documents: int
    vectors: int
    dim: int


@dataclass(frozen=True)
class Housing:
    """Where it is written: data nodes, and their processors together."""

    nodes: int
    processors: int


@dataclass(frozen=True)
class Speed:
    """Documents that the encoder does in a second.

    `beside` says that it and the one node share their processors. `most_per_second` is a limit
    on what is written, which holds back no verification.
    """

    documents_per_second: float
    beside: bool = False
    most_per_second: float | None = None

    @property
    def filled_per_second(self) -> float:
        """Return the documents that are filled in a second."""
        return min(self.documents_per_second, self.most_per_second or self.documents_per_second)


@dataclass(frozen=True)
class Duration:
    """Seconds by the clock; the first three overlap, `total` has the start and the end of a run besides.

    `table` is what the table of terms takes, `calibrating` what it takes to learn what scores mean.
    """

    reading: float
    encoding: float
    writing: float
    verifying: float
    total: float
    table: float = 0.0
    calibrating: float = 0.0

    @property
    def stages(self) -> dict[str, float]:
        """Return the seconds of each stage, by the name under which its progress is shown."""
        rest = self.table + self.verifying + self.calibrating + START_S
        return {
            "start and switch": START_S,
            "encode and write": self.total - rest,
            "term table": self.table,
            "verify": self.verifying,
            "calibrate": self.calibrating,
        }


def duration_of(
    quantity: Quantity,
    housing: Housing,
    speed: Speed,
    shards: int,
    done: int = 0,
    table: float = 0.0,
    calibrating: float = 0.0,
) -> Duration:
    """Compute how long an encoder of this speed takes to fill an index of so many primary shards.

    `done` documents are there already: they are read and verified, and no more. The index has no replicas
    meanwhile, so that nodes without a primary shard have nothing to do. `table` and `calibrating` are as
    `Duration` has them.
    """
    left = max(0, quantity.documents - done)
    reading = quantity.documents * READ_S
    encoding = left / speed.filled_per_second
    work = node_s(quantity, shards) * left / max(1, quantity.documents)
    busy = min(1.0, shards / housing.nodes)
    writing = work / min(housing.processors * busy, STREAMS)
    shared = work / housing.processors if speed.beside else 0.0
    again = min(ENCODED_AGAIN, quantity.documents) / speed.documents_per_second
    verifying = quantity.documents * VERIFY_S + again
    total = max(reading, encoding + shared, writing) + table + verifying + calibrating + START_S
    return Duration(reading, encoding, writing, verifying, total, table, calibrating)


def node_s(quantity: Quantity, shards: int) -> float:
    """Give the processor seconds of all nodes: documents, and vectors into the graphs of their shards."""
    steps = log2(max(2.0, quantity.vectors / shards)) * quantity.dim / DIMENSIONS
    return quantity.documents * INDEX_S + quantity.vectors * STEP_S * steps
