"""What is fusion worth without signals: neighbours of the formula, and choosing by a few queries.

    python benchmarks/run.py fusion FOLDER [--sets cranfield,npl] [--json FILE]

FOLDER holds collections in BEIR layout; each must be loaded and reindexed under its own name, as
`run.py collections` does. Every collection is asked once per leg, at most 1,000 of its queries, and all
variants are scored here. What is measured stays in the file: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conditions import the_twelve
from hybridr import connect
from hybridr.cluster.destinations import resolve
from hybridr.cluster.record import Record as IndexRecord
from hybridr.evaluation.evaluation import checked_qrels, parse_measure, values_of
from hybridr.files.atomic import write_json
from hybridr.files.formats import qrels_file, read_qrels, read_queries
from hybridr.records import Qrels, Query
from hybridr.search.encoders import encoder_for
from hybridr.search.fusions.pipeline import fuse
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from hybridr.tuning.evidence import DEPTH, Asked, ask
from hybridr.tuning.judgement import (
    NEIGHBOURHOOD,
    PULL,
    Landscape,
    Variant,
    choose,
    held_out_gains,
    landscape,
    measured,
    score_all,
    variants,
)
from study import LEAD, Record, Section, add_asked, machine_of, measure_sets, table

QUERIES, SEED = 1_000, 13
POWERS, WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7, 1.0), (0.45, 0.475, 0.5, 0.525, 0.55)
TYPICAL_IDF = 25.0  # where all powers give the same scale
LABELS, DRAWS, LEAST_REST = (10, 20, 30, 50, 100), 100, 20
UNSIGNALLED = ("none",)
Values = NDArray[np.float64]


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster, and where to keep what variants give."""
    add_asked(parser, the_twelve(), "fusion")
    parser.add_argument("--values", type=Path, help="folder that keeps what variants give, to choose again")


def measure(given: argparse.Namespace) -> None:
    """Measure what is not in the file yet."""
    measure_sets(given, partial(measure_set, given), settings())


