"""Do all five rankers go the whole way, and what does each rank like in an index?

    python benchmarks/run.py rankers FOLDER [--form reduced] [--work DIR] [--sets A,B] [--json FILE]

FOLDER holds collections in BEIR layout. Dense, uniCOIL, SPLADE, ColBERT and the re-ranker are trained on the
source's labels from the packaged retriever (SPLADE from a DAM of it, which has the masked-LM head it needs)
and exported to folders in DIR, each once. Every set is cut to its judged queries and some documents, loaded,
and gets two indices: the packaged vectors with uniCOIL's weights and ColBERT's token vectors, and the trained
dense vectors with SPLADE's weights. Systems are asked as `evaluate` asks them, p is of a paired t against the
hybrid of the same index, and `tune` looks for a chain of the re-rankers by the same queries, nested.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import hybridr
from conditions import read_form
from hybridr.cluster.connection import Cluster
from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.encoders.export.packaged_models import minilm
from hybridr.encoders.graph_folders import PairScorer
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.files.formats import read_beir, write_beir
from hybridr.files.local import read_manifest, replacing
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.relevance.corpus import CorpusFile
from hybridr.relevance.settings import TuneSettings
from hybridr.relevance.tuning import tune
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from hybridr.search.systems import Compared, evaluate_index
from hybridr.training.dam import fit_dam
from hybridr.training.judged import read_judged_beir
from hybridr.training.rankers import export_joined
from hybridr.training.rem import train_rem
from hybridr.training.settings import DamSettings, RemSettings
from studies.methods import read_collection
from study import LEAD, Record, Section, add_collections, add_json, machine_of, measure_sets, table
from workshop import reporter

CORPUS = "scale_open_en"
SETS = ("cranfield", "fiqa_mini", "scifact")
RANKERS = ("dense", "unicoil", "splade", "colbert", "rerank")
UNHURRIED_S, TIMED = 600.0, 10
CHAIN = ("tokens", "cross")


class Side(NamedTuple):
    """One of the indices: which rankers wrote it, and the systems that are asked."""

    name: str
    dense: str | None
    sparse: str
    tokens: str | None
    systems: tuple[str, ...]


SIDES = (
    Side(
        "packaged",
        None,
        "unicoil",
        "colbert",
        ("bm25", "dense", "hybrid", "sparse", "hybrid+tokens", "hybrid+cross", "hybrid+tokens+cross"),
    ),
    Side("trained", "dense", "splade", None, ("dense", "hybrid", "sparse")),
)


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the form, where the rankers lie, and the cluster."""
    add_collections(parser, SETS)
    parser.add_argument("--form", default="reduced")
    parser.add_argument("--work", type=Path, default=Path("rankers-work"), metavar="DIR")
    parser.add_argument("--url")
    add_json(parser, "rankers")


def measure(given: argparse.Namespace) -> None:
    """Train and export what is not there, and measure every set; the file has each when it is done."""
    form = read_form("rankers", given.form)
    encoders = {ranker: exported(given.folder, given.work, form, ranker) for ranker in RANKERS}
    trainings = {}
    for ranker in RANKERS:
        told = (read_manifest(given.work / ranker) or {})["settings"]
        trainings[ranker] = {name: told[name] for name in ("steps", "batch_size", "learning_rate")}
    cluster = hybridr.connect(given.url)

    def measure_one(name: str) -> Record:
        folder = set_of(given.folder / name, given.work / "sets" / name, form)
        return measured(cluster, folder, name.replace("_", "-"), encoders)

    measure_sets(given, measure_one, {"form": given.form, **form, "trained": trainings})


def exported(collections: Path, work: Path, form: Record, ranker: str) -> Path:
    """Train a ranker and export it, unless that was done; give the folder."""
    made, dam = work / f"{ranker}-encoder", dam_of(collections, work, form, ranker)
    if not (work / ranker / "manifest.json").is_file():
        settings = RemSettings(
            dam=dam, out=work / ranker, ranker=ranker, **form["rem"] | form.get(ranker, {})
        )
        labels = read_judged_beir(collections / form["source"])
        train_rem(labels, settings, progress=reporter(ranker))
    if not (made / "manifest.json").is_file():
        usage = {"pooling": "mean", "similarity": "cosine"} if ranker == "dense" else {}
        export_joined(dam, work / ranker, made, ranker=ranker, **usage)
    return made


