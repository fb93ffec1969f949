"""Does one DAM serve all five rankers, searched in an index?

    python benchmarks/run.py rankers FOLDER [--form small] [--work DIR] [--sets A,B] [--json FILE]

FOLDER holds collections in BEIR layout; `--sets` names targets. Dense, uniCOIL, SPLADE, ColBERT and the
re-ranker each get one REM, trained on the source's labels with the source's DAM frozen. Every REM is then
joined with that DAM and with the target's, which has seen no label. All are exported and searched in an index
of the target: vectors and sparse weights rank alone, ColBERT and the re-ranker order the best 100 of BM25. A
target's DAM that serves its ranker is above the source's in its row. Backbone, DAMs and the dense REM are
those of the study `ddr`, taken from DIR where they are there already.
Zhan et al. 2022, sections 3.3 and 5.4.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import hybridr
from conditions import read_form
from hybridr.cluster.connection import Cluster
from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.formats import write_beir
from hybridr.files.local import read_manifest
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import Run
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from hybridr.training.rankers import export_joined
from paper import ROWS, Collection, Models, read_collection, seeded, with_backbone
from study import LEAD, RESULTS, Record, Section, add_training, machine_of, measure_sets, table

RANKERS = ("dense", "unicoil", "splade", "colbert", "rerank")
DAMS = ("source", "target")
INDICES = (("unicoil", "colbert"), ("splade", None))
"""The sparse ranker and the ranker of token vectors of each index: one has room for one of a kind."""
DEPTH = 100
ALONE = {"tuned": False, "signals": ("none",), "depth": DEPTH}
SIGNIFICANT = 0.05
HEAVY = 100.0
"""The largest weight of a re-ranker: beside it the score of BM25 breaks ties only."""


class Fitted(NamedTuple):
    """The five rankers joined with one DAM: their folders by name."""

    target: str
    dam: str
    folders: dict[str, Path]


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the form, where models lie, and the cluster."""
    add_training(parser, "ddr")
    parser.set_defaults(form="small", json=RESULTS / "rankers.json")
    parser.add_argument("--url")


def measure(given: argparse.Namespace) -> None:
    """Train and export what is not there, and measure every target; the file has each when it is done."""
    form = read_form("rankers", given.form)
    design = with_backbone(read_form("ddr", form["design"]), given)
    folder = given.work / form["design"] / f"seed-{form['seed']}"
    models = Models(given.folder, folder, seeded(design, form["seed"]))
    rems = {ranker: trained_rem(models, form, ranker) for ranker in RANKERS}
    steps = {ranker: read_manifest(Path(rem))["rem"]["steps"] for ranker, rem in rems.items()}
    cluster = hybridr.connect(given.url)
    given.sets = given.sets or form["targets"]

    def measure_target(target: str) -> Record:
        collection = read_collection(given.folder / target, design["queries"])
        judged = folder / "rankers" / target
        write_beir(judged, *collection)
        runs: dict[str, dict[str, Run]] = {ranker: {} for ranker in RANKERS}
        for dam in DAMS:
            fitted = exported(models, form, rems, target, dam)
            for ranker, run in ranked(cluster, judged, collection, fitted):
                runs[ranker][dam] = run
        words = Search(cluster, index_of(target), mode="lexical", settings=SearchSettings(**ALONE))
        return query_values(runs, words.run(collection.queries), collection)

    measure_sets(given, measure_target, {"form": given.form, **form, "steps": steps})


def trained_rem(models: Models, form: Record, ranker: str) -> str:
    """Train the REM of a ranker on the source's DAM, unless that was done; return its folder."""
    source = models.source_dam(form["objective"])
    if ranker == "dense":
        return models.learnt(ROWS[form["objective"]], source, "")
    return models.relevance(f"{ranker}-{form['objective']}", source, **form["rem"] | form[ranker])


def exported(models: Models, form: Record, rems: dict[str, str], target: str, dam: str) -> Fitted:
    """Join the REMs with the source's or the target's DAM and export them, unless that was done."""
    base = models.source_dam(form["objective"])
    if dam == "target":
        base = models.fitted(ROWS[form["objective"]], base, target)
    folders = {}
    for ranker, rem in rems.items():
        folders[ranker] = models.work / "rankers" / f"{ranker}-{Path(base).name}-{Path(rem).name[-8:]}"
        if read_manifest(folders[ranker]) is None:
            export_joined(base, rem, folders[ranker], ranker=ranker)
    return Fitted(target, dam, folders)


