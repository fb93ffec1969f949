"""What does a second retriever beside the packaged one bring, by share and components?

    python benchmarks/run.py ensemble FOLDER --url URL [--work DIR] [--sets A,B] [--json FILE]

FOLDER holds collections in BEIR layout; each is ranked whole, by at most 500 of its queries. First exactly,
in this process, by vectors and by the hybrid of BM25 and vectors (score completion): for each share of
e5-small-v2 beside all-MiniLM-L6-v2, and for all dimensions of both, 384 and 256 components of the documents.
Then on the cluster at URL as a user has it: `reindex` and `Search`, unadapted and with the share and the
components that `adapt` takes, by vectors, by words and vectors alone, and with the signals that are on by
default. Vectors of documents and the encoders are kept in DIR: to encode them is nearly all of the work. p is
of a paired t against the packaged retriever. Shares were compared on the five sets that stand first.
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
from hybridr.encoders.adapters.ensemble import Ensemble, kept_dimensions
from hybridr.encoders.export.exporting import export, minilm_encoder, opened_encoder, second_retriever
from hybridr.encoders.export.packaged_models import minilm
from hybridr.encoders.export.weights import NumpyBiEncoder, fitted, open_without_torch
from hybridr.encoders.opening import OnnxEncoder
from hybridr.evaluation.evaluation import evaluate
from hybridr.evaluation.significance import compare_systems
from hybridr.indexing.reindexing import reindex
from hybridr.records import Run
from hybridr.search.settings import SearchSettings
from studies.methods import Collection, read_collection
from study import LEAD, Record, Section, add_collections, add_json, machine_of, measure_sets, table
from workshop import Vectors, dense_run, hybrid_run

SHARES, DIMS, QUERIES, FITTED = (0.2, 0.3, 0.4), (768, 384, 256), 500, 1_800
BASE, ADAPTED = "packaged", "ensemble"
WAYS = {
    "dense": ("dense", ("none",)),
    "words and vectors": ("hybrid", ("none",)),
    "hybrid": ("hybrid", ("auto",)),
}
CHOSEN_ON = ("cranfield", "npl", "fiqa_mini", "tldr_cmd", "squadshifts_amazon")


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
            **exact(found, both),
            "product": through_product(cluster, given, name, found, both),
        }

    measure_sets(given, measure_one, {"queries": QUERIES, "fitted": FITTED})


@cache
def retriever(which: str) -> NumpyBiEncoder:
    """Open one of the two."""
    return open_without_torch(minilm()) if which == "first" else second_retriever("e5-small-v2")


def vectors_of(which: str, name: str, found: Collection, folder: Path) -> Vectors:
    """Encode a collection by one of the two, once."""
    file = folder / f"{name}-{which}.npz"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        encoder = opened_encoder(retriever(which))
        texts = [document.contents for document in found.corpus], [query.text for query in found.queries]
        documents = encoder.encode_documents(texts[0], max_tokens=256)
        np.savez(file, documents=documents, queries=encoder.encode_queries(texts[1]))
    kept = np.load(file)
    return Vectors(kept["documents"], kept["queries"])


def exact(found: Collection, both: dict[str, Vectors]) -> Record:
    """Rank by every share and number of components: values and p, dense and hybrid."""
    systems = {BASE: both["first"]}
    for share in SHARES:
        for dim in DIMS:
            joined = fit(both, share, dim)
            pairs = zip(both["first"], both["second"], strict=True)
            systems[f"{share:g}, {dim}"] = Vectors(*(joined.joined(*pair) for pair in pairs))
    ranked: dict[str, Any] = {"dense": dense_run, "hybrid": hybrid_run}
    return {
        way: compared(
            {name: rank(one, found.corpus, found.queries) for name, one in systems.items()}, found, BASE
        )
        for way, rank in ranked.items()
    }


def fit(both: dict[str, Vectors], share: float, dim: int) -> Any:
    """Join the two as `adapt` does, by as many documents of a collection."""
    some = np.random.default_rng(13).permutation(len(both["first"].documents))[:FITTED]
    vectors = both["first"].documents[some], both["second"].documents[some]
    return fitted(retriever("first"), retriever("second"), vectors, share, dim)


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
    joined, folder = fit(both, Ensemble.strength, dim), given.work / f"{name}-encoder"
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
    said = (
        f"{LEAD}, at most {QUERIES} queries; a star marks p < .05 against the packaged retriever (paired t, "
        f"not corrected). {machine_of(record['machine'])}."
    )
    rows = [[name, *of_product(one)] for name, one in sets.items()]
    means = [
        "mean",
        *(f"{fmean(column):.4f}" for column in zip(*(values(one) for one in sets.values()), strict=True)),
    ]
    heads = ["", *(f"{way}, {name}" for way in WAYS for name in (BASE, ADAPTED))]
    return "\n\n".join([said, table(heads, [*rows, means]), curve(sets)])


def of_product(one: Record) -> list[str]:
    """Render the six values of a set."""
    return [cell(one["product"][way][name]) for way in WAYS for name in (BASE, ADAPTED)]


def values(one: Record) -> list[float]:
    """Give the six values of a set."""
    return [one["product"][way][name][0] for way in WAYS for name in (BASE, ADAPTED)]


def curve(sets: Record) -> str:
    """Render the mean change by share and components, of the sets it was chosen on and of the others."""
    names = [name for name in next(iter(sets.values()))["dense"] if name != BASE]
    parts: dict[str, list[Record]] = {"chosen on": [], "others": []}
    for name, one in sets.items():
        parts["chosen on" if name in CHOSEN_ON else "others"].append(one)
    rows = [
        [name, *(change(part, way, name) for way in ("dense", "hybrid") for part in parts.values())]
        for name in names
    ]
    heads = [f"{way}, {part}" for way in ("dense", "hybrid") for part in parts]
    return table(["share, components: exact, in this process", *heads], rows)


def change(sets: list[Record], way: str, name: str) -> str:
    """Render a mean change, and on how many sets it is one to the better."""
    changes = [one[way][name][0] - one[way][BASE][0] for one in sets]
    return f"{fmean(changes):+.4f} ({sum(one > 0 for one in changes)}/{len(changes)})" if changes else ""


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
