"""What do judged queries bring that are remembered, where needs return and where they do not?

    python benchmarks/run.py memory FOLDER [--sets scifact,...] [--url URL] [--json FILE]

FOLDER holds collections in BEIR layout, each of which becomes an index of its own with the packaged encoder.
`hybridr learn` gets the judged queries of one split, or 100 or 300 of them drawn at random, and the default
search is asked the queries of another, 1,000 at most, before and after. A set NAME/halves is all judged
queries of NAME but for 274, split at random, so that other wordings of a need are on both sides. What
`--dry-run` tells of the learnt queries alone stands beside. What is measured stays in the file: the same
command goes on.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import hybridr
from hybridr.cluster.connection import Cluster
from hybridr.cluster.writing import bulk_action
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.evaluation.evaluation import checked_qrels, parse_measure, query_values
from hybridr.evaluation.significance import paired_t
from hybridr.files.formats import qrels_file, read_beir, read_qrels, read_queries
from hybridr.indexing.reindexing import reindex
from hybridr.records import Qrels, Query
from hybridr.relevance.learning import learn, unlearn, without_memory
from hybridr.search.search import Search
from indices import create, write_all
from study import LEAD, Record, Section, add_asked, machine_of, measure_sets, table

SETS = ("scifact", "stackfaq/halves", "stackfaq", "tldr_cmd", "cosqa")
LEARNT_OF = {"cosqa": "dev"}
"""The split that is learnt; train of all others."""
SIZES, ASKED, HALF, TIMED, DRAWN_BY = (100, 300, 0), 1_000, 550, 100, 13
Judged = tuple[list[Query], Qrels]


class Sides(NamedTuple):
    """The judged queries that are learnt, and those that are asked."""

    learnt: Judged
    asked: Judged


def sides_of(folder: Path, name: str) -> Sides:
    """Read the two sides of a set, each in an order drawn at random."""
    if name.endswith("/halves"):
        whole: Qrels = {}
        for file in sorted((folder / "qrels").glob("*.tsv")):
            whole |= checked_qrels(read_qrels(file))
        queries, qrels = drawn(read_queries(folder, whole)), whole
        return Sides((queries[:HALF], qrels), (queries[HALF : 2 * HALF], qrels))
    splits = [
        checked_qrels(read_qrels(qrels_file(folder, one))) for one in (LEARNT_OF.get(name, "train"), "test")
    ]
    learnt, asked = ((drawn(read_queries(folder, one)), one) for one in splits)
    return Sides(learnt, (asked[0][:ASKED], asked[1]))


def drawn(queries: Sequence[Query]) -> list[Query]:
    """Put queries into an order drawn at random."""
    known = sorted(queries, key=lambda one: one.query_id)
    return random.Random(DRAWN_BY).sample(known, len(known))


def prepared(cluster: Cluster, folder: Path) -> str:
    """Make the index where it is missing, and name it."""
    name = f"memory-{folder.name.replace('_', '-')}"
    if not cluster.indices(name):
        create(cluster, name, {"contents": {"type": "text", "analyzer": "english"}})
        documents = read_beir(folder)[0]
        write_all(
            cluster, name, (bulk_action("index", one.doc_id, {"contents": one.contents}) for one in documents)
        )
    if not cluster.indices(f"{name}-hybridr"):
        reindex(cluster, name, hybridr.load_encoder(minilm_encoder()))
    return name


def measured(search: Search, asked: Judged) -> NDArray[Any]:
    """Give the measure of each query `(queries,)`."""
    queries, qrels = asked
    ids = [one.query_id for one in queries]
    values = query_values(search.run(queries, 10), qrels, [parse_measure(LEAD)], ids)[LEAD]
    return np.array([values[one] for one in ids])


def milliseconds(searches: Sequence[Search], queries: Sequence[Query]) -> list[float]:
    """Give the median time of each search, which ask in turn, texts that nothing remembers."""
    took: list[list[float]] = [[] for _ in searches]
    for number, one in enumerate(queries[:TIMED]):
        pairs = list(zip(searches, took, strict=True))
        for search, times in pairs[:: -1 if number % 2 else 1]:  # who asks second finds the cluster warm
            search.analysis.of([f"{one.text} "])  # as known to each
            began = time.perf_counter()
            search(f"{one.text} ", 10)
            times.append(1000 * (time.perf_counter() - began))
    return [round(median(one), 1) for one in took]


def relevant(judged: Judged, queries: Sequence[Query]) -> list[set[str]]:
    """Give the relevant documents of queries."""
    return [{doc for doc, grade in judged[1][one.query_id].items() if grade > 0} for one in queries]


def measure_set(cluster: Cluster, folder: Path, name: str) -> Record:
    """Ask before and after learning some queries, and all."""
    index, encoder = prepared(cluster, folder), hybridr.load_encoder(minilm_encoder())
    sides = sides_of(folder, name)
    unlearn(cluster, index)
    before = measured(Search(cluster, index, encoder), sides.asked)
    found: Record = {
        "asked": len(before),
        "before": round(float(before.mean()), 4),
        "learnt": {},
    }
    needs = relevant(sides.asked, sides.asked[0])
    for size in SIZES:
        queries = sides.learnt[0][: size or None]
        began = time.perf_counter()
        learn(cluster, index, (queries, sides.learnt[1]), encoder=encoder)
        seconds = time.perf_counter() - began
        search = Search(cluster, index, encoder)
        after = measured(search, sides.asked)
        known = set().union(*relevant(sides.learnt, queries))
        returned = np.array([bool(one & known) for one in needs])
        gains = after - before
        found["learnt"][str(len(queries))] = {
            "gain": round(float(gains.mean()), 4),
            "p": round(float(paired_t(gains[:, None])[0]), 4),
            "returned": int(returned.sum()),
            "on_returned": round(float(gains[returned].mean()), 4) if returned.any() else None,
            "on_new": round(float(gains[~returned].mean()), 4) if not returned.all() else None,
            "seconds": round(seconds, 1),
        }
    found["ms"] = milliseconds([without_memory(search), search], sides.asked[0])
    told = learn(cluster, index, sides.learnt, encoder=encoder, dry_run=True).rehearsal
    assert told is not None
    unlearn(cluster, index)
    return found | {
        "rehearsal": {
            "returning": told.returning / told.asked,
            "again": vars(told.again),
            "new": vars(told.new),
        }
    }


ABOUT = """\
{lead} of the default search with the packaged encoder, before and after `hybridr learn`. "Needs judged"
are the queries that share a relevant document with a learned query; "gain there" is their gain,
"elsewhere" that of the others. Stars are p < .05 by a paired t-test over the queries, not corrected.
{machine}.

