"""DR versus DDR: what does separating domain and relevance do to a target that has no labels?

    python benchmarks/run.py ddr FOLDER [--form reduced|full] [--work DIR] [--sets A,B] [--json FILE]

FOLDER holds collections in BEIR layout; `--sets` names targets. The settings stand in `conditions.toml`.
Every step is a finished artifact in DIR: an interrupted benchmark goes on where it was. Ranking is exact,
over whole corpora.

Rows: `dr` trains the whole backbone on the source's labels; `ddr` fits a DAM to the target, starting from the
source DAM, and joins it with the REM trained on the source DAM; `ddr-si` starts it from the plain backbone
(without sequential initialisation); `ddr-df` takes a REM trained on the plain backbone (without
disentangled finetuning); `lora`, `parallel` and `both` are `ddr` with other REMs. Beside them `source`:
source DAM and REM, nothing fitted to the target; `as-is`: the backbone as it comes, where it is a
retriever already; `bm25`.
Zhan et al. 2022, sections 4 and 5.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import hybridr
from conditions import read_form
from hybridr import Document, Query
from hybridr.adaptation.settings import DamSettings, RemSettings
from hybridr.encoding.packaged import minilm
from hybridr.encoding.sentence_transformers import read_retriever
from hybridr.evaluation.bm25 import Bm25, best
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.atomic import write_json
from hybridr.files.formats import read_beir
from hybridr.files.manifest import versions
from hybridr.machine import read_cpu
from hybridr.records import Qrels, Run
from rankings import as_run
from study import LEAD, RESULTS, Record, Section, add_collections, machine_of, table

DEPTH, MEASURES = 100, [LEAD, "R@100"]
DESIGNS = {"lora": {"design": "lora"}, "parallel": {"design": "parallel"}, "both": {"design": "both"}}
Form: TypeAlias = dict[str, Any]
Encode: TypeAlias = Any


class Workshop:
    """Makes the models of a form in a folder, each of them once."""

    def __init__(self, collections: Path, work: Path, form: Form) -> None:
        self.collections, self.work, self.form = collections, work, form
        self.source: str = form["source"]
        backbone = form["backbone"]
        self.backbone = str(minilm()) if backbone == "minilm" else backbone
        self.seconds: dict[str, float] = {}

    def source_dam(self) -> str:
        """Fit the backbone to the source corpus."""
        return self.dam("source_dam", self.source, self.backbone, "dam-source")

    def target_dam(self, target: str, base: str, name: str) -> str:
        """Fit a DAM to a target corpus."""
        return self.dam("target_dam", target, base, f"{name}-{target}")

    def dam(self, stage: str, collection: str, base: str, name: str) -> str:
        """Train a DAM by masked-LM."""
        from hybridr.adaptation.corpus import CorpusFile
        from hybridr.adaptation.dam import fit_dam

        settings = DamSettings(base=base, out=self.work / name, **self.form[stage])
        corpus = CorpusFile(self.collections / collection, "beir")
        fit = fit_dam(corpus, settings, progress=reporter(name))
        self.seconds[name] = fit.seconds
        return str(fit.folder)

    def relevance(self, name: str, dam: str, stage: str = "rem", **changes: Any) -> str:
        """Train a REM (or with `full` all weights) on the source's labels."""
        from hybridr.adaptation.judged import read_judged_beir
        from hybridr.adaptation.rem import train_rem

        judged = read_judged_beir(self.collections / self.source)
        settings = RemSettings(dam=dam, out=self.work / name, **self.form[stage] | changes)
        trained = train_rem(judged, settings, progress=reporter(name))
        self.seconds[name] = trained.seconds
        return str(trained.folder)

    def encoder(self, row: str, target: str) -> Encode:
        """Make the encoder of a row for a target."""
        if row == "as-is":
            return read_retriever(self.backbone, max_tokens=self.form["max_tokens"])
        if row == "dr":
            return hybridr.assemble(self.relevance("dr", self.backbone, "dr", full=True))
        source = self.source_dam()
        rem = self.relevance("rem", source)
        if row == "source":
            return hybridr.assemble(source, rem)
        if row == "ddr-si":
            return hybridr.assemble(self.target_dam(target, self.backbone, "dam-si"), rem)
        if row == "ddr-df":
            rem = self.relevance("rem-df", self.backbone)
        elif row in DESIGNS and row != "lora":
            rem = self.relevance(f"rem-{row}", source, **DESIGNS[row])
        return hybridr.assemble(self.target_dam(target, source, "dam"), rem)


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the form, and what changes it."""
    add_collections(parser, [])
    parser.add_argument("--form", default="reduced")
    parser.add_argument("--work", type=Path, default=Path("ddr-work"), metavar="DIR")
    parser.add_argument("--backbone")
    parser.add_argument("--json", type=Path, metavar="FILE")


def measure(given: argparse.Namespace) -> None:
    """Run the rows of a form on its targets, write the JSON after each and print the table."""
    form = read_form(given.form)
    form |= {"backbone": given.backbone or form["backbone"], "targets": given.sets or form["targets"]}
    workshop = Workshop(given.folder, given.work / given.form, form)
    out = given.json or RESULTS / f"ddr-{given.form}.json"
    record = read_kept(out, form) or {
        "form": given.form,
        "settings": form,
        "machine": machine(),
        "versions": versions(),
        "targets": {},
        "training_s": {},
    }
    for target in form["targets"]:
        if target in record["targets"]:
            continue
        record["targets"][target] = measure_target(workshop, target)
        record["training_s"] |= workshop.seconds
        # After each target: an interrupted benchmark keeps what it measured.
        write_json(out, record)
    print(values_table(record))


def read_kept(file: Path, form: Form) -> dict[str, Any] | None:
    """Read what was measured before with the same settings, whatever the targets."""
    if not file.is_file():
        return None
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    same = record["settings"] | {"targets": form["targets"]} == form
    return record | {"settings": form} if same else None


def measure_target(workshop: Workshop, target: str) -> dict[str, Any]:
    """Rank one target by all rows and compare each with `dr`."""
    corpus, queries, qrels = read_beir(workshop.collections / target)
    queries = chosen(queries, qrels, workshop.form["queries"])
    runs = {"bm25": lexical_run(corpus, queries)}
    where = device()
    rows = ["source", *workshop.form["rows"]]
    if (Path(workshop.backbone) / "modules.json").is_file():
        rows.insert(0, "as-is")
    for row in rows:
        encoder = workshop.encoder(row, target)
        runs[row] = dense_run(encoder.to(where), corpus, queries, workshop.form["max_tokens"])
        print(f"{target}: {row} ranked", file=sys.stderr, flush=True)
    report = evaluate(runs, queries, qrels, MEASURES, baseline="dr")
    return {
        "documents": len(corpus),
        "queries": len(queries),
        "systems": report.systems,
        "against_dr": {
            one.system: {"difference": one.difference, "p": one.p_value, "p_holm": one.p_holm}
            for one in report.comparisons
            if one.measure == MEASURES[0]
        },
    }


def chosen(queries: list[Query], qrels: Qrels, most: int) -> list[Query]:
    """Keep the judged queries, a random choice of `most`."""
    judged = [query for query in queries if query.query_id in qrels]
    return random.Random(0).sample(judged, most) if len(judged) > most else judged


def lexical_run(corpus: list[Document], queries: list[Query]) -> Run:
    """Rank by BM25 (S-stemmer, k1 1.2, b 0.75)."""
    index = Bm25([document.contents for document in corpus])
    return as_run((index.search(query.text, DEPTH) for query in queries), corpus, queries)


def dense_run(encoder: Encode, corpus: list[Document], queries: list[Query], max_tokens: int) -> Run:
    """Rank exactly by the inner product of vectors."""
    texts, asked = [document.contents for document in corpus], [query.text for query in queries]
    limit = min(max_tokens, encoder.max_tokens)
    documents = encoder.encode_documents(texts, max_tokens=limit)
    scores = encoder.encode_queries(asked, max_tokens=limit) @ documents.T  # (queries, documents)
    shifted = scores - scores.min() + 1.0  # `best` keeps positive scores only; the order stays
    return as_run((best(row, DEPTH) for row in shifted), corpus, queries)


def reporter(name: str) -> Callable[..., None]:
    """Report long stages to the screen, a line every half minute."""
    last = [time.monotonic()]

    def report(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if time.monotonic() - last[0] > 30:
            last[0] = time.monotonic()
            print(f"{name}: {stage} {done}/{total or '?'} {note}", file=sys.stderr, flush=True)

    return report


def device() -> Any:
    """Choose where vectors are computed."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine() -> Record:
    """Describe where this runs."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "system": platform.system(),
        "cpu": read_cpu().model,
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


ROWS = {
    "bm25": "BM25",
    "as-is": "the backbone as it comes (a retriever)",
    "source": "source DAM + REM, nothing fitted to the target",
    "dr": "DR: all weights trained on the source's labels",
    "ddr": "DDR: target DAM + REM",
    "ddr-si": "DDR without sequential initialisation",
    "ddr-df": "DDR without disentangled finetuning",
    "lora": "DDR, REM of LoRA",
    "parallel": "DDR, REM of a parallel adapter",
    "both": "DDR, REM of both",
}
NOTE = """How to read it: every row but BM25 starts from MiniLM, and all trained ones lose against
MiniLM as it comes: so few labels and steps, by inner product, cost more than they
bring. A few hundred steps of masked-LM with a head that starts from nothing undo most
of what a retriever has learnt. Sequential initialisation helps (DDR above DDR without
it, on both); fitting the DAM to the target does not at this scale. The paper's regime,
100,000 steps on a masked-LM checkpoint, is another one: this table says nothing about
it."""


def render(record: Record) -> str:
    """Render DR versus DDR: rows by targets."""
    form = record["settings"]
    said = (
        f"Source `{form['source']}`, backbone {backbone_of(form)}. A star marks p < .05 against DR (paired "
        f"t, Holm over the rows). {machine_of(record['machine'])}."
    )
    note = [NOTE] if record["form"] == "reduced" else []
    return "\n\n".join([said, values_table(record), time_of(record), *note])


def values_table(record: Record) -> str:
    """Render the values alone."""
    targets: dict[str, Record] = record["targets"]
    names = list(dict.fromkeys(row for found in targets.values() for row in found["systems"]))
    header = [LEAD, *(f"{name} ({found['queries']:,} queries)" for name, found in targets.items())]
    return table(header, [[ROWS[name], *(cell(found, name) for found in targets.values())] for name in names])


def cell(found: Record, name: str) -> str:
    """Render one value."""
    star = "*" if found["against_dr"].get(name, {"p_holm": 1.0})["p_holm"] < 0.05 else ""
    return f"{found['systems'][name][LEAD]:.4f}{star}"


def backbone_of(form: Record) -> str:
    """Say what the backbone was."""
    if form["backbone"] != "minilm":
        return f"`{Path(form['backbone']).name}`"
    return "the packaged MiniLM with a masked-LM head tied to its embeddings"


def time_of(record: Record) -> str:
    """Say how long the trainings took."""
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in record["training_s"].items())
    return f"Training, by the clock: {seconds}."


MISSING = "Not run: no result is committed (the full form of DR versus DDR wants a GPU)."
SECTIONS = [
    Section(
        70,
        "DR versus DDR, reduced form",
        "ddr-reduced",
        "python benchmarks/run.py ddr FOLDER --form reduced",
        render,
    ),
    Section(
        80,
        "DR versus DDR, full form",
        "ddr-full",
        "python benchmarks/run.py ddr FOLDER --form full",
        render,
        MISSING,
    ),
]
