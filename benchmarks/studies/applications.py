"""What does an application gain whose own query of several fields scores the words?

    python benchmarks/run.py applications FOLDER [--sets cranfield,...] [--url URL] [--json FILE]

FOLDER holds collections in BEIR layout. Each becomes an index of three shards whose texts are cut into
title, lead, body and rest (as `fields` does), each with a stemmed sub-field. An application asks in the ways
of FORMS, with boosts as shops have them. Compared are its own query, OpenSearch's fusion of that query and
the vectors, and what a transparent deployment makes of it, among what its words match; the latter also with
the words of the plain query in place of its own, and how long requests take. At most QUERIES judged queries
of each. The share of its own query in the words' score was chosen on the first four. What is measured stays
in the file: the same command goes on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import hybridr
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.retrievers.dense import as_numbers, dense_query
from hybridr.cluster.writing import bulk_action
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.evaluation.evaluation import checked_qrels, parse_measure, query_values
from hybridr.evaluation.significance import paired_t
from hybridr.files.formats import read_beir
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import Document, Qrels, Query
from hybridr.search.fusions.pipeline import hybrid_query, search_pipeline
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from hybridr.serving.rewriting.rewriting import BodyRanking, ReadBody
from indices import create, judged_sample, parts_of, write_all
from study import LEAD, Record, Section, add_asked, machine_of, measure_sets, table

CHOSEN_ON = ("cranfield", "fiqa_mini", "cacm", "tldr_cmd")
CONFIRMED_ON = ("stackfaq", "cisi", "scifact", "squadshifts_amazon")
QUERIES, DEPTH, K, SIGNIFICANT = 100, 100, 10, 0.05
NAMES = ("title", "lead", "body", "rest")
BOOSTED = ["title^5", "title.english^3", "lead.english^2", "body.english", "rest.english^0.5"]
STEMMED = ["title.english^3", "lead.english^2", "body.english", "rest.english"]
Clause = dict[str, Any]


def multi(kind: str, fields: Sequence[str], **options: Any) -> Callable[[str], Clause]:
    """Ask by `multi_match`."""
    return lambda text: {"multi_match": {"query": text, "fields": list(fields), "type": kind, **options}}


def phrase_wished(text: str) -> Clause:
    """Ask for the best field, and count a phrase in the title more."""
    wished = {"match_phrase": {"title.english": {"query": text, "boost": 5, "slop": 2}}}
    return {"bool": {"must": [multi("best_fields", BOOSTED, tie_breaker=0.3)(text)], "should": [wished]}}


FORMS: dict[str, Callable[[str], Clause]] = {
    "best": multi("best_fields", BOOSTED),
    "most": multi("most_fields", BOOSTED),
    "cross": multi("cross_fields", STEMMED),
    "combined": lambda text: {"combined_fields": {"query": text, "fields": STEMMED}},
    "best and phrase": phrase_wished,
}
WAYS = ("own", "stock", "transparent", "plain words")
BASELINES, TIMED = ("own", "stock"), ("own", "plain words", "transparent")


def prepared(cluster: Cluster, folder: Path) -> Search:
    """Make the index where it is missing, and open it."""
    name, encoder = f"applications-{folder.name}", hybridr.load_encoder(minilm_encoder())
    if not cluster.indices(name):
        filled(cluster, name, folder.name, read_beir(folder)[0])
    if not cluster.indices(f"{name}-hybridr"):
        reindex(cluster, name, encoder, ReindexSettings(fields=NAMES))
    return Search(cluster, name, encoder, settings=SearchSettings(tuned=False, lexical_fields=NAMES))


def filled(cluster: Cluster, name: str, collection: str, corpus: Sequence[Document]) -> None:
    """Load a collection, each text with a stemmed sub-field."""
    stemmed = {"english": {"type": "text", "analyzer": "english"}}
    mapped = {one: {"type": "text", "fields": stemmed} for one in NAMES}
    create(cluster, name, mapped)
    write_all(
        cluster, name, (bulk_action("index", one.doc_id, cut_in_four(one, collection)) for one in corpus)
    )


def cut_in_four(document: Document, collection: str) -> dict[str, str]:
    """Give the fields of a document that are not empty."""
    title, lead, body, rest = parts_of(document, collection)
    texts = (title, lead, " ".join(body), " ".join(rest))
    return {name: text for name, text in zip(NAMES, texts, strict=True) if text}


def measured(search: Search, queries: Sequence[Query], qrels: Qrels) -> Record:
    """Measure every form in every way."""
    assert search.encoder is not None
    readings = search.signals.read(search.encoder, [one.text for one in queries])
    ranking, pipeline = BodyRanking(search, "lexical"), search_pipeline(SearchSettings(), (3, 6, 0))
    found: Record = {}
    for form, asked in FORMS.items():
        bodies: dict[str, list[Clause]] = {way: [] for way in WAYS}
        for query, reading in zip(queries, readings, strict=True):
            own = asked(query.text)
            body = {"query": own, "size": K, "_source": False}
            parsed = ranking.read(body)
            assert isinstance(parsed, ReadBody), parsed
            parsed = parsed._replace(reading=reading)
            plain = parsed._replace(query=parsed.query._replace(words=None))
            near = dense_query(as_numbers(reading.vector), search.info.record.vector_field, DEPTH)
            fused = {"query": hybrid_query([own, near], DEPTH), "search_pipeline": pipeline}
            bodies["own"].append(body)
            bodies["stock"].append({**body, **fused})
            bodies["transparent"].append(ranking.body(parsed))
            bodies["plain words"].append(ranking.body(plain))
        answers = asked_in_turn(search, bodies)
        told = {way: values(queries, qrels, found) for way, (found, _) in answers.items()}
        gains = np.stack([told["transparent"] - told[one] for one in BASELINES], axis=1)
        found[form] = {"scale": round(parsed.query.scale, 3)}
        found[form] |= {way: round(float(of.mean()), 4) for way, of in told.items()}
        found[form]["p50"] = {way: round(1000 * median(took), 1) for way, (_, took) in answers.items()}
        found[form]["p"] = dict(zip(BASELINES, paired_t(gains).round(4).tolist(), strict=True))
    return found


class Answers(NamedTuple):
    """What was found for each query, best first, and how many seconds each took."""

    found: list[Mapping[str, float]]
    took: list[float]


def asked_in_turn(search: Search, bodies: Mapping[str, Sequence[Clause]]) -> dict[str, Answers]:
    """Ask as a client asks, each query in every way, in another order each time: the first finds all cold."""
    answers = {way: Answers([], []) for way in bodies}
    for place in range(len(next(iter(bodies.values())))):
        ways = [*bodies][place % len(bodies) :] + [*bodies][: place % len(bodies)]
        for way in ways:
            began = time.perf_counter()
            hits = search.cluster.request("POST", path_of(search.info.name, "_search"), bodies[way][place])
            answers[way].took.append(time.perf_counter() - began)
            answers[way].found.append({hit["_id"]: hit["_score"] for hit in hits["hits"]["hits"]})
    return answers


def values(queries: Sequence[Query], qrels: Qrels, found: Sequence[Mapping[str, float]]) -> NDArray[Any]:
    """Give the measure of what was found for each query `(queries,)`."""
    ids = [one.query_id for one in queries]
    told = query_values(dict(zip(ids, found, strict=True)), checked_qrels(qrels), [parse_measure(LEAD)], ids)
    return np.array([told[LEAD][one] for one in ids])


ABOUT = """\
{lead} of {count} collections: {names}. {machine}. The rows are the forms of the application's own query.
The last row takes, for each column and collection, the form that is best in this column. The second table
has the form whose own query is best on the first four ({best}). Stars are p < .05 by a paired t-test over
the queries, not corrected. The last columns are the p50 of its requests in milliseconds, sent by hand to a
node on this machine, ways in turn."""


def render(record: Record) -> str:
    """Render the means over the sets by form, and each set by the form that is best without us."""
    sets = record["sets"]

    def over_sets(form: str, way: str, names: Iterable[str]) -> float:
        return mean(sets[name]["forms"][form][way] for name in names)

    rows = [[form, *(f"{over_sets(form, way, sets):.4f}" for way in WAYS)] for form in FORMS]
    tops = [mean(max(of["forms"][form][way] for form in FORMS) for of in sets.values()) for way in WAYS]
    means = [mean(over_sets(form, way, sets) for form in FORMS) for way in WAYS]
    rows += [
        [name, *(f"{one:.4f}" for one in row)] for name, row in (("mean", means), ("best of its own", tops))
    ]
    chosen = [name for name in CHOSEN_ON if name in sets]
    best = max(FORMS, key=lambda form: over_sets(form, "own", chosen))
    per_set = [[name, *compared(of["forms"][best])] for name, of in sets.items()]
    gains = (over_sets(best, "transparent", sets) - over_sets(best, way, sets) for way in BASELINES)
    last = ["mean", *(f"{over_sets(best, way, sets):.4f}" for way in WAYS), *(f"{one:+.4f}" for one in gains)]
    per_set.append(last + [""] * len(TIMED))
    said = ABOUT.format(
        lead=LEAD, count=len(sets), names=", ".join(sets), machine=machine_of(record["machine"]), best=best
    )
    heads = ("its own query", "stock hybrid", "transparent", "with plain words")
    against = ("over its own", "over stock", *(f"ms, {way}" for way in TIMED))
    return "\n\n".join([said, table(["asked by", *heads], rows), table([best, *heads, *against], per_set)])


def compared(measured: Record) -> list[str]:
    """Render one form on one collection, and what is gained over the others."""
    gains = [measured["transparent"] - measured[way] for way in BASELINES]
    stars = ["*" * (measured["p"][way] < SIGNIFICANT) for way in BASELINES]
    told = [f"{gain:+.4f}{star}" for gain, star in zip(gains, stars, strict=True)]
    took = [f"{measured['p50'][way]:.1f}" for way in TIMED]
    return [*(f"{measured[way]:.4f}" for way in WAYS), *told, *took]


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster and the file."""
    add_asked(parser, [*CHOSEN_ON, *CONFIRMED_ON], "applications")


def measure(given: argparse.Namespace) -> None:
    """Measure what is not in the file yet."""
    cluster = hybridr.connect(given.url)
    measure_sets(given, lambda name: measure_set(cluster, given.folder / name))


def measure_set(cluster: Cluster, folder: Path) -> Record:
    """Ask one collection in every form and way."""
    queries, qrels = judged_sample(folder)
    queries = queries[:: max(1, -(-len(queries) // QUERIES))]
    return {"queries": len(queries), "forms": measured(prepared(cluster, folder), queries, qrels)}


SECTIONS = [
    Section(
        24,
        "An application's own query",
        "applications",
        "python benchmarks/run.py applications FOLDER",
        render,
    ),
]
