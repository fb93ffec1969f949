"""What int8 documents cost in ranking: nDCG@10 against fp32 documents, queries fp32 in both, exact search.

    python benchmarks/precision.py FOLDER [--sets cranfield,npl] [--documents 1000]

FOLDER holds collections in BEIR layout. Of many queries a random 500 are asked. `--documents` keeps the
judged documents and others up to that number; without it all are read. What is measured stays in the file:
the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hybridr import Document, Encoder, Query, load_encoder
from hybridr.encoding.packaged import minilm
from hybridr.evaluation.bm25 import best
from hybridr.evaluation.evaluation import evaluate
from hybridr.exporting.exporting import export
from hybridr.files.atomic import write_json
from hybridr.files.formats import read_beir
from hybridr.files.manifest import versions
from hybridr.machine import read_cpu
from hybridr.records import Qrels, Run

SETS = (
    "cranfield",
    "cisi",
    "cacm",
    "lisa",
    "fiqa_mini",
    "stackfaq",
    "npl",
    "scifact",
    "tldr_cmd",
    "cosqa",
    "squadshifts_amazon",
    "squadshifts_reddit",
)
QUERIES, DEPTH, MEASURE, SEED = 500, 10, "nDCG@10", 0


def main() -> None:
    """Measure every collection that is not in the file yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--documents", type=int)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "precision.json")
    given = parser.parse_args()
    settings = {"documents": given.documents, "queries": QUERIES, "seed": SEED}
    record: dict[str, Any] = {
        "machine": {"cpu": read_cpu().model},
        "versions": versions(),
        "settings": settings,
        "sets": {},
    }
    if given.json.is_file():
        known = json.loads(given.json.read_text(encoding="utf-8"))
        record = known if known["settings"] == settings else record
    with tempfile.TemporaryDirectory() as scratch:
        folder = export(minilm(), Path(scratch) / "encoder", precision="int8")
        encoders = {name: load_encoder(folder, precision=name) for name in ("fp32", "int8")}
        for name in given.sets.split(","):
            if name not in record["sets"]:
                record["sets"][name] = measure(given.folder / name, encoders, given.documents)
                write_json(given.json, record)
                print(name, record["sets"][name], flush=True)


def measure(folder: Path, encoders: dict[str, Encoder], documents: int | None) -> dict[str, Any]:
    """Rank one collection's queries over documents of each precision."""
    corpus, queries, qrels = cut(*read_beir(folder), documents)
    asked = encoders["fp32"].encode_queries([query.text for query in queries])
    runs: dict[str, Run] = {}
    vectors, seconds = {}, {}
    for name, encoder in encoders.items():
        started = time.process_time()
        vectors[name] = encoder.encode_documents([document.contents for document in corpus])
        seconds[name] = round(time.process_time() - started, 1)
        runs[name] = {
            query.query_id: {
                corpus[int(place)].doc_id: score for place, score in best(row + 1, DEPTH).items()
            }
            for query, row in zip(queries, asked @ vectors[name].T, strict=True)
        }
    cosines = np.sum(vectors["fp32"] * vectors["int8"], axis=1)
    report = evaluate(runs, queries, qrels, [MEASURE])
    return {
        "documents": len(corpus),
        "queries": len(queries),
        "cpu_s": seconds,
        "cosine": {"mean": float(cosines.mean()), "least": float(cosines.min())},
        **{name: report.systems[name][MEASURE] for name in encoders},
        "p": report.comparisons[0].p_value,
    }


def cut(
    corpus: list[Document], queries: list[Query], qrels: Qrels, documents: int | None
) -> tuple[list[Document], list[Query], Qrels]:
    """Keep at most 500 queries and, if asked, their judged documents and others up to `documents`."""
    draw = random.Random(SEED)
    queries = draw.sample(queries, QUERIES) if len(queries) > QUERIES else queries
    judged = {document for query in queries for document in qrels[query.query_id]}
    needed = [document for document in corpus if document.doc_id in judged]
    others = [document for document in corpus if document.doc_id not in judged]
    room = len(others) if documents is None else max(0, documents - len(needed))
    return needed + (draw.sample(others, room) if len(others) > room else others), queries, qrels


if __name__ == "__main__":
    main()
