"""How much of what true labels teach do clicks teach, and what does reading a million events take?

    python benchmarks/run.py clicks FOLDER [--sets stackfaq,scifact] [--json FILE]

FOLDER holds collections in BEIR layout with a train split; each must be reindexed on the cluster. People are
simulated from the train qrels alone: each asks one training query once and sees the ten best documents of
today's ranking, rank r with a chance of 1 / r; a relevant document that is seen is clicked with a chance of
.6 to .9, another one with .05 to .1, drawn for each query. Their log becomes judgements as any log does.
Compared are the true labels of what was shown, what OpenSearch's COEC would say, and all true labels: by the
ranking that `tune` would choose, and by the memory that `learn` would keep, on the test queries. In the
random halves queries of all splits are dealt anew, so that other wordings of a need are on both sides.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybridr.cluster.record import Record as IndexRecord
from hybridr.encoders.contract import of_length_one
from hybridr.evaluation.evaluation import checked_qrels
from hybridr.families import member_of
from hybridr.files.formats import qrels_file, read_qrels, read_queries
from hybridr.records import Qrels, Query
from hybridr.relevance.clicks.clicks import judged_by
from hybridr.relevance.clicks.ubi import in_file
from hybridr.relevance.evidence import Asked, ask
from hybridr.relevance.judgement import (
    Variant,
    chosen_among,
    landscape,
    measured,
    other_signals,
    score_all,
    scores_of,
    variants,
)
from hybridr.relevance.learning import likeness_among
from hybridr.search.past_queries import Past, Relevant, credits_by
from hybridr.search.search import Search
from hybridr.search.signals import FAMILY
from hybridr_bench.spending import peak_kib
from indices import opened
from study import LEAD, Record, Section, add_asked, machine_of, measure_sets, own_process, table, write_result

SHOWN, SESSIONS, SEED = 10, (10, 100), 13
LIKES, ERRS = (0.6, 0.9), (0.05, 0.1)
HALVES = {"stackfaq": ("train", "dev", "test")}
"""Collections of which the judged queries of these splits are dealt anew as well."""
EVENTS, QUERIES_ASKED, CLIENTS, DOCUMENTS = 1_000_000, 30_000, 130_000, 20_000
"""The large log, whose queries repeat as a rank in a list of words does (Zipf, 1.2)."""
Shown = Mapping[str, Sequence[str]]
Values = np.ndarray[Any, np.dtype[np.floating[Any]]]


class Side(NamedTuple):
    """Queries with judgements, and what the legs say of them."""

    queries: list[Query]
    qrels: Qrels
    asked: list[Asked]
    vectors: Values


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster, and where the result goes."""
    add_asked(parser, ["stackfaq", "scifact"], "clicks")
    parser.add_argument("--part", type=Path, help=argparse.SUPPRESS)


def measure(given: argparse.Namespace) -> None:
    """Measure what is not in the file yet; with `--part` read one log and say what that took."""
    if given.part:
        print(json.dumps(read_log(given.part)))
        return
    measure_sets(given, lambda name: measure_set(given.folder / name, given.url))
    record = json.loads(given.json.read_text(encoding="utf-8"))
    if "log" not in record:
        write_result(given.json, record | {"log": measure_log()})


def measure_set(folder: Path, url: str | None) -> Record:
    """Measure the split of a collection, and random halves of all its judged queries."""
    search = opened(f"{folder.name}-hybridr", url, ("all",))
    found = {"train to test": measure_split(search, *(read_side(folder, [one]) for one in ("train", "test")))}
    if splits := HALVES.get(folder.name):
        queries, qrels = read_side(folder, splits)
        order = np.random.default_rng(SEED).permutation(len(queries))
        halves = [[queries[place] for place in half] for half in np.array_split(order, 2)]
        found["random halves"] = measure_split(search, *((half, qrels) for half in halves))
    return found


