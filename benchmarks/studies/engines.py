"""Does Elasticsearch rank as OpenSearch does, over the same vectors, and is it filled as fast?

    hybridr node start --name os --heap 512m; hybridr node start --name es --heap 512m --product elasticsearch
    python benchmarks/run.py engines FOLDER --opensearch URL --elasticsearch URL [--sets cisi,...]

FOLDER holds collections in BEIR layout. Each is loaded into both with the analyser `standard`, which the core
of Elasticsearch has too, and reindexed by the packaged encoder in fp32, in turns, first one product first,
then the other; the quicker of two times counts. Then all test queries are asked on both. `engines-NAME` is
made anew each time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridr import LoadSettings, connect, load_encoder
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.loading import load
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.evaluation.evaluation import Evaluation, JudgedQueries
from hybridr.indexing.reindexing import reindex
from hybridr.search.settings import SearchSettings
from hybridr.search.systems import Compared, evaluate_index
from study import LEAD, Record, Section, add_collections, add_json, machine_of, measure_sets, table

SETS = ("cranfield", "fiqa_mini", "cisi")
PRODUCTS = ("opensearch", "elasticsearch")
SYSTEMS = ("bm25", "rm3", "dense", "hybrid-plain", "hybrid")
BEST, FEW_RESAMPLES = 10, 100
MOST_APART, LEAST_ALIKE, LEAST_SPEED = 0.002, 0.95, 0.9
"""What the two may differ by: nDCG@10, the share of queries with the same best ten, documents a second."""
FILLED = "The seconds of each `reindex`, on a machine that did other work as well (its load at the end):"
Products = Mapping[str, Cluster]


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, both clusters, and where the result goes."""
    add_collections(parser, SETS)
    for product in PRODUCTS:
        parser.add_argument(f"--{product}", required=True, metavar="URL")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is filled")
    add_json(parser, "engines")


def measure(given: argparse.Namespace) -> None:
    """Measure what is not in the file yet."""
    products = {name: connect(getattr(given, name)) for name in PRODUCTS}
    versions = {name: cluster.info["version"]["number"] for name, cluster in products.items()}
    measure_sets(given, lambda name: measure_set(products, given.folder / name, given.rounds), versions)


def measure_set(products: Products, folder: Path, rounds: int) -> Record:
    """Fill both, ask both, and compare their best ten."""
    seconds: dict[str, list[float]] = {name: [] for name in PRODUCTS}
    for turn in range(rounds):
        for name in PRODUCTS[:: -1 if turn % 2 else 1]:
            seconds[name].append(filled_anew(products[name], folder))
    asked = {name: evaluated(products[name], folder) for name in PRODUCTS}
    ours, theirs = (asked[name].runs for name in PRODUCTS)
    return {
        "load": round(os.getloadavg()[0], 1),
        "documents": products[PRODUCTS[0]].count(f"engines-{folder.name}"),
        "queries": asked[PRODUCTS[0]].queries,
        "seconds": seconds,
        "systems": {name: {one: asked[name].systems[one][LEAD] for one in SYSTEMS} for name in PRODUCTS},
        "alike": {one: alike(ours[one], theirs[one], set) for one in SYSTEMS},
        "in order": {one: alike(ours[one], theirs[one], list) for one in SYSTEMS},
    }


def filled_anew(cluster: Cluster, folder: Path) -> float:
    """Load a collection, and give the seconds of its reindex; what was there before goes."""
    index = f"engines-{folder.name}"
    for info in cluster.indices(f"{index}*,.hybridr-*-{index}*"):
        cluster.request("DELETE", path_of(info.name))
    load(cluster, folder, LoadSettings(index=index, analyzer="standard"))
    encoder = load_encoder(minilm_encoder(), precision="fp32")
    began = time.perf_counter()
    reindex(cluster, index, encoder)
    return round(time.perf_counter() - began, 1)


def evaluated(cluster: Cluster, folder: Path) -> Evaluation:
    """Ask every system all test queries."""
    compared = Compared(SYSTEMS, measures=[LEAD], resamples=FEW_RESAMPLES)
    settings = SearchSettings(tuned=False)
    return evaluate_index(
        cluster, f"engines-{folder.name}", JudgedQueries(folder), compared, settings=settings
    )


def alike(ours: Mapping[str, Any], theirs: Mapping[str, Any], form: type) -> float:
    """Give the share of queries whose best ten are the same documents, as a `set` or as a `list`."""
    same = [form(best(ours[query])) == form(best(theirs.get(query, {}))) for query in ours]
    return round(sum(same) / len(same), 4)


def best(hits: Mapping[str, float]) -> list[str]:
    """Give the best ten; those of one score by their id."""
    return sorted(hits, key=lambda doc: (-hits[doc], doc))[:BEST]


def render(record: Record) -> str:
    """Render a row a system and set, and what the bars were."""
    sets, versions = record["sets"], record["settings"]
    rows = [row for name, one in sets.items() for row in rows_of(name, one)]
    head = ["set", "system", "OpenSearch", "Elasticsearch", "same ten", "in the same order"]
    filled = [
        [name, f"{one['documents']:,}", *(told(one["seconds"][product]) for product in PRODUCTS)]
        + [f"{speed([one]):.2f}", f"{one['load']:.0f}"]
        for name, one in sets.items()
    ]
    timed = ["set", "documents", "OpenSearch, s", "Elasticsearch, s", "speed", "load"]
    said = (
        f"OpenSearch {versions['opensearch']} and Elasticsearch {versions['elasticsearch']}: {LEAD} of all "
        "test queries with the packaged encoder in fp32 and the analyzer `standard` on both. "
        f"{machine_of(record['machine'])}."
    )
    return "\n\n".join([said, verdict(sets), table(head, rows), FILLED, table(timed, filled)])


def rows_of(name: str, one: Record) -> list[list[str]]:
    """Render the systems of one set."""
    return [
        [name, system, *(f"{one['systems'][product][system]:.4f}" for product in PRODUCTS)]
        + [f"{one[kind][system]:.1%}" for kind in ("alike", "in order")]
        for system in SYSTEMS
    ]


def told(seconds: list[float]) -> str:
    """Render the times of all rounds."""
    return ", ".join(f"{one:.0f}" for one in seconds)


def speed(sets: list[Record]) -> float:
    """Give how fast Elasticsearch is filled, as a part of OpenSearch's speed."""
    ours, theirs = (sum(min(one["seconds"][product]) for one in sets) for product in PRODUCTS)
    return float(ours / theirs)


def verdict(sets: Record) -> str:
    """Say how far they are apart at most, and how far they may be."""
    apart = max(
        abs(one["systems"]["elasticsearch"][system] - one["systems"]["opensearch"][system])
        for one in sets.values()
        for system in SYSTEMS
    )
    least = min(one["alike"][system] for one in sets.values() for system in SYSTEMS)
    return (
        f"The values differ by at most {apart:.4f} (allowed: {MOST_APART}). The best ten are the same "
        f"documents for at least {least:.1%} of the queries (required: {LEAST_ALIKE:.0%}). `reindex` on "
        f"Elasticsearch has {speed(list(sets.values())):.2f} times the speed (required: {LEAST_SPEED})."
    )


SECTIONS = [
    Section(
        31,
        "Elasticsearch beside OpenSearch",
        "engines",
        "python benchmarks/run.py engines FOLDER --opensearch URL --elasticsearch URL",
        render,
    )
]
