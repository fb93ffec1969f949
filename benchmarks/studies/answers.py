"""Does the best hit's score tell own queries from foreign ones, and does its calibration hold?

    python benchmarks/run.py answers FOLDER --url URL [--sets cranfield,stackfaq] [--grown] [--json FILE]

FOLDER holds collections in BEIR layout, and the cluster each as an index of its name with vectors. Each is
asked some of its own queries and some of all others', which it does not answer: those of its own field stand
apart. Its calibration is measured as `hybridr tune` does; nothing is written. `kept` is the share of own
queries whose first relevant hit among ten stays, `false` that of foreign ones that find something, `lost`
what the mean nDCG@10 of own queries falls by; `at` a confidence, `by_curve` where so many foreign ones pass.

With `--grown` an index of four fifths of the documents is made (`NAME-grown`, gone afterwards), calibrated,
filled by the last fifth, and calibrated anew: how many foreign queries pass by the threshold of before, and
by the new one? `foreign` are those of other collections, `listed` those that come with hybridr.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
import orjson

from conditions import read_conditions, the_twelve
from hybridr import connect
from hybridr.cluster.aliases import default_alias
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.loading import load
from hybridr.cluster.reading import read_documents
from hybridr.cluster.record_parts import Calibrated
from hybridr.cluster.settings import LoadSettings
from hybridr.cluster.writing import Rejects, index_action, write
from hybridr.errors import DataError
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.formats import qrels_file, read_qrels, read_queries
from hybridr.indexing.reindexing import reindex
from hybridr.records import Hit, Qrels, Query
from hybridr.relevance.answering import ASKED, best_of_each, calibrate, calibrated, hits_of_each
from hybridr.relevance.foreign_queries import foreign_queries
from hybridr.search.answers import Answers, lowest_that_fits
from hybridr.search.encoders import encoder_for
from hybridr.search.pages import first_score
from hybridr.search.search import Search
from hybridr.status.standing import remove
from study import LEAD, Record, Section, add_asked, machine_of, measure_sets, table

OWN, OTHERS, FIRST, CHANCES = 100, 14, 10, (0.01, 0.05, 0.1, 0.2)
FIELDS = (
    {"cisi", "lisa"},  # library science
    {"cacm", "cosqa", "tldr_cmd", "stackfaq"},  # computing
    {"squadshifts_amazon", "squadshifts_reddit"},  # what people post, asked by the same crowd
)
"""Collections of one field; named after the first scores of stackfaq and fiqa_mini, before all others."""


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster that has them, and the file of the result."""
    add_asked(parser, the_twelve(), "answers")
    parser.add_argument("--grown", action="store_true", help="let indices grow; --sets and --json with it")


def measure(given: argparse.Namespace) -> None:
    """Measure every collection."""
    cluster = connect(given.url)
    measured = grown_set if given.grown else measured_set
    measure_sets(given, lambda name: measured(cluster, given.folder, name))


def chosen_queries(folder: Path, name: str, most: int) -> tuple[list[Query], Qrels]:
    """Choose some judged queries of a collection."""
    qrels = read_qrels(qrels_file(folder / name, read_conditions()[name].split))
    ids = random.Random(13).sample(sorted(qrels), min(most, len(qrels)))
    chosen = {one: qrels[one] for one in ids}
    return read_queries(folder / name, chosen), chosen


def of_one_field(left: str, right: str) -> bool:
    """Tell whether two collections are of one field."""
    return any({left, right} <= field for field in FIELDS)


