"""What does a second retriever beside the packaged one bring, and what does it cost?

    python benchmarks/run.py ensemble FOLDER --url URL [--work DIR] [--sets A,B] [--json FILE]

FOLDER holds collections in BEIR layout; each is ranked whole, by at most 500 of its queries, on the cluster
at URL as a user has it: `reindex` and `Search`, unadapted and with the share and the components that `adapt`
takes, by vectors, by words and vectors alone, and with the signals that are on by default. Vectors of
documents and the encoders are kept in DIR: to encode them is nearly all of the work. p is of a paired t
against the packaged retriever. `prices` in the result was reckoned once, in numpy (docs/measured/adapt.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import hybridr
from conditions import the_twelve
from hybridr import Search, load_encoder
from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.encoders.adapters.ensemble import Ensemble, EnsembleSettings, kept_dimensions
from hybridr.encoders.export.exporting import export, minilm_encoder, open_in_onnx, second_retriever
from hybridr.encoders.export.fetched_models import minilm
from hybridr.encoders.export.weights import NumpyBiEncoder, fit_ensemble, open_without_torch
from hybridr.encoders.opening import OnnxEncoder
from hybridr.evaluation.evaluation import evaluate
from hybridr.evaluation.significance import compare_systems
from hybridr.indexing.reindexing import reindex
from hybridr.records import Run
from hybridr.search.settings import SearchSettings
from studies.methods import Collection, read_collection
from study import LEAD, Record, Section, add_collections, add_json, machine_of, measure_sets, table
from workshop import Vectors

QUERIES, FITTED = 500, 1_800
BASE, ADAPTED, SECOND = "packaged", "ensemble", EnsembleSettings().second
WAYS = {
    "dense": ("dense", ("none",)),
    "words and vectors": ("hybrid", ("none",)),
    "hybrid": ("hybrid", ("auto",)),
}
TUNED_ON = ("cranfield", "fiqa_mini")


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, a cluster, and where vectors and encoders lie."""
    add_collections(parser, the_twelve())
    parser.add_argument("--url", required=True)
    parser.add_argument("--work", type=Path, default=Path("ensemble-work"), metavar="DIR")
    add_json(parser, "ensemble")


def measure(given: argparse.Namespace) -> None:
    """Measure every collection; the file has each when it is done."""
    cluster = hybridr.connect(given.url)

    def measure_one(name: str) -> Record:
        found = read_collection(given.folder / name, QUERIES)
        both = {which: vectors_of(which, name, found, given.work) for which in ("first", "second")}
        return {
            "documents": len(found.corpus),
            "queries": len(found.queries),
            "product": through_product(cluster, given, name, found, both),
        }

    measure_sets(given, measure_one, {"queries": QUERIES, "fitted": FITTED, "second": SECOND})


@cache
def retriever(which: str) -> NumpyBiEncoder:
    """Open one of the two."""
    return open_without_torch(minilm()) if which == "first" else second_retriever(SECOND)


def vectors_of(which: str, name: str, found: Collection, folder: Path) -> Vectors:
    """Encode a collection by one of the two, once."""
    file = folder / f"{name}-{which if which == 'first' else SECOND}.npz"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        encoder = open_in_onnx(retriever(which))
        texts = [document.contents for document in found.corpus], [query.text for query in found.queries]
        documents = encoder.encode_documents(texts[0], max_tokens=256)
        np.savez(file, documents=documents, queries=encoder.encode_queries(texts[1]))
    kept = np.load(file)
    return Vectors(kept["documents"], kept["queries"])


def fit(both: dict[str, Vectors], share: float, dim: int) -> Any:
    """Join the two as `adapt` does, by as many documents of a collection."""
    some = np.random.default_rng(13).permutation(len(both["first"].documents))[:FITTED]
    vectors = both["first"].documents[some], both["second"].documents[some]
    return fit_ensemble(retriever("first"), retriever("second"), vectors, share, dim)


