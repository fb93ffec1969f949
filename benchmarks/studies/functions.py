"""Do a client's functions (a rating, a date, stock) change our ranking as they change BM25's?

    python benchmarks/run.py functions FOLDER [--sets cranfield,cacm] [--url URL] [--json FILE]

FOLDER holds collections in BEIR layout. Each is loaded with a made-up rating, number of reviews, date and
stock in every document (`functions-NAME`) and reindexed, unless it is there. Each query is asked as a
client would, as BM25 answers and as `deploy --way transparent` has it ranked, without a function and with
each. A function changes nDCG@10, mostly for the worse: it knows nothing of relevance. What counts is whether
it changes both rankings alike.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from hybridr import Cluster, LoadSettings, Query, Search, connect, load, reindex
from hybridr.encoding.contract import Reading
from hybridr.evaluation.evaluation import parse_measure, values_of
from hybridr.exporting.exporting import minilm_encoder
from hybridr.files.formats import read_corpus
from hybridr.rewriting.clauses import Wanted
from hybridr.rewriting.rewriting import BodyRanking
from studies.fusion import judged_sample
from study import LEAD, Record, Section, add_asked, machine_of, measure_sets, table

SETS = ("cranfield", "fiqa_mini", "stackfaq", "cacm")
SEED, TODAY, AT_ONCE, K = 5, date(2026, 1, 1), 32, 10
LEAST, ALIKE = 0.03, 1 / 3
"""What BM25 has to lose or gain for a function to count, and by which part of it ours may differ."""
Clause = dict[str, Any]


def factor(field: str, modifier: str, weight: float = 1) -> Clause:
    """Read a number of a document."""
    return {"field_value_factor": {"field": field, "modifier": modifier, "factor": weight, "missing": 1}}


def decay(kind: str, scale: str) -> Clause:
    """Fall with a document's age: half at `scale`."""
    return {kind: {"published": {"origin": TODAY.isoformat(), "scale": scale, "decay": 0.5}}}


def scored(mode: str, *functions: Clause) -> Clause:
    """Change a text's score by functions."""
    return {"function_score": {"boost_mode": mode, "functions": list(functions)}}