def measured_set(cluster: Cluster, folder: Path, name: str) -> Record:
    """Measure one collection."""
    info = resolve(cluster, default_alias(name))
    search = Search(cluster, info, encoder_for(cluster, info, None))
    queries, qrels = chosen_queries(folder, name, OWN)
    own = hits_of_each(search, [one.text for one in queries], FIRST)
    best = foreign_bests(search, folder, name)
    far = far_of(best, name)
    began = time.monotonic()
    known = calibrated(search)
    took = time.monotonic() - began
    answers, asked = Answers(known), OwnQueries(queries, own, qrels)
    curve = {str(chance): asked.at(float(np.quantile(far, 1 - chance))) for chance in CHANCES}
    return {
        "documents": known.documents,
        "area": area([hits[0].score for hits in own if hits], far),
        "of_one_field": {
            one: area([hits[0].score for hits in own if hits], scores)
            for one, scores in best.items()
            if of_one_field(name, one)
        },
        "by_curve": curve,
        "at": {
            str(1 - chance): {
                **asked.at(threshold := answers.threshold(1 - chance)),
                "false": float(np.mean(np.array(far) >= threshold)),
            }
            for chance in CHANCES
        },
        "answered": known.answered,
        "seconds": round(took, 1),
    }


def foreign_bests(search: Search, folder: Path, name: str) -> dict[str, list[float]]:
    """Give what the best hits for queries of each other collection score."""
    others = {one: chosen_queries(folder, one, OTHERS)[0] for one in the_twelve() if one != name}
    return {one: best_of_each(search, [query.text for query in asked]) for one, asked in others.items()}


def far_of(best: Mapping[str, Sequence[float]], name: str) -> list[float]:
    """Join the scores of what is of other fields than a collection."""
    return [score for one, scores in best.items() if not of_one_field(name, one) for score in scores]


def grown_set(cluster: Cluster, folder: Path, name: str) -> Record:
    """Measure what a calibration is worth when its index has grown by a quarter."""
    index, encoder = f"{name}-grown", encoder_for(cluster, resolve(cluster, default_alias(name)), None)
    documents = list(read_documents(cluster, name))
    random.Random(13).shuffle(documents)
    begun = len(documents) * 4 // 5
    try:
        with TemporaryDirectory() as part:
            lines = [orjson.dumps({"_id": one.doc_id, **one.source}) for one in documents[:begun]]
            Path(part, "corpus.jsonl").write_bytes(b"\n".join(lines))
            load(cluster, part, LoadSettings(index=index, replace=True))
        reindex(cluster, index, encoder)
        before = calibrate(cluster, index, encoder).answers
        more = [index_action(one.doc_id, one.source) for one in documents[begun:]]
        write(cluster, index, more, rejects=Rejects(Path(os.devnull)))
        cluster.refresh(index)
        reindex(cluster, index, encoder)
        return {
            "documents": [begun, len(documents)],
            **passing(Search(cluster, index, encoder), before, folder, name),
        }
    finally:
        remove(cluster, index, discard=True)
        cluster.request("DELETE", path_of(index))


def passing(search: Search, before: Calibrated | None, folder: Path, name: str) -> Record:
    """Say how many foreign queries pass by the threshold that an index has from before, and by one of now."""
    if search.answers.known is None or search.answers.known != before:
        raise DataError(f"'{search.info.name}' is searched by another calibration: {search.answers.why}")
    now = calibrated(search)
    thresholds = [Answers(one).threshold(0.95) for one in (before, now)]
    far = far_of(foreign_bests(search, folder, name), name)
    listed = sorted(best_of_each(search, foreign_queries(ASKED)))[: now.queries]  # less what it may answer
    told = {"listed": listed, "foreign": far}
    return {
        "thresholds": [round(one, 4) for one in thresholds],
        **{kind: [float(np.mean(np.array(of) >= at)) for at in thresholds] for kind, of in told.items()},
    }


def area(own: Sequence[float], foreign: Sequence[float]) -> float:
    """Give the chance that an own query scores more than a foreign one: the area under the curve."""
    left, right = np.array(own)[:, None], np.array(foreign)[None]
    return float((left > right).mean() + (left == right).mean() / 2)