def read_side(folder: Path, splits: Sequence[str]) -> tuple[list[Query], Qrels]:
    """Read the judged queries of some splits."""
    qrels: Qrels = {}
    for split in splits:
        qrels |= checked_qrels(read_qrels(qrels_file(folder, split)))
    return sorted(read_queries(folder, qrels)), qrels


def measure_split(
    search: Search, train: tuple[list[Query], Qrels], test: tuple[list[Query], Qrels]
) -> Record:
    """Learn from one side by each kind of labels, and measure on the other what that gains."""
    learnt, held = (asked_of(search, *side) for side in (train, test))
    tried = variants(
        search.cluster.version,
        IndexRecord(similarity="cosine"),
        signals=other_signals(search.signals.usual, search.signals.others),
    )
    score = remembered(partial(score_all, tried, dense_scale=search.dense_scale))
    values, default = measured(held.asked, held.qrels, LEAD, score), landscape(tried).default
    shown = shown_by(search, tried[default], learnt)
    rows = {}
    for name, labels in labels_of(learnt, shown).items():
        chosen = chosen_among(tried, landscape(tried), measured_by(learnt, labels, score), LEAD)
        place = tried.index(chosen.chosen)
        rows[name] = {
            **agreement_with(learnt.qrels, labels),
            "weights": float((values[:, place] - values[:, default]).mean()),
            "applied": chosen.applied,
            "memory": memory_gain(search, tried[default], learnt, labels, held),
        }
    return {"train": len(train[0]), "test": len(test[0]), "default": float(values[:, default].mean())} | {
        "labels": rows
    }


def asked_of(search: Search, queries: list[Query], qrels: Qrels) -> Side:
    """Ask all legs for the queries of a side."""
    assert search.encoder is not None
    vectors = of_length_one(search.encoder.encode_queries([one.text for one in queries]))
    own = {one.query_id: qrels[one.query_id] for one in queries}
    return Side(queries, own, ask(search, queries), vectors)


def remembered(score: Callable[[Asked], Values]) -> Callable[[Asked], Values]:
    """Score each query once, in single precision: every kind of labels asks for the same scores."""
    known: dict[str, Values] = {}

    def scored(asked: Asked) -> Values:
        query = asked.query.query_id
        if query not in known:
            known[query] = score(asked).astype(np.float32)
        return known[query]

    return scored


def measured_by(side: Side, labels: Qrels, score: Callable[[Asked], Values]) -> Values:
    """Measure variants on the queries that have a label."""
    return measured([one for one in side.asked if one.query.query_id in labels], labels, LEAD, score)


def shown_by(search: Search, default: Variant, side: Side) -> Shown:
    """Give the ten best documents of each query by today's ranking."""
    found = {one.query.query_id: scores_of(default, one, search.dense_scale) for one in side.asked}
    return {query: sorted(scores, key=lambda doc: -scores[doc])[:SHOWN] for query, scores in found.items()}


def labels_of(side: Side, shown: Shown) -> dict[str, Qrels]:
    """Label the documents that were shown by the truth, and by simulated people; and all by the truth."""
    seen = {query: {doc: side.qrels[query].get(doc, 0) for doc in docs} for query, docs in shown.items()}
    found = {"all true labels": side.qrels, "true labels of what was shown": with_relevant(seen)}
    for sessions in SESSIONS:
        log = list(people(side, shown, sessions))
        names = {query.text.casefold(): query.query_id for query in side.queries}
        clicks = judged_by(iter(log), lambda docs, _: {doc: doc for doc in docs})
        ids = {query.query_id: names[query.text.casefold()] for query in clicks.queries}
        found[f"clicks, {sessions} sessions"] = {ids[one]: of for one, of in clicks.qrels.items()}
        found[f"COEC, {sessions} sessions"] = with_relevant(coec(log, shown))
    return found


def with_relevant(qrels: Qrels) -> Qrels:
    """Keep the queries with a relevant document."""
    return {query: grades for query, grades in qrels.items() if any(grades.values())}


