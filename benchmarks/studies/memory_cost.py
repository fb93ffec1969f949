"""What does the look-up in a memory take, by the number of past queries?

    python benchmarks/run.py memory-cost FOLDER [--past 5000,100000] [--url URL]

FOLDER holds the collection `tldr_cmd`, whose train queries, each moved a little at random, are the past ones;
300 test queries are looked up one after the other. Nothing is kept: what is printed stands in
docs/measured/learn.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hybridr
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.writing import Action, HeldRejects, index_action, write_past_pipelines
from hybridr.encoding.contract import Vectors
from hybridr.exporting.exporting import minilm_encoder
from hybridr.search.past_queries import (
    STAMP,
    Relevant,
    drop_memory,
    kept_of,
    memory_body,
    memory_of,
    past_like,
)
from hybridr.tuning.learning import query_vectors
from studies.memory import sides_of
from study import Section

NAME, LEAST, NOISE, LOOKED_UP = "memory-cost", 0.8, 0.03, 300
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
    past, asked = (query_vectors(encoder, one[0]) for one in sides)
    for count in map(int, given.past.split(",")):
        drop_memory(cluster, NAME)
        cluster.request("PUT", path_of(memory_of(NAME)), memory_body(encoder.dim, cluster.version))
        for _ in write_past_pipelines(cluster, memory_of(NAME), moved(past, count), HeldRejects()):
            pass
        cluster.refresh(memory_of(NAME))
        took = np.quantile(looked_up(cluster, asked[:LOOKED_UP]), [0.5, 0.95])
        stats = cluster.request("GET", path_of(memory_of(NAME), "_stats", "store"))["_all"]["primaries"]
        size = stats["store"]["size_in_bytes"] / count
        print(f"{count:,} past queries: {took[0]:.1f} ms, p95 {took[1]:.1f} ms; {size:,.0f} bytes each")
        drop_memory(cluster, NAME)


def moved(past: Vectors, count: int) -> Iterator[Action]:
    """Write so many past queries, near those that are given."""
    chance = np.random.default_rng(1)
    for number in range(count):
        vector = past[number % len(past)] + chance.normal(0, NOISE, past.shape[1])
        near = (vector / np.linalg.norm(vector)).astype(np.float32)
        yield index_action(str(number), kept_of(near, [Relevant(f"d{number % 5000}", 1.0, "0" * STAMP)]))


def looked_up(cluster: Cluster, asked: Vectors) -> NDArray[np.float64]:
    """Give the milliseconds of each look-up `(n,)`."""
    took = []
    for number, vector in enumerate(asked):
        began = time.perf_counter()
        past_like(cluster, NAME, [str(number)], vector[None], LEAST)
        took.append(1000 * (time.perf_counter() - began))
    return np.array(took)
