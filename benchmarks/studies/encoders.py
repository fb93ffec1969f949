"""How well does an index rank with other encoders than the packaged one, and with two of them joined?

    python benchmarks/run.py encoders FOLDER --url URL [--work DIR] [--sets A,B] [--encoders A,B+C]

FOLDER holds collections in BEIR layout; each is ranked whole, by at most 500 queries, as users have it:
`reindex` with the defaults, then `evaluate`. A+B are two joined as `adapt` joins them. Every single encoder
reads the documents once and its vectors are kept in DIR; joined ones are fitted to them, and their vectors
made of them. The results are a file for each set; what it has, measured by today's code, is not measured
again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import hybridr
from conditions import the_twelve
from hybridr import load_encoder
from hybridr.encoders.adapters.ensemble import Ensemble, kept_dimensions
from hybridr.encoders.contract import Vectors
from hybridr.encoders.export.exporting import export, second_retriever
from hybridr.encoders.export.weights import EnsembleBiEncoder, fit_ensemble
from hybridr.encoders.opening import OnnxEncoder
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.files.formats import read_beir, write_qrels
from hybridr.records import silent
from hybridr.search.checks import find_encoder_folder
from hybridr.search.systems import Compared
from studies.ensemble import KeptVectors
from study import LEAD, RESULTS, Record, Section, add_collections, current, listed, machine_of, write_result
from study import table as table_of
from workshop import chosen

MINILM, E5, BGE = "all-MiniLM-L6-v2", "e5-small-v2", "bge-small-en-v1.5"
ENCODERS = (MINILM, BGE, E5, f"{MINILM}+{E5}", f"{MINILM}+{BGE}")
STOCK = "hybrid-stock"
SYSTEMS = (STOCK, "bm25", "dense", "hybrid")
QUERIES, FITTED = 500, 1_800
PRECISION, BACKEND = "int8", "openvino"  # what `reindex` chooses for larger indices, on a processor with VNNI


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, a cluster, the encoders, and where vectors and joined encoders lie."""
    add_collections(parser, the_twelve())
    parser.add_argument("--url", required=True)
    parser.add_argument("--encoders", type=listed, default=list(ENCODERS), metavar="A,B+C")
    parser.add_argument("--work", type=Path, default=Path("encoders-work"), metavar="DIR")
    parser.add_argument("--json", type=Path, default=RESULTS / "encoders", metavar="DIR")


def measure(given: argparse.Namespace) -> None:
    """Measure each encoder on each set, and write the set's file after it."""
    connection = hybridr.connect(given.url)
    for name in given.encoders:
        for collection in given.sets:
            file = given.json / f"{collection}.json"
            record = current(file) or {"encoders": {}}
            if name not in record["encoders"]:
                work = given.work / collection
                record["encoders"][name] = measure_set(connection, given.folder / collection, name, work)
                write_result(file, record)
                print(collection, name, record["encoders"][name]["systems"], flush=True)


def measure_set(connection: Any, folder: Path, name: str, work: Path) -> Record:
    """Fill an index of the set by an encoder, and ask it the queries by each system."""
    corpus, queries, qrels = read_beir(folder)
    work.mkdir(parents=True, exist_ok=True)
    sample = chosen(queries, qrels, QUERIES)
    write_qrels(work / "qrels.txt", {query.query_id: qrels[query.query_id] for query in sample})
    encoder_folder, encoder = kept_encoder(name, [document.contents for document in corpus], work)
    index = connection.index(f"{folder.name}-{name}".lower().replace("+", "-and-"))
    index.load(folder)
    index.reindex(encoder=encoder)
    judged, compared = JudgedQueries(folder, qrels=work / "qrels.txt"), Compared(SYSTEMS, measures=[LEAD])
    report = index.evaluate(judged, compared, encoder=encoder_folder)
    return {
        "documents": len(corpus),
        "queries": report.queries,
        "systems": {system: round(values[LEAD], 4) for system, values in report.systems.items()},
        "p": {comparison.system: comparison.p_value for comparison in report.comparisons},
    }


def kept_encoder(name: str, texts: Sequence[str], work: Path) -> tuple[Path, OnnxEncoder | KeptVectors]:
    """Open an encoder with the vectors that it made of a set; give its folder too."""
    singles = name.split("+")
    limit = min(opened(find_encoder_folder(single, silent)).max_tokens for single in singles)
    parts = [encoded(single, texts, work, limit) for single in singles]
    if len(singles) == 1:
        folder = find_encoder_folder(name, silent)
        return folder, KeptVectors(opened(folder), texts, parts[0])
    folder, joined = work / name, fit(singles, parts)
    if not folder.is_dir():
        export(joined, folder)
    return folder, KeptVectors(opened(folder), texts, joined.joined(*parts))


def opened(folder: Path) -> OnnxEncoder:
    """Open an encoder as `reindex` does for larger indices."""
    return load_encoder(folder, precision=PRECISION, backend=BACKEND)


def encoded(name: str, texts: Sequence[str], work: Path, limit: int) -> Vectors:
    """Encode a collection by one encoder, once, as many tokens of each text."""
    file = work / f"{name}-{limit}.npy"
    if not file.is_file():
        np.save(file, opened(find_encoder_folder(name, silent)).encode_documents(texts, max_tokens=limit))
    vectors: Vectors = np.load(file)
    return vectors


def fit(names: Sequence[str], vectors: Sequence[Vectors]) -> EnsembleBiEncoder:
    """Join two as `adapt` does, by as many documents of a collection."""
    first, second = (second_retriever(name) for name in names)
    sample = np.random.default_rng(13).permutation(len(vectors[0]))[:FITTED]
    both = vectors[0][sample], vectors[1][sample]
    dim = kept_dimensions(first.dim, first.dim + second.dim, len(sample))
    return fit_ensemble(first, second, both, Ensemble.strength, dim)


def render(record: Record) -> str:
    """Render a table of each encoder: its systems on every set, and their means."""
    names = dict.fromkeys(name for measured in record.values() for name in measured["encoders"])
    machine = machine_of(next(iter(record.values()))["machine"])
    tables = [f"{LEAD}, at most {QUERIES} queries. A star: p < .05 against {STOCK} (paired t). {machine}."]
    for name in names:
        measured = {key: kept["encoders"][name] for key, kept in record.items() if name in kept["encoders"]}
        rows = [[key, *(cell(value, system) for system in SYSTEMS)] for key, value in measured.items()]
        means = [fmean(value["systems"][system] for value in measured.values()) for system in SYSTEMS]
        tables.append(table_of([name, *SYSTEMS], [*rows, ["mean", *(f"{mean:.4f}" for mean in means)]]))
    return "\n\n".join(tables)


def cell(measured: Record, system: str) -> str:
    """Render a value and whether it differs from the stock hybrid."""
    return f"{measured['systems'][system]:.4f}" + "*" * (measured["p"].get(system, 1.0) < 0.05)


SECTIONS = [
    Section(
        92,
        "Other encoders, and two joined",
        "encoders",
        "python benchmarks/run.py encoders FOLDER --url URL",
        render,
    )
]