STOCK: Clause = {"term": {"in_stock": True}}
FUNCTIONS: dict[str, Clause] = {
    "multiplied by a rating of 1 to 5": scored("multiply", factor("rating", "none")),
    "by its root": scored("multiply", factor("rating", "sqrt")),
    "by log(1 + reviews)": scored("multiply", factor("reviews", "log1p")),
    "by half for 90 days of age (exp)": scored("multiply", decay("exp", "90d")),
    "by half for 180 days (gauss)": scored("multiply", decay("gauss", "180d")),
    "by 2 where in stock": scored("multiply", {"filter": STOCK, "weight": 2}),
    "rating added": scored("sum", factor("rating", "none")),
    "ln(1 + reviews) added": scored("sum", factor("reviews", "ln1p")),
    "up to 10 for recency added": scored("sum", {**decay("exp", "90d"), "weight": 10}),
    "by a script: _score * (1 + 0.2 rating)": {
        "script_score": {"script": {"source": "_score * (1 + 0.2 * doc['rating'].value)"}}
    },
    "5 where in stock, by `should`": {
        "bool": {"should": [{"constant_score": {"filter": STOCK, "boost": 5}}]},
    },
    "halved where not in stock (boosting)": {
        "boosting": {"negative": {"term": {"in_stock": False}}, "negative_boost": 0.5}
    },
}
INSIDE = {"bool": "must", "boosting": "positive"}
ABOUT = f"""\
nDCG@10 that a function costs BM25, and that it costs the ranking of `deploy --way transparent`; values of
documents are made up at random. Where BM25 loses at least {LEAST}, the last row counts on how many
functions ours loses the same to a third. Ours ranks much better without any function ("none": nDCG@10
itself), so it has more to lose. What moves whole documents costs both the same part of what they have: on
stackfaq "by 2 where in stock" takes 9.8 % of BM25 and 9.9 % of ours, half again as good, which is .044 and
.069."""


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster, and where the result goes."""
    add_asked(parser, SETS, "functions")


def measure(given: argparse.Namespace) -> None:
    """Measure what is not in the file yet."""
    cluster = connect(given.url)
    measure_sets(given, lambda name: measure_set(cluster, given.folder / name), {"seed": SEED})


def measure_set(cluster: Cluster, folder: Path) -> Record:
    """Ask one collection: the mean nDCG@10 of both ways, with each function and without."""
    queries, qrels = judged_sample(folder)
    search = opened(cluster, folder)
    readings = search.signals.read(search.encoder, [query.text for query in queries])
    found = {}
    for name, function in {"none": {}, **FUNCTIONS}.items():
        bodies = [body_of(search, query, function) for query in queries]
        ranked = [rewritten(search, *each) for each in zip(bodies, readings, strict=True)]
        for way, sent in (("bm25", bodies), ("ours", ranked)):
            parts = [sent[start : start + AT_ONCE] for start in range(0, len(sent), AT_ONCE)]
            hits = [one for part in parts for one in search.opened.joiner.candidates.scores(part)]
            run = dict(zip([query.query_id for query in queries], hits, strict=True))
            found[f"{way} {name}"] = fmean(
                values_of(run, qrels, [parse_measure(LEAD)], list(run))[LEAD].values()
            )
    return found


def opened(cluster: Cluster, folder: Path) -> Search:
    """Open the collection with made-up values, made where it is not there."""
    name, encoder = f"functions-{folder.name}", minilm_encoder()
    if not cluster.exists(name):
        file = folder / "with-values.jsonl"
        file.write_text("".join(f"{json.dumps(one)}\n" for one in with_values(folder)), encoding="utf-8")
        load(cluster, file, LoadSettings(index=name))
    reindex(cluster, name, encoder)
    return Search(cluster, name)


def with_values(folder: Path) -> Iterator[dict[str, Any]]:
    """Give documents a rating, reviews, a date and a stock."""
    chance = random.Random(SEED)
    for one in read_corpus(folder):
        yield {
            **one,
            "rating": round(chance.uniform(1, 5), 2),
            "reviews": int(chance.lognormvariate(3, 1.5)),
            "published": (TODAY - timedelta(days=chance.randrange(365))).isoformat(),
            "in_stock": chance.random() < 0.7,
        }


def body_of(search: Search, query: Query, function: Clause) -> dict[str, Any]:
    """Write what a client sends."""
    asked: Clause = {"match": {search.lexical_fields[0]: query.text}}
    for kind, body in function.items():
        asked = {kind: {**body, INSIDE.get(kind, "query"): asked}}
    return {"query": asked, "size": K, "_source": False}


def rewritten(search: Search, body: dict[str, Any], reading: Reading) -> dict[str, Any]:
    """Rank a body as a deployment does; one that finds nothing stays as it is."""
    ranking = BodyRanking(search, "lexical")
    wanted = ranking.judged(body)
    return ranking.body(body, wanted, reading) if isinstance(wanted, Wanted) else body


def render(record: Record) -> str:
    """Render a row a function: what it costs BM25 and ours on each collection."""
    sets = record["sets"]
    rows = [["none", *(f"{one['bm25 none']:.3f} / {one['ours none']:.3f}" for one in sets.values())]]
    rows += [[name, *(costs(one, name) for one in sets.values())] for name in FUNCTIONS]
    rows.append(["alike", *(counted(one) for one in sets.values())])
    said = f"{len(sets)} collections. {machine_of(record['machine'])}."
    return "\n\n".join([said, ABOUT, table(["function", *sets], rows)])


def changes(measured: Record, name: str) -> tuple[float, float]:
    """Give what a function changes of BM25 and of ours."""
    bm25, ours = (measured[f"{way} {name}"] - measured[f"{way} none"] for way in ("bm25", "ours"))
    return bm25, ours


def costs(measured: Record, name: str) -> str:
    """Render what a function changes of both."""
    bm25, ours = changes(measured, name)
    return f"{bm25:+.3f} / {ours:+.3f}"


def counted(measured: Record) -> str:
    """Count the functions that change both alike, of those that change BM25."""
    found = [changes(measured, name) for name in FUNCTIONS]
    counting = [(bm25, ours) for bm25, ours in found if abs(bm25) >= LEAST]
    alike = sum(abs(ours - bm25) <= ALIKE * abs(bm25) for bm25, ours in counting)
    return f"{alike} of {len(counting)}"


SECTIONS = [
    Section(
        23,
        "A client's functions on our ranking",
        "functions",
        "python benchmarks/run.py functions FOLDER",
        render,
    )
]