def people(side: Side, shown: Shown, sessions: int) -> Iterator[dict[str, Any]]:
    """Simulate people; each is a client of their own and asks once."""
    random, places = np.random.default_rng([SEED, sessions]), 1 / np.arange(1.0, SHOWN + 1)
    for query in side.queries:
        docs, grades = list(shown[query.query_id]), side.qrels[query.query_id]
        chosen = np.array([grades.get(doc, 0) > 0 for doc in docs])
        chance = np.where(chosen, random.uniform(*LIKES), random.uniform(*ERRS)) * places[: len(docs)]
        for number, clicks in enumerate(random.random((sessions, len(docs))) < chance):
            yield from visit(f"{query.query_id}-{number}", query.text, docs, np.flatnonzero(clicks).tolist())


def visit(name: str, text: str, docs: list[str], clicks: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Write down one search and its clicks as UBI does."""
    asked = {"query_id": name, "client_id": f"client-{name}", "user_query": text}
    yield {**asked, "timestamp": "2026-11-02T10:00:00.000Z", "query_response_hit_ids": docs}
    for place in clicks:
        about = {"object": {"object_id": docs[place]}, "position": {"ordinal": place + 1}}
        event = {**asked, "action_name": "click", "timestamp": "2026-11-02T10:00:09.000Z"}
        yield {**event, "event_attributes": about}


def coec(log: Sequence[Mapping[str, Any]], shown: Shown) -> Qrels:
    """Judge as COEC does: relevant is what was clicked more often than its rank usually is."""
    sessions = Counter(one["query_id"].rpartition("-")[0] for one in log if "action_name" not in one)
    clicks: Counter[tuple[str, int]] = Counter()
    for one in log:
        if "action_name" in one:
            place = one["event_attributes"]["position"]["ordinal"] - 1
            clicks[one["query_id"].rpartition("-")[0], place] += 1
    usual = [sum(clicks[query, place] for query in shown) / sum(sessions.values()) for place in range(SHOWN)]
    return {
        query: {
            doc: int(clicks[query, place] > usual[place] * sessions[query]) for place, doc in enumerate(docs)
        }
        for query, docs in shown.items()
    }


def agreement_with(truth: Qrels, labels: Qrels) -> Record:
    """Count labelled queries; and tell how many of the labels are true, and of the true ones are there."""
    said = {(query, doc) for query, grades in labels.items() for doc, grade in grades.items() if grade}
    true = {(query, doc) for query, grades in truth.items() for doc, grade in grades.items() if grade}
    return {
        "queries": len(labels),
        "precision": len(said & true) / max(len(said), 1),
        "recall": len(said & true) / len(true),
    }


def memory_gain(search: Search, default: Variant, learnt: Side, labels: Qrels, held: Side) -> float:
    """Give what a memory of these labels adds to the default on the held-out queries."""
    assert search.encoder is not None
    best = max(grade for grades in labels.values() for grade in grades.values())
    relevant = [
        [Relevant(doc, grade / best, "") for doc, grade in labels.get(one.query_id, {}).items() if grade > 0]
        for one in learnt.queries
    ]
    kept = {one.query_id: of for one, of in zip(learnt.queries, relevant, strict=True) if of}
    least = likeness_among(search.encoder, [one for one in learnt.queries if one.query_id in kept], kept)
    weight = member_of(FAMILY, "memory").weight
    nearness = held.vectors @ learnt.vectors.T
    places = {one.query_id: place for place, one in enumerate(held.queries)}

    def both(asked: Asked) -> Values:
        cosines = nearness[places[asked.query.query_id]]
        near = [place for place in np.flatnonzero(cosines >= least) if relevant[place]]
        credit = credits_by([Past(float(cosines[place]), relevant[place]) for place in near], least)
        [plain] = score_all([default], asked, search.dense_scale)
        added = [credit[doc].worth if doc in credit else 0.0 for doc in asked.candidates]
        return np.array([plain, plain + weight * np.array(added)])

    before, after = measured(held.asked, held.qrels, LEAD, both).T
    return float((after - before).mean())


def measure_log() -> Record:
    """Write a large log, and read it in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            count = sum(lines.write(json.dumps(one) + "\n") > 0 for one in large_log())
        done = subprocess.run(own_process("clicks", ".", "--part", file), stdout=subprocess.PIPE, check=True)
        size = file.stat().st_size
    return {"events": count, "bytes": size, **json.loads(done.stdout)}


def large_log() -> Iterator[dict[str, Any]]:
    """Yield searches and clicks, `EVENTS` of them, over lists of ten of which a fifth is relevant."""
    random = np.random.default_rng(SEED)
    places, count = 1 / np.arange(1.0, SHOWN + 1), 0
    while count < EVENTS:
        asked = int(random.zipf(1.2)) % QUERIES_ASKED
        own = np.random.default_rng(asked)
        docs = [f"doc-{one}" for one in own.choice(DOCUMENTS, SHOWN, replace=False)]
        chance = np.where(own.random(SHOWN) < 0.2, 0.7, 0.07) * places
        clicks = np.flatnonzero(random.random(SHOWN) < chance).tolist()
        client = f"client {random.integers(CLIENTS)}"
        for one in visit(f"search-{count}", f"query number {asked}", docs, clicks):
            yield {**one, "client_id": client}
            count += 1


def read_log(file: Path) -> Record:
    """Turn a log into judgements; give what that took."""
    started = time.monotonic()
    found = judged_by(in_file(file), lambda docs, _: {doc: doc for doc in docs})
    took = time.monotonic() - started
    return {"seconds": took, "peak_mb": peak_kib() / 1024, "report": found.report.to_json()}


COLUMNS = "set, labels, queries, precision, recall, chosen ranking, of true, memory, of true".split(", ")
ABOUT = """\
nDCG@10 on the test queries over today's ranking, by labels of the training queries: what choosing the ranking
by them gains (`tune`; in brackets where it would keep the default, since no gain is shown), and what a memory
of them gains (`learn`). Of true: the share of what true labels of the shown documents gain. People see rank r
with a chance of 1 / r, click what is relevant with .6 to .9 and other documents with .05 to .1."""


def render(record: Record) -> str:
    """Render a row for each kind of labels, and what the large log takes."""
    rows = [
        row
        for name, splits in record["sets"].items()
        for split, found in splits.items()
        for row in rows_of(f"{name}, {split}", found["labels"])
    ]
    log = record["log"]
    told = (
        f"A log of {log['events']:,} searches and clicks ({log['bytes'] / 1e6:,.0f} MB as JSON lines): "
        f"{log['seconds']:.0f} s to {log['report']['judged']:,} judged queries, {log['peak_mb']:.0f} MB peak."
    )
    return "\n\n".join([ABOUT, table(COLUMNS, rows), told, f"{machine_of(record['machine'])}."])


def rows_of(name: str, labels: Record) -> Iterator[list[str]]:
    """Render the rows of one split."""
    true = labels["true labels of what was shown"]
    for kind, row in labels.items():
        shares = [share(row[way], true[way]) for way in ("weights", "memory")]
        gain = f"{row['weights']:+.4f}"
        yield [
            *(name, kind, str(row["queries"]), f"{row['precision']:.2f}", f"{row['recall']:.2f}"),
            *(gain if row["applied"] else f"({gain})", shares[0], f"{row['memory']:+.4f}", shares[1]),
        ]


def share(gain: float, true: float) -> str:
    """Render a gain as a share of another, where that is one."""
    return f"{gain / true:.0%}" if true >= 0.001 else ""


SECTIONS = [
    Section(
        28,
        "What clicks teach",
        "clicks",
        "python benchmarks/run.py clicks FOLDER",
        render,
    )
]