class KeptVectors:
    """An encoder whose documents were encoded before."""

    def __init__(self, encoder: OnnxEncoder, texts: Sequence[str], vectors: Any) -> None:
        self._encoder, self._vectors = encoder, vectors
        self._places = {text: place for place, text in enumerate(texts)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Any:
        """Give what was kept, and encode what is no document of the collection."""
        if all(text in self._places for text in texts):
            return self._vectors[[self._places[text] for text in texts]]
        return self._encoder.encode_documents(texts, max_tokens=max_tokens)


def through_product(
    cluster: Any, given: argparse.Namespace, name: str, found: Collection, both: dict[str, Vectors]
) -> Record:
    """Fill an index by each encoder and rank as `Search` does."""
    texts = [document.contents for document in found.corpus]
    first, second = (retriever(which).dim for which in ("first", "second"))
    dim = kept_dimensions(first, first + second, min(FITTED, len(texts)))
    joined, folder = fit(both, Ensemble.strength, dim), given.work / f"{name}-{SECOND}-encoder"
    if not folder.is_dir():
        export(joined, folder)
    made = {
        BASE: (minilm_encoder(), both["first"].documents),
        ADAPTED: (folder, joined.joined(both["first"].documents, both["second"].documents)),
    }
    encoders = {
        which: KeptVectors(load_encoder(place), texts, vectors) for which, (place, vectors) in made.items()
    }
    runs: dict[str, dict[str, Run]] = {way: {} for way in WAYS}
    for which, encoder in encoders.items():
        index = f"{name}-{which}"
        load(cluster, given.folder / name, LoadSettings(index=index))
        reindex(cluster, index, encoder)
        for way, (mode, signals) in WAYS.items():
            search = Search(cluster, index, encoder, mode=mode, settings=SearchSettings(signals=signals))
            runs[way][which] = {
                one.query_id: {hit.doc_id: hit.score for hit in search(one.text, 10)} for one in found.queries
            }
    return {way: compared(both_runs, found, BASE) for way, both_runs in runs.items()}


def render(record: Record) -> str:
    """Render what a user gets, set by set, and the curve of means."""
    sets = record["sets"]
    second = record["settings"].get("second", "e5-small-v2")
    said = (
        f"{LEAD}, at most {QUERIES} queries, joined with {second}; a star marks p < .05 against the packaged "
        f"retriever (paired t, not corrected). {machine_of(record['machine'])}."
    )
    cells = {
        name: [one["product"][way][kind] for way in WAYS for kind in (BASE, ADAPTED)]
        for name, one in sets.items()
    }
    rows = [[name, *map(cell, values)] for name, values in cells.items()]
    columns = zip(*cells.values(), strict=True)
    means = ["mean", *(f"{fmean(value for value, _ in column):.4f}" for column in columns)]
    heads = ["", *(f"{way}, {name}" for way in WAYS for name in (BASE, ADAPTED))]
    return "\n\n".join([said, table(heads, [*rows, means]), prices(record["prices"])])


def prices(record: Record) -> str:
    """Render what each way costs, and its mean gain over the first on the sets tuned on and on the others."""
    parts = {"tuned on": list(TUNED_ON), "others": [name for name in record["sets"] if name not in TUNED_ON]}
    ways, (base, *_) = ("dense", "hybrid", "hybrid, queries as they are"), record["points"].values()
    rows = []
    for name, point in record["points"].items():
        gains = [
            fmean(point[way][one] - base[way][one] for one in names if one in point[way])
            for way in ways
            for names in parts.values()
        ]
        sets = sum(one in point["hybrid"] for one in record["sets"])
        rows.append([name, f"{point['cost']:.2f}", str(sets), *(f"{gain:+.4f}" for gain in gains)])
    heads = [f"{way}: {part}" for way in ways for part in parts]
    return f"{record['said']}\n\n{table(['', 'a document', 'sets', *heads], rows)}"


def compared(runs: Record, found: Collection, base: str) -> Record:
    """Give the value of each run, and its p against that of `base`."""
    per_query = evaluate(runs, found.queries, found.qrels, [LEAD]).per_query
    values = {name: {LEAD: per[LEAD]} for name, per in per_query.items()}
    p = {one.system: one.p_value for one in compare_systems(values, base)}
    return {name: [fmean(value[LEAD].values()), p.get(name)] for name, value in values.items()}


def cell(found: list[float | None]) -> str:
    """Render a value and whether it differs."""
    value, p = found
    return f"{value:.4f}{'*' if p is not None and p < 0.05 else ''}"


SECTIONS = [
    Section(
        91,
        "A second retriever beside the packaged one",
        "ensemble",
        "python benchmarks/run.py ensemble FOLDER --url URL",
        render,
    )
]