class OwnQueries:
    """What is left of the hits of own queries at a threshold."""

    def __init__(self, queries: Sequence[Query], hits: Sequence[Sequence[Hit]], qrels: Qrels) -> None:
        self.hits = {one.query_id: found for one, found in zip(queries, hits, strict=True)}
        self.queries, self.qrels = list(queries), {one.query_id: qrels[one.query_id] for one in queries}
        self.whole = self.leading(-np.inf)

    def leading(self, threshold: float) -> float:
        """Give the mean nDCG@10 of the hits that are left."""
        run: dict[str, Mapping[str, float]] = {
            query: {hit.doc_id: hit.score for hit in left(hits, threshold)}
            for query, hits in self.hits.items()
        }
        found = evaluate({"own": run}, self.queries, self.qrels, [LEAD])  # type: ignore[dict-item]
        return found.systems["own"][LEAD]

    def at(self, threshold: float) -> Record:
        """Say what a threshold keeps and loses."""
        firsts = {
            query: next((hit for hit in hits if self.qrels[query].get(hit.doc_id, 0) > 0), None)
            for query, hits in self.hits.items()
        }
        kept = [hit in left(self.hits[query], threshold) for query, hit in firsts.items() if hit]
        return {
            "threshold": round(threshold, 4),
            "kept": float(np.mean(kept)),
            "lost": self.whole - self.leading(threshold),
        }


def left(hits: Sequence[Hit], threshold: float) -> list[Hit]:
    """Give what is left of hits, as a search leaves them out."""
    lowest = lowest_that_fits(first_score(hit.score for hit in hits), threshold)
    return [hit for hit in hits if hit.score >= lowest]


def render(record: Record) -> str:
    """Show what scores tell of each collection."""
    header = ["set", "area", "kept at 1 / 5 / 10 / 20 % false", f"{LEAD} lost at 5 %"]
    header += ["false at .95", "kept at .95", f"{LEAD} lost at .95", "seconds", "area beside its own field"]
    sets = record["sets"]
    rows = [
        [
            name,
            *cells([one]),
            ", ".join(f"{beside} {area:.3f}" for beside, area in one["of_one_field"].items()),
        ]
        for name, one in sets.items()
    ]
    mean = [f"**mean of {len(sets)}**", *cells(list(sets.values())), ""]
    return f"{machine_of(record['machine'])}.\n\n{table(header, [*rows, mean])}"


def cells(sets: Sequence[Record]) -> list[str]:
    """Render the means of some collections."""

    def mean(value: Callable[[Record], float]) -> str:
        return f"{fmean(map(value, sets)):.3f}"

    kept = [mean(lambda one, at=str(chance): one["by_curve"][at]["kept"]) for chance in CHANCES]
    told = [mean(lambda one, name=name: one["at"]["0.95"][name]) for name in ("false", "kept", "lost")]
    lost, seconds = mean(lambda one: one["by_curve"]["0.05"]["lost"]), mean(lambda one: one["seconds"])
    return [mean(lambda one: one["area"]), " / ".join(kept), lost, *told, seconds]


def render_grown(record: Record) -> str:
    """Show how many foreign queries pass by the threshold of a smaller index, and by the new one."""
    header = ["set", "documents", "threshold", "of other collections pass", "of hybridr's list pass"]
    parts = {"documents": "{:,}", "thresholds": "{:.3f}", "foreign": "{:.3f}", "listed": "{:.3f}"}
    sets = record["sets"]
    rows = [
        [name, *(" → ".join(map(form.format, one[part])) for part, form in parts.items())]
        for name, one in sets.items()
    ]
    means = [
        " → ".join(f"{fmean(one[part][at] for one in sets.values()):.3f}" for at in (0, 1))
        for part in ("foreign", "listed")
    ]
    said = "Left of each arrow: the smaller index, its threshold, and what passes by that in the whole one."
    return f"{said}\n\n{table(header, [*rows, ['**mean**', '', '', *means]])}"


SECTIONS = [
    Section(
        27,
        "When nothing fits",
        "answers",
        "python benchmarks/run.py answers FOLDER --url URL",
        render,
    ),
    Section(
        29,
        "A threshold in an index that has grown",
        "answers-grown",
        "python benchmarks/run.py answers FOLDER --url URL --grown --sets … --json …",
        render_grown,
    ),
]