def index_of(target: str) -> str:
    """Return the name of the index of a target's documents."""
    return f"rankers-{target.replace('_', '-')}"


def ranked(
    cluster: Cluster, judged: Path, collection: Collection, fitted: Fitted
) -> Iterator[tuple[str, Run]]:
    """Write what the rankers make of the documents to indices; yield each ranker with its run."""
    name, folders = index_of(fitted.target), fitted.folders
    load(cluster, judged, LoadSettings(index=name))
    for sparse, tokens in INDICES:
        alias = f"{name}-{fitted.dam}-{sparse}"
        settings = ReindexSettings(
            alias=alias,
            sparse_encoder=folders[sparse],
            token_encoder=folders[tokens] if tokens else None,
        )
        reindex(cluster, name, folders["dense"], settings)
        searched = SearchSettings(**ALONE, sparse_encoder=folders[sparse])
        encoder = hybridr.load_encoder(folders["dense"])
        yield sparse, Search(cluster, alias, encoder, "sparse", settings=searched).run(collection.queries)
        if tokens is None:
            continue
        yield "dense", Search(cluster, alias, encoder, "dense", settings=searched).run(collection.queries)
        words = Search(cluster, alias, encoder, "lexical", settings=searched)
        own = {"token_encoder": folders[tokens], "token_weight": HEAVY, "token_candidates": DEPTH}
        yield tokens, words.reranked("tokens", **own).run(collection.queries)
        own = {"folder": folders["rerank"], "weight": HEAVY, "candidates": DEPTH}
        yield "rerank", words.reranked("cross", **own).run(collection.queries)


def query_values(runs: dict[str, dict[str, Run]], bm25: Run, collection: Collection) -> Record:
    """Return what each ranker reaches with either DAM, and p that the target's is no other."""
    values: Record = {"documents": len(collection.corpus), "queries": len(collection.queries)}
    lexical = evaluate({"bm25": bm25}, collection.queries, collection.qrels, [LEAD], resamples=1)
    values["bm25"] = round(lexical.systems["bm25"][LEAD], 4)
    for ranker, by_dam in runs.items():
        report = evaluate(by_dam, collection.queries, collection.qrels, [LEAD], baseline=DAMS[0])
        values[ranker] = {dam: round(report.systems[dam][LEAD], 4) for dam in DAMS}
        values[ranker]["p"] = round(report.comparisons[0].p_value, 5)
    return values


def render(record: Record) -> str:
    """Render a row a ranker: with the DAM of the source and of the target, on every target."""
    form, sets = record["settings"], record["sets"]
    rows = [["BM25", *row_of([values["bm25"] for values in sets.values()])]]
    for ranker in RANKERS:
        found = [values[ranker] for values in sets.values()]
        rows.append([f"{ranker}, source's DAM", *row_of([values["source"] for values in found])])
        shown = row_of([values["target"] for values in found])
        stars = ["*" * (values["p"] < SIGNIFICANT) for values in found]
        starred = [f"{cell}{star}" for cell, star in zip(shown, [*stars, ""], strict=True)]
        rows.append([f"{ranker}, target's DAM", *starred])
    steps = ", ".join(f"{ranker} {count:,}" for ranker, count in record["settings"]["steps"].items())
    said = (
        f"{LEAD}; a star marks p < {SIGNIFICANT} of the target's DAM against the source's (paired t, not "
        f"corrected). DAMs by {form['objective']}, seed {form['seed']}. Steps of the REMs: {steps}. "
        f"{machine_of(record['machine'])}."
    )
    heads = ["ranker", *(f"{name} ({values['queries']} queries)" for name, values in sets.items()), "mean"]
    return f"{said}\n\n{table(heads, rows)}"


def row_of(values: list[float]) -> list[str]:
    """Render the values of targets and their mean."""
    return [f"{value:.4f}" for value in [*values, mean(values)]]


SECTIONS = [
    Section(94, "The five rankers in an index", "rankers", "python benchmarks/run.py rankers FOLDER", render)
]
