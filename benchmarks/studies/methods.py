"""DR, DDR, COCO, iDRO, MoDIR and BERM side by side: what is each worth on targets without labels?

    python benchmarks/run.py methods FOLDER [--form reduced|full] [--work DIR] [--sets A,B] [--json FILE]

FOLDER holds collections in BEIR layout; `--sets` names targets. The settings stand in `conditions.toml`.
Every model is a finished artifact in DIR, and every row of a target, with its seed, a file there: an
interrupted study goes on where it was. Ranking is exact, in the full form over whole corpora, in the reduced
one over the relevant documents of its queries and some others.

Rows: `dr` trains all weights of the backbone on the source's labels; `idro`, `modir` and `berm` are `dr` with
that method. `ddr` and `coco` fit a DAM to the source and from it one to the target, by masked-LM or COCO, and
join it with the REM trained on the source's; `coco-idro` trains that REM with iDRO. All learn relevance in
the same steps by the same loss. Beside them `as-is`: the backbone as it comes. Hybrid is BM25 and vectors by
score completion. Domain accuracy is that of MoDIR: how well a linear classifier tells source and target
apart by documents (or queries) that it has not seen; 0.5 not at all, 1 fully.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from conditions import read_form
from hybridr.evaluation.evaluation import evaluate
from hybridr.evaluation.significance import compare_systems
from hybridr.files.formats import read_beir
from hybridr.files.local import fingerprint, versions, write_json
from hybridr.records import Document, Qrels, Query
from hybridr.training.objectives.modir import domain_accuracy
from hybridr.training.rankers import assemble
from hybridr.training.torch_models import read_retriever
from rankings import cut
from study import LEAD, RESULTS, Record, Section, add_training, kept, machine_of, table, write_result
from workshop import (
    Encode,
    Workshop,
    backbone_of,
    chosen,
    dense_run,
    device,
    encoded,
    hybrid_run,
    machine,
    time_of,
)

SAMPLE = 256  # documents and queries of either domain
WAYS = ("dense", "hybrid")


class Method(NamedTuple):
    """How a row comes to its encoder."""

    name: str
    domain: str | None = None
    """The objective of its DAMs; None: there is none, and all weights learn relevance."""
    relevance: Mapping[str, Any] = {}
    invariant: bool = False
    """Whether the target takes part in that (MoDIR)."""


METHODS = {
    "as-is": Method("the backbone as it comes (a retriever)"),
    "dr": Method("DR: all weights trained on the source's labels"),
    "ddr": Method("DDR: DAM by masked-LM + REM", "mlm"),
    "coco": Method("COCO: DAM by COCO + REM", "coco"),
    "coco-idro": Method("COCO + iDRO: DAM by COCO + REM by iDRO", "coco", {"method": "idro"}),
    "idro": Method("DR with iDRO", None, {"method": "idro"}),
    "modir": Method("DR with MoDIR", None, invariant=True),
    "berm": Method("DR with BERM", None, {"method": "berm"}),
}


class Collection(NamedTuple):
    """Documents, and the queries that are asked of them."""

    corpus: list[Document]
    queries: list[Query]
    qrels: Qrels


class Rows(Workshop):
    """The encoders of all rows, by one seed."""

    def encoder(self, row: str, target: str) -> Encode:
        """Make the encoder of a row for a target."""
        method = METHODS[row]
        if row == "as-is":
            return read_retriever(self.backbone, max_tokens=self.form["max_tokens"])
        if method.domain is None:
            name = f"{row}-{target}" if method.invariant else row
            domain = self.domain(target) if method.invariant else None
            changes = {"full": True, **method.relevance}
            return assemble(self.relevance(name, self.backbone, "dr", domain, **changes))
        dams = {"objective": method.domain}
        source = self.dam("source_dam", self.source, self.backbone, f"{method.domain}-source", **dams)
        rem = self.relevance(f"rem-{row}", source, **method.relevance)
        fitted = self.dam("target_dam", target, source, f"{method.domain}-{target}", **dams)
        return assemble(fitted, rem)

    def domain(self, target: str) -> Any:
        """Read what MoDIR sees of a target: its documents, and queries made from them."""
        from hybridr.relevance.corpus import CorpusFile, read_target

        return read_target(target, CorpusFile(self.collections / target))


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the form, and what changes it."""
    add_training(parser, "methods")