def dam_of(collections: Path, work: Path, form: Record, ranker: str) -> str:
    """Give the backbone of a ranker: the packaged retriever, for SPLADE with a head that was trained."""
    if ranker != "splade":
        return str(minilm())
    if not (work / "dam" / "manifest.json").is_file():
        file = source_documents(collections / CORPUS, work / "source.jsonl", form["parts"])
        settings = DamSettings(base="minilm", out=work / "dam", **form["dam"])
        fit_dam(CorpusFile(file), settings, progress=reporter("dam"))
    return str(work / "dam")


def set_of(source: Path, folder: Path, form: Record) -> Path:
    """Write the cut of a set as a BEIR folder."""
    corpus, queries, qrels = read_collection(source, form["queries"], form["documents"])
    held = {one.doc_id for one in corpus}
    asked = {one.query_id for one in queries}
    cut = {
        query: {doc: grade for doc, grade in grades.items() if doc in held}
        for query, grades in qrels.items()
        if query in asked
    }
    write_beir(folder, corpus, queries, cut)
    return folder


def measured(cluster: Cluster, folder: Path, name: str, encoders: dict[str, Path]) -> Record:
    """Fill both indices of a set, and ask every system of each."""
    index = f"rankers-{name}"
    found: Record = {"documents": load(cluster, folder, LoadSettings(index=index)).documents}
    for side in SIDES:
        encoder = encoders[side.dense] if side.dense else minilm_encoder()
        wanted = ReindexSettings(
            alias=f"{index}-{side.name}",
            sparse_encoder=encoders[side.sparse],
            token_encoder=encoders[side.tokens] if side.tokens else None,
        )
        reindex(cluster, index, encoder, wanted)
        found[side.name] = asked(cluster, f"{index}-{side.name}", folder, encoder, side, encoders)
    found["ms"] = timed(cluster, f"{index}-{SIDES[0].name}", folder, encoders["rerank"])
    return found


def timed(cluster: Cluster, alias: str, folder: Path, scorer: Path) -> Record:
    """Ask in turns, the first in rotation: what re-rankers add to a hybrid search, medians in ms.

    `forward` is the cross-encoder alone over the same 20 pairs, `ratio` the median of what it adds to a
    search over that, `more` that of what token vectors add.
    """
    model, settings = hybridr.load_encoder(minilm_encoder()), SearchSettings(tuned=False)
    hybrid = Search(cluster, alias, model, settings=settings)
    pairs_of = PairScorer(scorer)
    own = {"folder": scorer, "budget_s": UNHURRIED_S}
    ways: dict[str, Any] = {
        "hybrid": hybrid,
        "tokens": hybrid.reranked("tokens"),
        "cross": hybrid.reranked("cross", **own),
    }
    took: list[dict[str, float]] = []
    documents, queries, _ = read_beir(folder)
    contents = {one.doc_id: one.contents for one in documents}
    for number, query in enumerate(queries[:TIMED]):
        pairs = [(query.text, contents[hit.doc_id]) for hit in hybrid(query.text, 20)]
        calls = [(name, partial(way, query.text, 10)) for name, way in ways.items()]
        calls.append(("forward", partial(pairs_of.score, pairs)))
        turn = number % len(calls)
        took.append({name: milliseconds(call) for name, call in [*calls[turn:], *calls[:turn]]})
    told: Record = {name: round(median(one[name] for one in took), 1) for name in took[0]}
    ratio = median((one["cross"] - one["hybrid"]) / one["forward"] for one in took)
    more = median(one["tokens"] - one["hybrid"] for one in took)
    return told | {"ratio": round(ratio, 2), "more": round(more, 1), "load": round(os.getloadavg()[0], 1)}


