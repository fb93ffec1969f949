"""What fusion is worth: neighbours of the default formula, and choosing by a few judged queries.

    python benchmarks/fusion.py FOLDER [--sets cranfield,npl] [--json benchmarks/results/fusion.json]

FOLDER holds collections in BEIR layout; each must be loaded and reindexed under its own name
(`benchmarks/run.py` does that). Every collection is asked once per leg, at most 1,000 of its queries, and all
variants are scored here. What is measured stays in the file: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridr import connect
from hybridr.completion import CompletedSearch
from hybridr.destinations import resolve
from hybridr.formats import qrels_file, read_qrels, read_queries
from hybridr.fusion import fuse
from hybridr.known_encoders import encoder_for
from hybridr.machine import machine_record
from hybridr.manifest import write_json
from hybridr.measures import checked_qrels, parse_measure, values_of
from hybridr.settings import SearchSettings
from hybridr.tuning.choice import PULL, Landscape, choose, held_out_gains
from hybridr.tuning.tuning import measured
from hybridr.tuning.variants import DEPTH, NEIGHBOURHOOD, Asked, ask, landscape, variants

HERE = Path(__file__).parent
SETS = (
    "fiqa_mini", "cranfield", "npl", "scifact", "tldr_cmd", "squadshifts_amazon", "cisi", "lisa", "cacm",
    "cosqa", "stackfaq", "squadshifts_reddit",
)  # fmt: skip
QUERIES, SEED, MEASURE = 1_000, 13, "nDCG@10"
POWERS, WEIGHTS = (0.3, 0.4, 0.5, 0.6, 0.7, 1.0), (0.45, 0.475, 0.5, 0.525, 0.55)
TYPICAL_IDF = 25.0  # where all powers give the same scale
LABELS, DRAWS, LEAST_REST = (10, 20, 30, 50, 100), 100, 20
Values = NDArray[np.float64]


def main() -> None:
    """Measure what is not in the file yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--url")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "fusion.json")
    given = parser.parse_args()
    record = json.loads(given.json.read_text(encoding="utf-8")) if given.json.is_file() else {"sets": {}}
    for name in given.sets.split(","):
        if name not in record["sets"]:
            print(name, flush=True)
            record["sets"][name] = of_set(given.folder / name, given.url)
            write_json(given.json, record | {"machine": machine_record(), "settings": settings()})


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


def of_set(folder: Path, url: str | None) -> dict[str, Any]:
    """Ask one collection, and measure neighbours of the formula and choices by few labels."""
    qrels = checked_qrels(read_qrels(qrels_file(folder, "test")))
    queries = sorted(read_queries(folder, qrels), key=lambda query: query.query_id)
    if len(queries) > QUERIES:
        queries = random.Random(SEED).sample(queries, QUERIES)
    cluster = connect(url)
    info = resolve(cluster, folder.name)
    encoder = encoder_for(cluster, info, None)
    chosen = SearchSettings(tuned=False, depth=DEPTH)
    search = CompletedSearch(cluster, info.name, encoder, settings=chosen)
    asked = ask(search, queries)
    tried = variants(cluster.version, absolute=True)
    values = measured(asked, tried, qrels, MEASURE, search.dense_scale)
    lying = landscape(tried)
    stock = mean_of([fuse(one.legs.listed) for one in asked], asked, qrels)
    return {
        "queries": len(queries), "stock": stock, "default": float(values[:, lying.default].mean()),
        "neighbours": {
            f"{power:g} {weight:g}": mean_of(
                [powered(one, power, weight, search.dense_scale) for one in asked], asked, qrels
            )
            for power in POWERS
            for weight in WEIGHTS
        },
        "labels": {
            str(count): few_labels(values, lying, count)
            for count in LABELS
            if len(values) >= count + LEAST_REST
        },
    }  # fmt: skip


def mean_of(
    runs: Sequence[Mapping[str, float]], asked: Sequence[Asked], qrels: dict[str, dict[str, int]]
) -> float:
    """Measure one run."""
    ids = [one.query.query_id for one in asked]
    run = {query_id: dict(scores) for query_id, scores in zip(ids, runs, strict=True)}
    [values] = values_of(run, qrels, [parse_measure(MEASURE)], ids).values()
    return float(np.mean(list(values.values())))


def powered(asked: Asked, power: float, weight: float, dense_scale: float) -> dict[str, float]:
    """Score candidates with another power of the idf sum than the root."""
    scale = 4 * asked.idf_sum**power * TYPICAL_IDF ** (0.5 - power)
    lexical = (1 - weight) / scale if scale else 0.0
    documents = dict.fromkeys([*asked.legs.listed[0], *asked.legs.listed[1]])
    return {
        doc: lexical * asked.legs.lexical.get(doc, 0.0)
        + 2 * weight * dense_scale * asked.legs.dense.get(doc, 0.5)
        for doc in documents
    }


def few_labels(values: Values, lying: Landscape, count: int) -> dict[str, float]:
    """Choose by `count` random queries as `tune` does; give the gain over the default on the others."""
    rng, gains = np.random.default_rng(SEED), []
    for _ in range(DRAWS):
        order = rng.permutation(len(values))
        seen, unseen = values[order[:count]], values[order[count:]]
        chosen = choose(seen, lying)
        if held_out_gains(seen, lying).mean() <= 0:
            chosen = lying.default
        gains.append(float((unseen[:, chosen] - unseen[:, lying.default]).mean()))
    return {"mean": float(np.mean(gains)), "p5": float(np.quantile(gains, 0.05))}


if __name__ == "__main__":
    main()