def measure(given: argparse.Namespace) -> None:
    """Run the rows of a form on its targets, write the JSON after each and print the tables."""
    form = read_form("methods", given.form)
    form |= {"backbone": given.backbone or form["backbone"], "targets": given.sets or form["targets"]}
    out = given.json or RESULTS / f"methods-{given.form}.json"
    known = {"form": given.form, "settings": form, "machine": machine(), "versions": versions()}
    record = kept(out, form) or known | {"targets": {}, "training_s": {}}
    source = read_collection(given.folder / form["source"], SAMPLE, SAMPLE, "train")
    for target in form["targets"]:
        collection = read_collection(given.folder / target, form["queries"], form.get("documents"))
        found: dict[str, list[Record]] = {}
        for row in rows_of(form):
            found[row] = [
                measured(given, form | {"seed": seed}, (row, target), source, collection)
                for seed in form["seeds"]
            ]
            for one in found[row]:
                record["training_s"] |= one["training_s"]
            record["targets"][target] = summary(collection, found)
            write_result(out, record)
    print(tables(record))


def rows_of(form: Record) -> list[str]:
    """Name the rows; the backbone itself only where it is a retriever."""
    retriever = form["backbone"] == "minilm" or (Path(form["backbone"]) / "modules.json").is_file()
    return [row for row in form["rows"] if retriever or row != "as-is"]


def read_collection(
    folder: Path, queries: int, documents: int | None = None, split: str = "test"
) -> Collection:
    """Read a collection; of many queries some, and of many documents theirs and some others."""
    corpus, found, qrels = read_beir(folder, split)
    return Collection(
        *cut(corpus, chosen(found, qrels, queries), qrels, most=queries, documents=documents), qrels
    )


def measured(
    given: argparse.Namespace, form: Record, place: tuple[str, str], source: Collection, target: Collection
) -> Record:
    """Measure a row on a target by a seed, or read what was measured before with the same settings."""
    work = given.work / given.form / f"seed-{form['seed']}"
    key = fingerprint(form | {"targets": None, "seeds": None, "rows": None})
    file = work / "rows" / f"{'-'.join(place)}.json"
    found: Record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if found.get("key") == key:
        return found
    workshop = Rows(given.folder, work, seeded(form))
    encoder = workshop.encoder(*place).to(device())
    found = {"key": key, **query_values(encoder, form["max_tokens"], source, target)}
    found["training_s"] = {f"{name} ({form['seed']})": one for name, one in workshop.seconds.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, found)
    print(f"{place[1]}: {place[0]} ranked", file=sys.stderr, flush=True)
    return found


def seeded(form: Record) -> Record:
    """Give every training the seed."""
    stages = ("source_dam", "target_dam", "rem", "dr")
    return form | {stage: form[stage] | {"seed": form["seed"]} for stage in stages}


