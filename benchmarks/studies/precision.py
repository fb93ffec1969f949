"""What do int8 documents cost in ranking, against fp32 documents, queries fp32 in both, exact search?

    python benchmarks/run.py precision FOLDER [--sets cranfield,npl] [--documents 1000]

FOLDER holds collections in BEIR layout. Of many queries a random 500 are asked. `--documents` keeps the
judged documents and others up to that number; without it all are read. What is measured stays in the file:
the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from conditions import the_twelve
from hybridr import Encoder, load_encoder
from hybridr.encoders.export.exporting import export
from hybridr.encoders.machine import read_cpu
from hybridr.encoders.packaged import minilm
from hybridr.evaluation.bm25 import best
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.formats import read_beir
from hybridr.files.manifest import versions
from hybridr.records import Run
from rankings import SEED, as_run, cut
from study import LEAD, Record, Section, add_collections, add_json, current, table, write_result

QUERIES, DEPTH = 500, 10


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, and how much of each."""
    add_collections(parser, the_twelve())
    parser.add_argument("--documents", type=int)
    add_json(parser, "precision")


def measure(given: argparse.Namespace) -> None:
    """Measure every collection that is not in the file yet."""
    settings = {"documents": given.documents, "queries": QUERIES, "seed": SEED}
    machine = {"cpu": read_cpu().model}
    record = current(given.json, settings) or {
        "machine": machine,
        "versions": versions(),
        "settings": settings,
        "sets": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = export(minilm(), Path(scratch) / "encoder", precision="int8")
        encoders = {name: load_encoder(folder, precision=name) for name in ("fp32", "int8")}
        for name in given.sets:
            if name not in record["sets"]:
                record["sets"][name] = measure_set(given.folder / name, encoders, given.documents)
                write_result(given.json, record)
                print(name, record["sets"][name], flush=True)


def measure_set(folder: Path, encoders: dict[str, Encoder], documents: int | None) -> Record:
    """Rank one collection's queries over documents of each precision."""
    corpus, queries, qrels = read_beir(folder)
    corpus, queries = cut(corpus, queries, qrels, most=QUERIES, documents=documents)
    asked = encoders["fp32"].encode_queries([query.text for query in queries])
    runs: dict[str, Run] = {}
    vectors, seconds = {}, {}
    for name, encoder in encoders.items():
        started = time.process_time()
        vectors[name] = encoder.encode_documents([document.contents for document in corpus])
        seconds[name] = round(time.process_time() - started, 1)
        ranked = [best(row + 1, DEPTH) for row in asked @ vectors[name].T]
        runs[name] = as_run(ranked, corpus, queries)
    cosines = np.sum(vectors["fp32"] * vectors["int8"], axis=1)
    report = evaluate(runs, queries, qrels, [LEAD])
    return {
        "documents": len(corpus),
        "queries": len(queries),
        "cpu_s": seconds,
        "cosine": {"mean": float(cosines.mean()), "least": float(cosines.min())},
        **{name: report.systems[name][LEAD] for name in encoders},
        "p": report.comparisons[0].p_value,
    }


def render(record: Record) -> str:
    """Render what int8 documents cost, set by set and in the mean."""
    header = ["collection", "documents", "queries", "fp32", "int8 documents", "least cosine"]
    rows, changes = [], []
    for name, found in record["sets"].items():
        changes.append(found["int8"] - found["fp32"])
        rows.append(
            [
                name,
                f"{found['documents']:,}",
                f"{found['queries']:,}",
                f"{found['fp32']:.4f}",
                f"{changes[-1]:+.4f} (p {found['p']:.2g})",
                f"{found['cosine']['least']:.4f}",
            ]
        )
    mean, limit = sum(changes) / len(changes), record["settings"]["documents"]
    part = f"Only the judged documents and others up to {limit:,} a collection. " if limit else ""
    return (
        f"{LEAD}, queries fp32, exact search. {part}Mean change over {len(changes)} collections "
        f"{mean:+.4f}. Machine: {record['machine']['cpu']}.\n\n{table(header, rows)}"
    )


SECTIONS = [
    Section(
        120,
        "What int8 documents cost",
        "precision",
        "python benchmarks/run.py precision FOLDER",
        render,
    )
]