The dose (.2 from a cosine of .8 on) was chosen on small cuts of these sets. Needs return in scifact's
claims and in the halves of stackfaq because of how these sets were made. `--dry-run` saw only the learned
queries. It predicts the gain if needs return as often as among these, and for new needs. The median time
of a search was measured without and with memory in turn, on {timed} texts that nothing remembers. Others
worked on the machine at the same time."""


def render(record: Record) -> str:
    """Render what was gained by set and number of queries, and what a dry run had told."""
    rows, told = [], []
    for name, of in record["sets"].items():
        for count, one in of["learnt"].items():
            star = "*" * (one["p"] < 0.05)
            parts = (f"{one[key]:+.4f}" if one[key] is not None else "" for key in ("on_returned", "on_new"))
            after = of["before"] + one["gain"]
            share = f"{one['returned']:,} of {of['asked']:,}"
            rows.append(
                [
                    name,
                    count,
                    f"{of['before']:.4f}",
                    f"{after:.4f}",
                    f"{one['gain']:+.4f}{star}",
                    share,
                    *parts,
                    f"{one['seconds']:.1f}",
                ]
            )
        dry = of["rehearsal"]
        gains = (
            f"{one['mean']:+.4f} [{one['low']:+.4f}, {one['high']:+.4f}]"
            for one in (dry["again"], dry["new"])
        )
        times = (f"{one:.1f}" for one in of["ms"])
        told.append([name, f"{dry['returning']:.0%}", *gains, *times])
    heads = ["set", "learned", "before", "after", "gain", "needs judged", "gain there", "elsewhere"]
    said = ABOUT.format(lead=LEAD, machine=machine_of(record["machine"]), timed=TIMED)
    dry_heads = ["all learned", "needs return", "`--dry-run`: as often", "new needs", "ms without", "ms with"]
    return "\n\n".join([said, table([*heads, "seconds to learn"], rows), table(dry_heads, told)])


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster and the file."""
    add_asked(parser, SETS, "memory")


def measure(given: argparse.Namespace) -> None:
    """Measure what is not in the file yet."""
    cluster = hybridr.connect(given.url)
    measure_sets(given, lambda name: measure_set(cluster, given.folder / name.split("/")[0], name))


SECTIONS = [
    Section(
        25,
        "Queries that are remembered",
        "memory",
        "python benchmarks/run.py memory FOLDER",
        render,
    ),
]
