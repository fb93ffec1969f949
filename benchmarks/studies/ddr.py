"""DR versus DDR: what does separating domain and relevance do to a target that has no labels?

    python benchmarks/run.py ddr FOLDER [--form small|reduced|full] [--work DIR] [--sets A,B] [--json FILE]

FOLDER holds collections in BEIR layout; `--sets` names targets. The settings stand in `conditions.toml`.
Every step is a finished artifact in DIR: an interrupted benchmark goes on where it was. Ranking is exact,
over whole corpora.

Rows: `dr` trains the whole backbone on the source's labels; `ddr` fits a DAM to the target, starting from the
source DAM, and joins it with the REM trained on the source DAM; `ddr-si` starts it from the plain backbone
(without sequential initialisation); `ddr-df` takes a REM trained on the plain backbone (without
disentangled finetuning); `lora`, `parallel` and `both` are `ddr` with other REMs. Beside them `source`:
source DAM and REM, nothing fitted to the target; `as-is`: the backbone as it comes, where it is a
retriever already; `bm25`. The form `small` has more rows, on more targets and by several seeds (`paper.py`):
--json is a folder there, with a file for each target, and what it has is not trained again. Pieces of half an
hour: `timeout --signal INT 30m` before the command, which goes on where it was. `--jobs N` works
on N models at once, which keeps a GPU busy.
Zhan et al. 2022, sections 4 and 5.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import paper
import paper_tables
from conditions import read_form
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.formats import read_beir
from hybridr.files.local import versions
from hybridr.training.rankers import assemble
from hybridr.training.torch_models import read_retriever
from study import LEAD, RESULTS, Picture, Record, Section, add_training, machine_of, table, write_result
from workshop import (
    Encode,
    Form,
    Workshop,
    backbone_of,
    chosen,
    dense_run,
    device,
    encoded,
    lexical_run,
    machine,
    time_of,
)

MEASURES = [LEAD, "R@100"]
DESIGNS = {"lora": {"design": "lora"}, "parallel": {"design": "parallel"}, "both": {"design": "both"}}


class Rows(Workshop):
    """The models of DR and DDR."""

    def source_dam(self) -> str:
        """Fit the backbone to the source corpus."""
        return self.dam("source_dam", self.source, self.backbone, "dam-source")

    def target_dam(self, target: str, base: str, name: str) -> str:
        """Fit a DAM to a target corpus."""
        return self.dam("target_dam", target, base, f"{name}-{target}")

    def encoder(self, row: str, target: str) -> Encode:
        """Make the encoder of a row for a target."""
        if row == "as-is":
            return read_retriever(self.backbone, max_tokens=self.form["max_tokens"])
        if row == "dr":
            return assemble(self.relevance("dr", self.backbone, "dr", full=True))
        source = self.source_dam()
        rem = self.relevance("rem", source)
        if row == "source":
            return assemble(source, rem)
        if row == "ddr-si":
            return assemble(self.target_dam(target, self.backbone, "dam-si"), rem)
        if row == "ddr-df":
            rem = self.relevance("rem-df", self.backbone)
        elif row in DESIGNS and row != "lora":
            rem = self.relevance(f"rem-{row}", source, **DESIGNS[row])
        return assemble(self.target_dam(target, source, "dam"), rem)


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the form, and what changes it."""
    add_training(parser, "ddr")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, of the form `small`")


def measure(given: argparse.Namespace) -> int:
    """Run the rows of a form on its targets, write the JSON after each and print the table."""
    form = read_form("ddr", given.form)
    if "seeds" in form:
        return paper.measure(given, form)
    form |= {"backbone": given.backbone or form["backbone"], "targets": given.sets or form["targets"]}
    workshop = Rows(given.folder, given.work / given.form, form)
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
        write_result(out, record)
    print(values_table(record))
    return 0


def read_kept(file: Path, form: Form) -> dict[str, Any] | None:
    """Read what was measured before with the same settings, whatever the targets."""
    if not file.is_file():
        return None
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    same = record["settings"] | {"targets": form["targets"]} == form
    return record | {"settings": form} if same else None


def measure_target(workshop: Rows, target: str) -> dict[str, Any]:
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
        vectors = encoded(encoder.to(where), corpus, queries, workshop.form["max_tokens"])
        runs[row] = dense_run(vectors, corpus, queries)
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


ROWS = {
    "bm25": "BM25",
    "as-is": "the backbone unchanged (a retriever)",
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
unchanged MiniLM. So few labels and steps, by inner product, cost more than they bring. A few hundred steps
of masked-LM with a new head undo most of what a retriever has learned. Sequential initialization helps:
DDR is above DDR without it, on both targets. Fitting the DAM to the target does not help at this scale.
The paper's regime, 100,000 steps on a masked-LM checkpoint, is different: this table says nothing about
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


MISSING = "Not run: no result is committed (the full form of DR versus DDR needs a GPU)."
SECTIONS = [
    Section(
        68,
        "DR versus DDR, small form",
        "ddr-small",
        "python benchmarks/run.py ddr FOLDER --form small",
        paper_tables.render,
        picture=Picture(paper_tables.gains_drawn, paper_tables.draw_gains),
    ),
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
