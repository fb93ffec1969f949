"""Does the best hit's score tell own queries from foreign ones, and does its calibration hold?

    python benchmarks/run.py answers FOLDER --url URL [--sets cranfield,stackfaq] [--json FILE]

FOLDER holds collections in BEIR layout, and the cluster each as an index of its name with vectors. Each is
asked some of its own queries and some of all others', which it does not answer: those of its own field stand
apart. Its calibration is measured as `hybridr tune` does; nothing is written. `kept` is the share of own
queries whose first relevant hit among ten stays, `false` that of foreign ones that find something, `lost`
what the mean nDCG@10 of own queries falls by; `at` a confidence, `by_curve` where so many foreign ones pass.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from conditions import read_conditions, the_twelve
from hybridr.cluster.aliases import default_alias
from hybridr.cluster.connection import Cluster, connect
from hybridr.cluster.destinations import resolve
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.formats import qrels_file, read_qrels, read_queries
from hybridr.records import Hit, Qrels, Query
from hybridr.search.answers import Answers
from hybridr.search.encoders import encoder_for
from hybridr.search.search import Search
from hybridr.tuning.answering import calibrated, hits_of_each
from study import LEAD, Record, Section, add_asked, measure_sets

SECTIONS: Sequence[Section] = ()
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


def measure(given: argparse.Namespace) -> None:
    """Measure every collection."""
    cluster = connect(given.url)
    measure_sets(given, lambda name: measured_set(cluster, given.folder, name))


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
    others = {one: chosen_queries(folder, one, OTHERS)[0] for one in the_twelve() if one != name}
    best = {one: best_of(search, asked) for one, asked in others.items()}
    far = [score for one, scores in best.items() if not of_one_field(name, one) for score in scores]
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


def best_of(search: Search, queries: Sequence[Query]) -> list[float]:
    """Give the scores of the best hits."""
    return [hits[0].score for hits in hits_of_each(search, [one.text for one in queries], 1) if hits]


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
        """Give the mean nDCG@10 of the hits from a score on."""
        run: dict[str, Mapping[str, float]] = {
            query: {hit.doc_id: hit.score for hit in hits if hit.score >= threshold}
            for query, hits in self.hits.items()
        }
        found = evaluate({"own": run}, self.queries, self.qrels, [LEAD])  # type: ignore[dict-item]
        return found.systems["own"][LEAD]

    def at(self, threshold: float) -> Record:
        """Say what a threshold keeps and loses."""
        firsts = [
            next((hit.score for hit in hits if self.qrels[query].get(hit.doc_id, 0) > 0), None)
            for query, hits in self.hits.items()
        ]
        known = [one for one in firsts if one is not None]
        return {
            "threshold": round(threshold, 4),
            "kept": float(np.mean([one >= threshold for one in known])),
            "lost": self.whole - self.leading(threshold),
        }
