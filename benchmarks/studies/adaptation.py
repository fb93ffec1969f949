"""What does default adaptation do to ranking, by judgements that adaptation never sees?

    python benchmarks/run.py adaptation FOLDER [--sets cranfield,npl] [--set NAME=VALUE] [--json FILE]

FOLDER holds collections in BEIR layout (`NAME/corpus.jsonl`, …). Dense search is exact, BM25 is the local
one (S-stemmer, k1 1.2, b 0.75), the hybrid is min_max of both top 100 with weights .5 and .5. Larger corpora
are cut to the judged documents and a random rest; adaptation reads the whole corpus.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import hybridr
from conditions import the_twelve
from hybridr import AdaptSettings, Document, Encoder, Query
from hybridr.evaluation.bm25 import Bm25, best
from hybridr.evaluation.evaluation import evaluate
from hybridr.exporting.exporting import minilm_encoder
from hybridr.files.formats import read_beir
from hybridr.files.manifest import versions
from hybridr.records import Run
from hybridr.search.fusions.pipeline import fuse
from rankings import as_run, cut
from study import (
    LEAD,
    Record,
    Section,
    add_collections,
    add_json,
    machine_of,
    machine_record,
    table,
    write_result,
)

DOCUMENTS, QUERIES, DEPTH = 3_000, 300, 100


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, and other settings of `adapt`."""
    add_collections(parser, the_twelve())
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting")
    add_json(parser, "adaptation")


def measure(given: argparse.Namespace) -> None:
    """Measure every collection, write the JSON and print the table."""
    changes = dict(pair.split("=", 1) for pair in given.set)
    rows: list[Record] = []
    record = {"machine": machine_record(), "versions": versions(), "settings": changes, "sets": rows}
    for name in given.sets:
        rows.append(measure_set(given.folder / name, changes))
        # After each set: an interrupted run keeps what it measured.
        write_result(given.json, record)
        print(name, rows[-1], flush=True)
    print(render(record))


def measure_set(folder: Path, changes: dict[str, str]) -> Record:
    """Adapt to one collection and rank its queries before and after."""
    corpus, queries, qrels = read_beir(folder)
    with tempfile.TemporaryDirectory() as scratch:
        started = time.monotonic()
        settings = AdaptSettings(out=Path(scratch) / "encoder", force=True, **changes)  # the gate is noted
        adaptation = hybridr.adapt(corpus, settings)
        seconds = time.monotonic() - started
        old, new = hybridr.load_encoder(minilm_encoder()), hybridr.load_encoder(adaptation.folder)
        corpus, queries = cut(corpus, queries, qrels, most=QUERIES, documents=DOCUMENTS)
        found = rank(corpus, queries, old, new)
    row = {
        "set": folder.name,
        "documents": len(corpus),
        "queries": len(queries),
        "gate": adaptation.gate.record(),
        "loss": [adaptation.loss_start, adaptation.loss_end],
        "trained_on": adaptation.documents,
        "unseen_loss": [adaptation.unseen_loss_start, adaptation.unseen_loss_end],
        "training_s": adaptation.seconds,
        "adapt_s": round(seconds, 1),
    }
    for name in ("dense", "hybrid"):
        both = {side: found[f"{name}-{side}"] for side in ("old", "new")}
        report = evaluate(both, queries, qrels, [LEAD])
        row[name] = {side: report.systems[side][LEAD] for side in both} | {"p": report.comparisons[0].p_value}
    row["bm25"] = evaluate({"bm25": found["bm25"]}, queries, qrels, [LEAD]).systems["bm25"][LEAD]
    return row


def rank(corpus: Sequence[Document], queries: Sequence[Query], old: Encoder, new: Encoder) -> dict[str, Run]:
    """Rank every query by BM25, by both encoders, and by both hybrids."""
    texts, asked = [document.contents for document in corpus], [query.text for query in queries]
    bm25 = Bm25(texts)
    lists = {"bm25": [bm25.search(text, DEPTH) for text in asked]}
    for side, encoder in (("old", old), ("new", new)):
        scores = encoder.encode_queries(asked) @ encoder.encode_documents(texts).T
        lists[f"dense-{side}"] = [best(row + 1.0, DEPTH) for row in scores]
        pairs = zip(lists["bm25"], lists[f"dense-{side}"], strict=True)
        lists[f"hybrid-{side}"] = [fuse(pair) for pair in pairs]
    return {name: as_run(found, corpus, queries) for name, found in lists.items()}


def render(record: Record) -> str:
    """Render adaptation of the retriever: sets by dense and hybrid, before and after."""
    header = ["collection", "documents", "queries", "dense", "adapted", "hybrid", "adapted", "gate"]
    rows = [
        [
            row["set"],
            f"{row['documents']:,}",
            str(row["queries"]),
            *(cell for name in ("dense", "hybrid") for cell in before_and_after(row[name])),
            "promoted" if row["gate"]["passed"] else "vetoed",
        ]
        for row in record["sets"]
    ]
    return f"{LEAD}; default settings. {machine_of(record['machine'])}.\n\n{table(header, rows)}"


def before_and_after(found: Record) -> tuple[str, str]:
    """Render a value and its change."""
    return f"{found['old']:.4f}", f"{found['new'] - found['old']:+.4f} (p {found['p']:.2g})"


SECTIONS = [
    Section(
        90,
        "Adaptation of the packaged retriever",
        "adaptation",
        "python benchmarks/run.py adaptation FOLDER",
        render,
    )
]