def milliseconds(call: Callable[[], Any]) -> float:
    """Time a call."""
    begun = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begun)


def asked(
    cluster: Cluster, alias: str, folder: Path, encoder: Path, side: Side, encoders: dict[str, Path]
) -> Record:
    """Evaluate the systems of a side, and tune a chain where it has token vectors."""
    own: dict[str, Any] = {"folder": encoders["rerank"], "budget_s": UNHURRIED_S} if side.tokens else {}
    settings = SearchSettings(tuned=False, rerank_settings=own)
    compared = Compared(side.systems, measures=[LEAD], baseline="hybrid")
    found = evaluate_index(
        cluster, alias, judged := JudgedQueries(folder), compared, encoder=encoder, settings=settings
    )
    p = {one.system: one.p_value for one in found.comparisons}
    told: Record = {one: [values[LEAD], p.get(one)] for one, values in found.systems.items()}
    told["queries"] = found.queries
    if side.tokens:
        searched = SearchSettings(rerank=CHAIN, rerank_settings=own)
        chain = tune(
            cluster, alias, judged.read(), encoder=encoder, settings=TuneSettings(), search=searched
        ).chain
        told["chain"] = [str(chain.chosen), chain.gain, chain.low, chain.applied] if chain else None
    return told


def render(record: Record) -> str:
    """Render a row a set: the systems of both indices, and what `tune` found."""
    form = record["settings"]
    trained = ", ".join(
        f"{name} {one['steps']} steps of {one['batch_size']}" for name, one in form["trained"].items()
    )
    said = (
        f"{LEAD} over at most {form['documents']:,} documents beside the judged ones; a star marks p < .05 "
        f"against the hybrid of the same index (paired t, not corrected). Trained on `{form['source']}`, "
        f"batches of queries: {trained}. {machine_of(record['machine'])}."
    )
    heads = [
        "set",
        "documents",
        "queries",
        *(f"{side.name}: {one}" for side in SIDES for one in side.systems),
    ]
    rows = [row_of(name, one) for name, one in record["sets"].items()]
    chains = [[name, *chain_of(one["packaged"]["chain"])] for name, one in record["sets"].items()]
    found = table(["set", "chain by `tune`", "gain on others", "from", "kept"], chains)
    names = ("hybrid", "tokens", "more", "cross", "forward", "ratio", "load")
    times = [[name, *(f"{one['ms'][part]:g}" for part in names)] for name, one in record["sets"].items()]
    shown = ("hybrid", "+tokens", "more by", "+cross", "the model alone", "added / alone", "load")
    cost = f"Medians in ms over {TIMED} queries, in turns.\n\n{table(['set', *shown], times)}"
    return f"{said}\n\n{table(heads, rows)}\n\n{found}\n\n{cost}"


def row_of(name: str, one: Record) -> list[str]:
    """Render a set's values."""
    cells = [one[side.name][system] for side in SIDES for system in side.systems]
    values = [f"{value:.4f}{'*' * (p is not None and p < 0.05)}" for value, p in cells]
    return [name, f"{one['documents']:,}", f"{one['packaged']['queries']:,}", *values]


def chain_of(found: list[Any] | None) -> list[str]:
    """Render what `tune` chose."""
    if not found:
        return ["", "", "", ""]
    chosen, gain, low, kept = found
    return [chosen, f"{gain:+.4f}", f"{low:+.4f}", "yes" if kept else "no"]


def source_documents(folder: Path, file: Path, parts: list[str]) -> Path:
    """Write the documents whose ids begin with one of the prefixes, unless that was done."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        begins = tuple(f'{{"_id": "{part}:' for part in parts)
        with replacing(file) as new, (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
            new.write_text("".join(line for line in lines if line.startswith(begins)), encoding="utf-8")
    return file


SECTIONS = [
    Section(94, "The five rankers in an index", "rankers", "python benchmarks/run.py rankers FOLDER", render)
]
