"""What does `tune` gain on needs that nobody judged, from 30 and 100 judged queries?

    python benchmarks/run.py learnt-weights FOLDER [--sets scifact,...] [--url URL] [--json FILE]

The sets, indices and sides are those of `memory`. As `tune` does, every leg is asked once for each query, all
variants are scored here, and one is chosen by as many learnt queries as SIZES say, drawn DRAWS times, and
kept only where the interval of its gain on queries that had no part in the choice is above zero. What that is
worth is told by the queries of the other side whose relevant documents no query of the draw has. What is
measured stays in the file: the same command goes on.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean

import hybridr
from hybridr.cluster.connection import Cluster
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.records import Qrels
from hybridr.relevance.evidence import DEPTH, Asked, ask
from hybridr.relevance.judgement import choice_of, measured, other_signals, score_all, variants
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from studies.memory import prepared, relevant, sides_of
from study import LEAD, Record, Section, add_asked, machine_of, measure_sets, table

SETS = ("scifact", "stackfaq", "tldr_cmd", "cosqa")
SIZES, DRAWS, POOL, TESTED = (30, 100), 10, 300, 300


def measure_set(cluster: Cluster, folder: Path, name: str) -> Record:
    """Choose by several draws of learnt queries, and measure on new needs."""
    index, sides = prepared(cluster, folder), sides_of(folder, name)
    untuned = SearchSettings(tuned=False, depth=DEPTH, signals=("all",))
    search = Search(cluster, index, hybridr.load_encoder(minilm_encoder()), settings=untuned)
    (pool, pool_qrels), (others, qrels) = sides
    learnt, tested = ask(search, pool[:POOL]), ask(search, others[:TESTED])
    found: Record = {"asked": len(tested)}
    for size in SIZES:
        draws = [random.Random(draw).sample(learnt, size) for draw in range(DRAWS)]
        found[str(size)] = [gained(search, one, pool_qrels, tested, qrels) for one in draws]
    return found


def gained(
    search: Search, judged: Sequence[Asked], judged_qrels: Qrels, tested: Sequence[Asked], qrels: Qrels
) -> Record:
    """Choose as `tune` does; give what the choice gains on new needs, and whether it is kept."""
    version, record, scale = search.cluster.version, search.info.record, search.dense_scale
    signals = other_signals(search.signals.usual, search.signals.others)
    tried = variants(version, record, signals=signals)
    choice = choice_of(tried, judged, judged_qrels, LEAD, scale)
    known = set().union(*relevant(([], judged_qrels), [one.query for one in judged]))
    new = [one for one in tested if not known & relevant(([], qrels), [one.query])[0]]
    default = next(one for one in tried if one.is_default)
    values = measured(new, qrels, LEAD, partial(score_all, [default, choice.chosen], dense_scale=scale))
    gain = float((values[:, 1] - values[:, 0]).mean())
    return {"new": len(new), "chosen": str(choice.chosen), "kept": choice.applied, "gain": round(gain, 4)}


ABOUT = """\
{lead} on queries whose need no judged query has, of the default search: what the variant that `tune` chooses
by 30 and 100 judged queries gains, in the mean of {draws} draws, if every choice is taken and if only those
are that `tune` keeps, for the interval of their gain is above zero. {machine}."""


def render(record: Record) -> str:
    """Render the gains by set, and their means."""
    rows = []
    for name, of in record["sets"].items():
        row = [name, f"{of['asked']:,}"]
        for size in map(str, SIZES):
            row += [f"{one:+.4f}" for one in gains_of(of[size])]
            row.append(f"{sum(one['kept'] for one in of[size])} of {len(of[size])}")
        rows.append(row)
    means = [[gains_of(of[str(size)]) for of in record["sets"].values()] for size in SIZES]
    last = ["mean", ""]
    for each in means:
        last += [*(f"{mean(one[side] for one in each):+.4f}" for side in (0, 1)), ""]
    heads = [f"{size} judged: {what}" for size in SIZES for what in ("every choice", "kept ones", "kept")]
    said = ABOUT.format(lead=LEAD, draws=DRAWS, machine=machine_of(record["machine"]))
    return f"{said}\n\n{table(['set', 'asked', *heads], [*rows, last])}"


def gains_of(draws: Sequence[Record]) -> tuple[float, float]:
    """Give the mean gain of all choices, and of those that are kept, others being the default."""
    return mean(one["gain"] for one in draws), mean(one["gain"] * one["kept"] for one in draws)


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster and the file."""
    add_asked(parser, SETS, "learnt-weights")


def measure(given: argparse.Namespace) -> None:
    """Measure what is not in the file yet."""
    cluster = hybridr.connect(given.url)
    measure_sets(given, lambda name: measure_set(cluster, given.folder / name, name))


SECTIONS = [
    Section(
        26,
        "What judged queries tune, on new needs",
        "learnt-weights",
        "python benchmarks/run.py learnt-weights FOLDER",
        render,
    ),
]