def measure_set(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """Measure one collection."""
    kept = given.values / f"{name}.json" if given.values else None
    return summary(values_of_set(given.folder / name, given.url, kept))


def settings() -> dict[str, Any]:
    """Give what the figures depend on."""
    return {
        "queries": QUERIES,
        "seed": SEED,
        "depth": DEPTH,
        "draws": DRAWS,
        "pull": PULL,
        "neighbourhood": NEIGHBOURHOOD,
    }


class Measured(NamedTuple):
    """What a collection gives: `values` of every variant."""

    tried: list[Variant]
    values: Values
    stock: float
    neighbours: dict[str, float]


def values_of_set(folder: Path, url: str | None, kept: Path | None) -> Measured:
    """Ask one collection, or read what was kept."""
    if kept and kept.is_file():
        return read_measured(kept)
    queries, qrels = judged_sample(folder)
    search = opened(folder.name, url, UNSIGNALLED)
    found = values_of_all(ask(search, queries), qrels, search.dense_scale, search.cluster.version)
    if kept:
        write_measured(kept, found)
    return found


def judged_sample(folder: Path) -> tuple[list[Query], Qrels]:
    """Read the judged queries of a collection, a random 1,000 where there are more."""
    qrels = checked_qrels(read_qrels(qrels_file(folder, "test")))
    queries = sorted(read_queries(folder, qrels), key=lambda query: query.query_id)
    if len(queries) > QUERIES:
        queries = random.Random(SEED).sample(queries, QUERIES)
    return queries, qrels


def read_measured(file: Path) -> Measured:
    """Read what `write_measured` wrote."""
    found = Measured(**json.loads(file.read_text(encoding="utf-8")))
    return found._replace(tried=[Variant(*one) for one in found.tried], values=np.array(found.values))


def write_measured(file: Path, found: Measured) -> None:
    """Keep what variants give."""
    write_json(file, found._asdict() | {"values": found.values.tolist()})


def values_of_all(
    asked: Sequence[Asked], qrels: Qrels, dense_scale: float, version: tuple[int, int, int]
) -> Measured:
    """Measure all variants, and neighbours of the formula."""
    tried = variants(version, IndexRecord(similarity="cosine"))
    return Measured(
        tried,
        measured(asked, qrels, LEAD, partial(score_all, tried, dense_scale=dense_scale)),
        mean_of([fuse(list(one.legs.listed.values())) for one in asked], asked, qrels),
        neighbours(asked, qrels, dense_scale),
    )


def summary(found: Measured) -> dict[str, Any]:
    """Choose by few labels, in every way."""
    lying = landscape(found.tried)
    return {
        "queries": len(found.values),
        "stock": found.stock,
        "default": float(found.values[:, lying.default].mean()),
        "neighbours": found.neighbours,
        "labels": few_labels(found.values, lying),
    }


def opened(name: str, url: str | None, signals: tuple[str, ...]) -> Search:
    """Open an untuned search of a collection's index with these signals."""
    cluster = connect(url)
    info = resolve(cluster, name)
    untuned = SearchSettings(tuned=False, depth=DEPTH, signals=signals)
    return Search(cluster, info, encoder_for(cluster, info, None), settings=untuned)


def neighbours(asked: Sequence[Asked], qrels: Qrels, dense_scale: float) -> dict[str, float]:
    """Measure the default with other powers and weights."""
    return {
        f"{power:g} {weight:g}": mean_of(
            [powered(one, power, weight, dense_scale) for one in asked], asked, qrels
        )
        for power in POWERS
        for weight in WEIGHTS
    }


def few_labels(values: Values, lying: Landscape) -> dict[str, dict[str, float]]:
    """Choose by random queries, many times; give the gain over the default on the others by their number."""
    return {str(count): drawn(values, lying, count) for count in LABELS if len(values) >= count + LEAST_REST}


def drawn(values: Values, lying: Landscape, count: int) -> dict[str, float]:
    """Choose by `count` random queries."""
    rng, gains = np.random.default_rng(SEED), []
    for _ in range(DRAWS):
        order = rng.permutation(len(values))
        seen, unseen = values[order[:count]], values[order[count:]]
        chosen = chosen_by(seen, lying)
        gains.append(float((unseen[:, chosen] - unseen[:, lying.default]).mean()))
    return {"mean": float(np.mean(gains)), "p5": float(np.quantile(gains, 0.05))}


def chosen_by(seen: Values, lying: Landscape) -> int:
    """Choose as `tune` does: the default, unless the others gain on queries that had no part."""
    return choose(seen, lying) if held_out_gains(seen, lying).mean() > 0 else lying.default


def mean_of(runs: Sequence[Mapping[str, float]], asked: Sequence[Asked], qrels: Qrels) -> float:
    """Measure one run."""
    ids = [one.query.query_id for one in asked]
    run = {query_id: dict(scores) for query_id, scores in zip(ids, runs, strict=True)}
    [values] = values_of(run, qrels, [parse_measure(LEAD)], ids).values()
    return float(np.mean(list(values.values())))


def powered(asked: Asked, power: float, weight: float, dense_scale: float) -> dict[str, float]:
    """Score candidates with another power of the idf sum than the root."""
    scale = 4 * asked.idf_sum**power * TYPICAL_IDF ** (0.5 - power)
    lexical = (1 - weight) / scale if scale else 0.0
    documents = asked.legs.documents
    return {
        doc: lexical * asked.legs.scores["lexical"].get(doc, 0.0)
        + 2 * weight * dense_scale * asked.legs.scores["dense"].get(doc, 0.5)
        for doc in documents
    }


LARGE = 150
ABOUT_NEIGHBOURS = """\
Without signals the default is (1 - w) BM25 / (4 I^p) + w (1 + cosine) with p = .5 and w = .5, I the
sum of the idf of the query's terms; other powers are scaled to agree where I is 25. Change against plain
hybrid (min_max, .5/.5). The default was chosen by looking at these sets: the figures are no estimate for
others."""
ABOUT_LABELS = """\
Choosing technique and weight by n random judged queries, as `hybridr tune` does, all without signals: gain
over the default on the other queries. 5 %: what one in twenty choices does not reach, on the worst set."""


def render(record: Record) -> str:
    """Render both tables."""
    sets = record["sets"]
    most, draws = record["settings"]["queries"], record["settings"]["draws"]
    said = (
        f"{len(sets)} collections, at most {most:,} queries each, nDCG@10, scored here from one retrieval "
        f"a leg. {machine_of(record['machine'])}."
    )
    drawn = f"{draws} random choices a set."
    parts = [
        said,
        ABOUT_NEIGHBOURS,
        neighbours_table(sets),
        ABOUT_LABELS,
        drawn,
        labels_table(sets),
    ]
    return "\n\n".join(parts)


def neighbours_table(sets: Record) -> str:
    """Render a row for each power and weight."""
    rows = []
    for name in next(iter(sets.values()))["neighbours"]:
        power, weight = name.split()
        changes = [found["neighbours"][name] - found["stock"] for found in sets.values()]
        up = sum(change > 0 for change in changes)
        rows.append([power, weight, f"{mean(changes):+.4f}", f"{up}/{len(changes)}", f"{min(changes):+.4f}"])
    return table(["p", "w", "mean change", "sets up", "worst"], rows)


def labels_table(sets: Record) -> str:
    """Render a row for each number of judged queries."""
    counts = dict.fromkeys(count for found in sets.values() for count in found["labels"])
    header = [
        "n",
        "sets",
        "mean gain",
        f"of them with {LARGE} queries or more",
        "mean gain there",
        "worst mean",
        "5 %",
    ]
    rows = []
    for count in counts:
        ran = {name: found for name, found in sets.items() if count in found["labels"]}
        gains = {name: found["labels"][count]["mean"] for name, found in ran.items()}
        large = [gain for name, gain in gains.items() if ran[name]["queries"] >= LARGE]
        low = min(found["labels"][count]["p5"] for found in ran.values())
        rows.append(
            [
                count,
                str(len(ran)),
                f"{mean(gains.values()):+.4f}",
                str(len(large)),
                f"{mean(large):+.4f}",
                f"{min(gains.values()):+.4f}",
                f"{low:+.4f}",
            ]
        )
    return table(header, rows)


SECTIONS = [
    Section(
        20,
        "Fusion: neighbours of the default, and a few judged queries",
        "fusion",
        "python benchmarks/run.py fusion FOLDER",
        render,
    )
]
