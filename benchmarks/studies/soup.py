"""Between a retriever and DAM + REM, averaged in weight space: what does each share rank like?

    python benchmarks/run.py soup FOLDER [--form reduced|full] [--work DIR] [--sets A,B] [--json FILE]

FOLDER holds collections in BEIR layout. The source modules are trained first, from the packaged retriever: a
DAM by COCO on documents of `scale_open_en` (told by the prefixes of their ids; of no set that is asked), a
REM on the source's labels. They lie in DIR; an interrupted training goes on there. The encoder of a share s
is (1 - s) x the retriever + s x (DAM + REM), weight by weight (Wortsman et al. 2022, WiSE-FT). Ranking is
exact, over the relevant documents of a set's queries and some others; hybrid is BM25 and vectors by score
completion. p is of a paired t against the retriever. The settings stand in `conditions.toml`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import hybridr
from conditions import read_form, the_twelve
from hybridr.adaptation.starting_points import between
from hybridr.encoding.packaged import minilm
from hybridr.encoding.sentence_transformers import read_retriever
from hybridr.evaluation.evaluation import evaluate
from hybridr.evaluation.significance import compare_systems
from hybridr.files.atomic import replacing
from studies.methods import Collection, read_collection
from study import LEAD, Record, Section, add_collections, add_json, machine_of, measure_sets, table
from workshop import Encode, dense_run, encoded, hybrid_run, reporter

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
CORPUS = "scale_open_en"


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the form, and where the modules lie."""
    add_collections(parser, the_twelve())
    parser.add_argument("--form", default="reduced")
    parser.add_argument("--work", type=Path, default=Path("soup-work"), metavar="DIR")
    add_json(parser, "soup")


def measure(given: argparse.Namespace) -> None:
    """Train the modules, and measure every collection at every share; the file has each when it is done."""
    form = read_form("soup", given.form)
    encoders = encoders_of(given.folder, given.work, form)

    def measure_one(name: str) -> Record:
        return measured(
            encoders, read_collection(given.folder / name, form["queries"], form["documents"]), form
        )

    measure_sets(given, measure_one, {"form": given.form, **form})


def encoders_of(collections: Path, work: Path, form: Record) -> dict[float, Encode]:
    """Make the encoder of each share."""
    old = read_retriever(minilm(), max_tokens=form["max_tokens"])
    dam, rem = trained(collections, work, form)
    new = hybridr.assemble(dam, rem, pooling="mean", similarity="cosine").retriever()
    return {share: between(old, new, share) if share else old for share in SHARES}


def trained(collections: Path, work: Path, form: Record) -> tuple[Path, Path]:
    """Train DAM and REM where they are not yet, and give their folders."""
    from hybridr.adaptation.corpus import CorpusFile
    from hybridr.adaptation.dam import fit_dam
    from hybridr.adaptation.judged import read_judged_beir
    from hybridr.adaptation.rem import train_rem
    from hybridr.adaptation.settings import DamSettings, RemSettings

    file = source_documents(collections / CORPUS, work / "source.jsonl", form["parts"])
    about = DamSettings(base="minilm", out=work / "dam", **form["dam"])
    dam = fit_dam(CorpusFile(file), about, progress=reporter("dam")).folder
    labels = read_judged_beir(collections / form["source"])
    relevance = RemSettings(dam=str(dam), out=work / "rem", **form["rem"])
    return dam, train_rem(labels, relevance, progress=reporter("rem")).folder


def source_documents(folder: Path, file: Path, parts: list[str]) -> Path:
    """Write the documents whose ids begin with one of the prefixes, unless that was done."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        begins = tuple(f'{{"_id": "{part}:' for part in parts)
        with replacing(file) as new, (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
            new.write_text("".join(line for line in lines if line.startswith(begins)), encoding="utf-8")
    return file


def measured(encoders: dict[float, Encode], found: Collection, form: Record) -> Record:
    """Rank by every share; its values and p against the retriever, dense and hybrid."""
    corpus, queries = found.corpus, found.queries
    runs: dict[str, Record] = {"dense": {}, "hybrid": {}}
    for share, encoder in encoders.items():
        vectors = encoded(encoder, corpus, queries, form["max_tokens"])
        runs["dense"][str(share)] = dense_run(vectors, corpus, queries)
        runs["hybrid"][str(share)] = hybrid_run(vectors, corpus, queries)
    told: Record = {"documents": len(corpus), "queries": len(queries)}
    return told | {way: compared(by_share, found, str(SHARES[0])) for way, by_share in runs.items()}


def compared(runs: Record, found: Collection, base: str) -> Record:
    """Give the value of each run, and its p against that of `base`."""
    per_query = evaluate(runs, found.queries, found.qrels, [LEAD]).per_query
    values = {name: {LEAD: per[LEAD]} for name, per in per_query.items()}
    p = {one.system: one.p_value for one in compare_systems(values, base)}
    return {name: [fmean(value[LEAD].values()), p.get(name)] for name, value in values.items()}


def render(record: Record) -> str:
    """Render the curves: a table a way, collections by shares."""
    form = record["settings"]
    said = (
        f"{LEAD}; a star marks p < .05 against share 0, the packaged retriever (paired t, not corrected). "
        f"DAM: {steps_of(form['dam'])} documents; REM: {steps_of(form['rem'])} queries of "
        f"`{form['source']}`. "
        f"{machine_of(record['machine'])}."
    )
    return "\n\n".join([said, *(one_table(record["sets"], way) for way in ("dense", "hybrid"))])


def steps_of(stage: Record) -> str:
    """Say how long a module was trained."""
    return f"{stage['steps']} steps of {stage['batch_size']}"


def one_table(sets: Record, way: str) -> str:
    """Render the curve of each collection, and the mean."""
    curves = {name: [cell[0] for cell in one[way].values()] for name, one in sets.items()}
    rows = [[name, *map(cell, one[way].values())] for name, one in sets.items()]
    mean = ["mean", *(f"{fmean(column):.4f}" for column in zip(*curves.values(), strict=True))]
    return table([f"{way}, share of DAM + REM", *map(str, SHARES)], [*rows, mean])


def cell(found: list[float | None]) -> str:
    """Render a value and whether it differs."""
    value, p = found
    return f"{value:.4f}{'*' if p is not None and p < 0.05 else ''}"


SECTIONS = [
    Section(
        92,
        "Between the retriever and DAM with REM",
        "soup",
        "python benchmarks/run.py soup FOLDER",
        render,
    )
]
