"""What default adaptation does to ranking, measured with real judgements that adaptation never sees.

    python benchmarks/adaptation.py FOLDER [--sets cranfield,npl] [--json benchmarks/results/adaptation.json]

FOLDER holds collections in BEIR layout (`NAME/corpus.jsonl`, …). Dense search is exact, BM25 is the local
one (S-stemmer, k1 1.2, b 0.75), the hybrid is min_max of both top 100 with weights .5 and .5. Larger corpora
are cut to the judged documents and a random rest; adaptation reads the whole corpus.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hybridr
from hybridr import AdaptSettings, Document, Encoder, Query
from hybridr.evaluation.bm25 import Bm25, best
from hybridr.evaluation.evaluation import evaluate
from hybridr.exporting.exporting import minilm_encoder
from hybridr.files.atomic import write_json
from hybridr.files.formats import read_beir
from hybridr.files.manifest import versions
from hybridr.machine import machine_record
from hybridr.records import Qrels, Run
from hybridr.search.fusions.pipeline import fuse

SETS = (
    "cranfield",
    "npl",
    "fiqa_mini",
    "cosqa",
    "cisi",
    "scifact",
    "cacm",
    "stackfaq",
    "tldr_cmd",
    "squadshifts_amazon",
)
DOCUMENTS, QUERIES, DEPTH, MEASURE = 3_000, 300, 100, "nDCG@10"


def main() -> None:
    """Measure every collection, write the JSON and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "adaptation.json")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting")
    given = parser.parse_args()
    changes = dict(pair.split("=", 1) for pair in given.set)
    rows: list[dict[str, Any]] = []
    record = {"machine": machine_record(), "versions": versions(), "settings": changes, "sets": rows}
    for name in given.sets.split(","):
        rows.append(measure(given.folder / name, changes))
        # After each set: an interrupted run keeps what it measured.
        write_json(given.json, record)
    print_table(rows)


def measure(folder: Path, changes: dict[str, str]) -> dict[str, Any]:
    """Adapt to one collection and rank its queries before and after."""
    corpus, queries, qrels = read_beir(folder)
    with tempfile.TemporaryDirectory() as scratch:
        started = time.monotonic()
        settings = AdaptSettings(out=Path(scratch) / "encoder", force=True, **changes)  # the gate is noted
        adaptation = hybridr.adapt(corpus, settings)
        seconds = time.monotonic() - started
        old, new = hybridr.load_encoder(minilm_encoder()), hybridr.load_encoder(adaptation.folder)
        corpus, queries = cut(corpus, queries, qrels)
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
        report = evaluate(both, queries, qrels, [MEASURE])
        row[name] = {side: report.systems[side][MEASURE] for side in both} | {
            "p": report.comparisons[0].p_value
        }
    row["bm25"] = evaluate({"bm25": found["bm25"]}, queries, qrels, [MEASURE]).systems["bm25"][MEASURE]
    print(line(row), flush=True)
    return row


def cut(corpus: list[Document], queries: list[Query], qrels: Qrels) -> tuple[list[Document], list[Query]]:
    """Keep at most 300 queries, their judged documents, and others up to 3,000."""
    draw = random.Random(0)
    queries = draw.sample(queries, QUERIES) if len(queries) > QUERIES else queries
    judged = {document for query in queries for document in qrels[query.query_id]}
    needed = [document for document in corpus if document.doc_id in judged]
    others = [document for document in corpus if document.doc_id not in judged]
    room = max(0, DOCUMENTS - len(needed))
    return needed + (draw.sample(others, room) if len(others) > room else others), queries


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


def as_run(lists: list[dict[str, float]], corpus: Sequence[Document], queries: Sequence[Query]) -> Run:
    """Name queries and documents by their ids."""
    return {
        query.query_id: {corpus[int(position)].doc_id: score for position, score in found.items()}
        for query, found in zip(queries, lists, strict=True)
    }


def line(row: dict[str, Any]) -> str:
    """Render one collection as a Markdown row."""
    cells = [row["set"], str(row["documents"]), str(row["queries"]), f"{row['bm25']:.3f}"]
    for name in ("dense", "hybrid"):
        found = row[name]
        cells += [f"{found['old']:.4f}", f"{found['new'] - found['old']:+.4f} (p {found['p']:.2g})"]
    cells += ["promoted" if row["gate"]["passed"] else "vetoed", f"{row['adapt_s']:.0f} s"]
    return f"| {' | '.join(cells)} |"


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print all collections and the means."""
    print("| set | docs | queries | BM25 | dense | adapted | hybrid | adapted | gate | time |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(line(row))
    for name in ("dense", "hybrid"):
        changes = [row[name]["new"] - row[name]["old"] for row in rows]
        print(f"{name}: mean change {sum(changes) / len(changes):+.4f}, worst {min(changes):+.4f}")


if __name__ == "__main__":
    main()