def query_values(encoder: Encode, limit: int, source: Collection, target: Collection) -> Record:
    """Rank, and tell the domains apart; values by query, and two accuracies."""
    vectors = encoded(encoder, target.corpus, target.queries, limit)
    ways: dict[str, Callable[..., Any]] = {"dense": dense_run, "hybrid": hybrid_run}
    runs = {name: way(vectors, target.corpus, target.queries) for name, way in ways.items()}
    report = evaluate(runs, target.queries, target.qrels, [LEAD])
    ours = encoded(encoder, source.corpus, source.queries, limit)
    step = max(1, len(target.corpus) // SAMPLE)
    groups = [(ours.queries, vectors.queries[:SAMPLE]), (ours.documents, vectors.documents[::step][:SAMPLE])]
    accuracy = domain_accuracy(groups, seed=0)
    values = {name: report.per_query[name][LEAD] for name in WAYS}
    return {"values": values, "accuracy": dict(zip(("queries", "documents"), accuracy, strict=True))}


def summary(collection: Collection, found: Mapping[str, list[Record]]) -> Record:
    """Average over seeds and queries; p of each row against `dr`, by means over the seeds, Holm corrected."""
    rows: dict[str, Record] = {row: {} for row in found}
    for row, runs in found.items():
        for side in ("queries", "documents"):
            rows[row][f"accuracy_{side}"] = fmean(one["accuracy"][side] for one in runs)
    for way in WAYS:
        values = {row: {LEAD: averaged([one["values"][way] for one in runs])} for row, runs in found.items()}
        for row in found:
            rows[row][way] = fmean(values[row][LEAD].values())
        if "dr" in values:
            for one in compare_systems(values, "dr"):
                rows[one.system][f"{way}_p_holm"] = one.p_holm
    return {"documents": len(collection.corpus), "queries": len(collection.queries), "rows": rows}


def averaged(runs: list[dict[str, float]]) -> dict[str, float]:
    """Average each query's value over the seeds."""
    return {query: fmean(one[query] for one in runs) for query in runs[0]}


def render(record: Record) -> str:
    """Render what each method is worth: dense, hybrid and domain accuracy, rows by targets."""
    form = record["settings"]
    steps = ", ".join(f"{form[stage]['steps']} {what}" for stage, what in STAGES.items())
    said = (
        f"Source `{form['source']}`, backbone {backbone_of(form)}. Steps: {steps}; batches of "
        f"{form['dr']['batch_size']} queries. {ranked_of(record)}"
        f"Seeds: {len(form['seeds'])}. A star marks p < .05 against DR "
        f"(paired t, Holm over the rows). {machine_of(record['machine'])}."
    )
    note = [NOTES[record["form"]]] if record["form"] in NOTES else []
    return "\n\n".join([said, tables(record), time_of(record), *note])


def ranked_of(record: Record) -> str:
    """Say which documents were ranked, where that was not all."""
    found = ", ".join(f"{name} {one['documents']:,}" for name, one in record["targets"].items())
    return f"Documents that were ranked: {found}. " if "documents" in record["settings"] else ""


def tables(record: Record) -> str:
    """Render the values alone."""
    return "\n\n".join(one_table(record, *shown) for shown in SHOWN.items())


def one_table(record: Record, key: str, title: str) -> str:
    """Render one kind of value; an interrupted study says what is not run."""
    form, targets = record["settings"], record["targets"]
    header = [title, *(heading(name, targets.get(name)) for name in form["targets"])]
    found = [targets[name]["rows"] if name in targets else {} for name in form["targets"]]
    return table(
        header, [[METHODS[row].name, *(cell(rows, row, key) for rows in found)] for row in form["rows"]]
    )


def heading(target: str, found: Record | None) -> str:
    """Name a target, with how many queries were asked of it."""
    return f"{target} ({found['queries']:,} queries)" if found else target


def cell(rows: Record, row: str, key: str) -> str:
    """Render one value."""
    if row not in rows:
        return "not run"
    star = "*" if rows[row].get(f"{key}_p_holm", 1.0) < 0.05 else ""
    return f"{rows[row][key]:.4f}{star}"


STAGES = {"source_dam": "of a source DAM", "target_dam": "of a target DAM", "rem": "of a REM", "dr": "of DR"}
SHOWN = {
    "dense": f"{LEAD}, dense",
    "hybrid": f"{LEAD}, hybrid",
    "accuracy_documents": "domain accuracy, documents",
    "accuracy_queries": "domain accuracy, queries",
}
NOTE = """How to read it: each training had thirty steps and one seed. There were a hundred queries and
parts of collections, on four cores that other programs shared (load 16 to 22). REMs learn at 1e-3, all
weights of DR at 5e-5. The table shows that the rows run, and in which direction they first move a
web-trained retriever. It says nothing about the papers' regime, nor yet about which method wins. The run
was stopped by a time limit: the same command with the same --work runs what is "not run"."""
FULL_NOTE = """How to read it: twenty minutes of the GPU were enough for one seed and two of the eight
targets of the form. Three trainings ran on it at a time, so their seconds are those of a third of a GPU.
The queries of both targets are like the source's (SQuAD's questions, of other texts). There COCO's DAM
with a REM of the source's labels ranks better than the unchanged packaged retriever. Dense search gains
+.025 (p .007) and +.036 (p 2e-5), hybrid +.012 (p .07) and +.023 (p 1e-5; paired t, not corrected). DR,
with the same labels in one model, ranks below MiniLM in dense search. MoDIR and BERM lose at these
settings. The gain on other kinds of questions is unknown."""
NOTES = {"reduced": NOTE, "full": FULL_NOTE}
MISSING = "Not run: no result is committed (the full form needs a GPU)."
SECTIONS = [
    Section(
        82,
        "Methods of training, reduced form",
        "methods-reduced",
        "python benchmarks/run.py methods FOLDER --form reduced",
        render,
    ),
    Section(
        84,
        "Methods of training, full form",
        "methods-full",
        "python benchmarks/run.py methods FOLDER --form full",
        render,
        MISSING,
    ),
]
