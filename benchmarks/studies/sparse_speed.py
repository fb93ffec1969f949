"""What does a search by sparse weights cost beside BM25, as an index grows?

    python benchmarks/run.py sparse-speed CORPUS [--documents 10000] [--url URL] [--json FILE]

CORPUS is a corpus.jsonl in BEIR layout. The first 60 words of its first documents are indexed, one shard.
Weights are made, not learnt: each token of a text has one drawn from a gamma distribution, as uniCOIL weighs
the tokens of a text and no others. Queries are the first words of documents, 5 to 12. Both ways are asked in
turns, ten hits each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from tokenizers import Tokenizer

import hybridr
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.legs.sparse import SparseLeg
from hybridr.cluster.writing import Action, index_action
from hybridr.encoding.packaged import minilm
from hybridr.encoding.tokens import TOKENIZER_FILE
from studies.fields import write_all
from study import Record, Section, add_json, current, machine_of, machine_record, table, write_result

ASKED, WARMING, WORDS = 220, 20, 60
SHAPE, SCALE_OF_WEIGHTS = 2.0, 0.5


def options(parser: argparse.ArgumentParser) -> None:
    """Take the documents, how many, and the cluster."""
    parser.add_argument("corpus", type=Path, metavar="CORPUS")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--url")
    add_json(parser, "sparse-speed")


def measure(given: argparse.Namespace) -> None:
    """Fill an index of the size, and time both ways."""
    cluster, name = hybridr.connect(given.url), f"sparse-speed-{given.documents}"
    tokens, leg = Tokenizer.from_file(str(minilm() / TOKENIZER_FILE)), SparseLeg()
    if not cluster.indices(name):
        mapped = {"contents": {"type": "text", "analyzer": "english"}, **leg.mapping(cluster.version)}
        body = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}}
        cluster.request("PUT", path_of(name), body | {"mappings": {"properties": mapped}})
        write_all(cluster, name, actions_of(given.corpus, given.documents, tokens))
    record: Record = current(given.json) or {"sizes": {}}
    record["sizes"][str(given.documents)] = timed(cluster, name, list(texts(given.corpus, ASKED)), tokens)
    write_result(given.json, record | {"machine": machine_record()})


def texts(corpus: Path, most: int) -> Iterator[str]:
    """Read the first texts."""
    with corpus.open(encoding="utf-8") as lines:
        for line in itertools.islice(lines, most):
            one = json.loads(line)
            yield " ".join(f"{one.get('title', '')} {one['text']}".split()[:WORDS])


def weighed(text: str, tokens: Tokenizer, drawn: np.random.Generator) -> dict[str, float]:
    """Draw a weight for each token of a text."""
    found = sorted(set(tokens.encode(text, add_special_tokens=False).tokens))
    weights = drawn.gamma(SHAPE, SCALE_OF_WEIGHTS, len(found)) + 1e-3
    return dict(zip(found, weights.round(4).tolist(), strict=True))


def actions_of(corpus: Path, most: int, tokens: Tokenizer) -> Iterator[Action]:
    """Give the documents with their weights."""
    drawn, leg = np.random.default_rng(0), SparseLeg()
    for number, text in enumerate(texts(corpus, most)):
        yield index_action(str(number), {"contents": text, **leg.value(weighed(text, tokens, drawn))})


def timed(cluster: Cluster, name: str, found: list[str], tokens: Tokenizer) -> Record:
    """Ask each query in both ways, the first in turn: medians in ms, and of their ratios."""
    drawn, took = np.random.default_rng(1), []
    told: list[tuple[int, ...]] = []
    for number, text in enumerate(found):
        asked = " ".join(text.split()[: 5 + number % 8])
        bodies: list[dict[str, Any]] = [
            {"match": {"contents": asked}},
            SparseLeg().query(weighed(asked, tokens, drawn), 10),
        ]
        times, engine = {}, {}
        for place in (0, 1)[:: -1 if number % 2 else 1]:
            begun = time.perf_counter()
            answer = cluster.search(name, {"query": bodies[place], "size": 10, "_source": False})
            times[place] = 1000 * (time.perf_counter() - begun)
            engine[place] = answer["took"]
        if number >= WARMING:
            took.append(times)
            told.append((engine[0], engine[1]))
    return {
        "bm25_ms": round(median(one[0] for one in took), 2),
        "sparse_ms": round(median(one[1] for one in took), 2),
        "ratio": round(median(one[1] / one[0] for one in took), 2),
        "took": [round(fmean(one[place] for one in told), 2) for place in (0, 1)],
        "load": round(os.getloadavg()[0], 1),
    }


def render(record: Record) -> str:
    """Render a row a size."""
    rows = [
        [
            f"{int(size):,}",
            *(f"{one[name]:g}" for name in ("bm25_ms", "sparse_ms", "ratio")),
            *(f"{ms:g}" for ms in one["took"]),
            f"{one['load']:g}",
        ]
        for size, one in record["sizes"].items()
    ]
    said = (
        f"Medians over {ASKED - WARMING} queries, in turns, as the client sees them, and the means of the "
        f"time that the node says it took; made weights, one shard. {machine_of(record['machine'])}."
    )
    heads = ["documents", "BM25, ms", "sparse, ms", "ratio", "node: BM25", "node: sparse", "load"]
    return f"{said}\n\n{table(heads, rows)}"


SECTIONS = [
    Section(
        58,
        "Sparse weights beside BM25, by size",
        "sparse-speed",
        "python benchmarks/run.py sparse-speed CORPUS",
        render,
    )
]
