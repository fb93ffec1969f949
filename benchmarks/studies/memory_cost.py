"""What does the look-up in a memory take, by the number of past queries?

    python benchmarks/run.py memory-cost FOLDER [--past 5000,100000] [--url URL]

FOLDER holds the collection `tldr_cmd`, whose train queries, each moved a little at random, are the past
ones: vectors stand for texts, so that writing is timed alone. 300 queries are looked up one after the other,
two of three from the test side, one a train query itself. Nothing is kept: what is printed stands in
docs/measured/learn.md.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hybridr
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.legs.dense import as_kept
from hybridr.cluster.record import IndexInfo, Record, meta_of
from hybridr.cluster.writing import Action, HeldRejects, index_action, write_past_pipelines
from hybridr.encoding.contract import Vectors
from hybridr.exporting.exporting import minilm_encoder
from hybridr.search.past_queries import (
    PAST_VECTORS,
    STAMP,
    Relevant,
    drop_memory,
    kept_of,
    memory_body,
    memory_of,
    past_like,
)
from hybridr.tuning.learning import query_vectors
from hybridr.vocabulary.term_table import of_length_one
from studies.memory import sides_of
from study import Section

NAME, LEAST, NOISE, LOOKED_UP, TOGETHER = "memory-cost", 0.8, 0.03, 300, 1_000
SECTIONS: list[Section] = []


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster, and how many past queries there are."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="collections in BEIR layout")
    parser.add_argument("--past", default="5000,100000", metavar="A,B")
    parser.add_argument("--url")


def measure(given: argparse.Namespace) -> None:
    """Fill a memory of each size, look queries up, and delete it."""
    cluster, encoder = hybridr.connect(given.url), hybridr.load_encoder(minilm_encoder())
    sides = sides_of(given.folder / "tldr_cmd", "tldr_cmd")
    past, asked = (query_vectors(encoder, [query.text for query in one[0]]) for one in sides)
    for count in map(int, given.past.split(",")):
        drop_memory(cluster, NAME)
        cluster.request("PUT", path_of(memory_of(NAME)), memory_body(encoder.dim, cluster.version))
        began = time.perf_counter()
        for _ in write_past_pipelines(cluster, memory_of(NAME), moved(past, count), HeldRejects()):
            pass
        cluster.refresh(memory_of(NAME))
        seconds = time.perf_counter() - began
        near, far = past[: LOOKED_UP // 3], asked[: LOOKED_UP - LOOKED_UP // 3]
        took = np.quantile(looked_up(cluster, np.concatenate([far, near])), [0.1, 0.5, 0.95])
        stats = cluster.request("GET", path_of(memory_of(NAME), "_stats", "store"))["_all"]["primaries"]
        size = stats["store"]["size_in_bytes"] / count
        print(
            f"{count:,} past queries: {seconds:.0f} s; a look-up {took[1]:.1f} ms, p10 {took[0]:.1f}, "
            f"p95 {took[2]:.1f}; {size:,.0f} bytes each; load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
        drop_memory(cluster, NAME)


def moved(past: Vectors, count: int) -> Iterator[Action]:
    """Write so many past queries, near those that are given."""
    chance = np.random.default_rng(1)
    for start in range(0, count, TOGETHER):
        some = past[np.arange(start, min(count, start + TOGETHER)) % len(past)]
        near = of_length_one((some + chance.normal(0, NOISE, some.shape)).astype(np.float32))
        for number, vector in enumerate(as_kept(near, PAST_VECTORS.vectors), start):
            relevant = [Relevant(f"d{number % 5000}", 1.0, "0" * STAMP)]
            yield index_action(str(number), kept_of(vector, relevant))


def looked_up(cluster: Cluster, asked: Vectors) -> NDArray[np.float64]:
    """Give the milliseconds of each look-up `(n,)`."""
    took, info = [], IndexInfo(NAME, {}, {"_meta": meta_of(Record())}, {})
    for number, vector in enumerate(asked):
        began = time.perf_counter()
        past_like(cluster, info, [str(number)], vector[None], LEAST)
        took.append(1000 * (time.perf_counter() - began))
    return np.array(took)
