"""DR versus DDR: what separating domain and relevance does to a target that has no labels.

    python benchmarks/ddr.py FOLDER [--form reduced|full] [--work DIR] [--targets a,b] [--json FILE]

FOLDER holds collections in BEIR layout. The settings stand in `conditions.toml`. Every step is a finished
artifact in DIR: an interrupted benchmark goes on where it was. Ranking is exact, over whole corpora.

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

import torch

import hybridr
from hybridr import Document, Query
from hybridr.adaptation.corpus import CorpusFile
from hybridr.adaptation.dam import fit_dam
from hybridr.adaptation.judged import read_judged_beir
from hybridr.adaptation.rem import train_rem
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

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
DEPTH, MEASURES = 100, ["nDCG@10", "R@100"]
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
        settings = DamSettings(base=base, out=self.work / name, **self.form[stage])
        corpus = CorpusFile(self.collections / collection, "beir")
        fit = fit_dam(corpus, settings, progress=reporter(name))
        self.seconds[name] = fit.seconds
        return str(fit.folder)

    def relevance(self, name: str, dam: str, stage: str = "rem", **changes: Any) -> str:
        """Train a REM (or with `full` all weights) on the source's labels."""
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


def main() -> None:
    """Run the rows of a form on its targets, write the JSON after each and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--form", default="reduced")
    parser.add_argument("--work", type=Path, default=Path("ddr-work"))
    parser.add_argument("--targets")
    parser.add_argument("--backbone")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    form = read_form(given.form, backbone=given.backbone, targets=given.targets)
    workshop = Workshop(given.folder, given.work / given.form, form)
    out = given.json or HERE / "results" / f"ddr-{given.form}.json"
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
        record["targets"][target] = measure(workshop, target)
        record["training_s"] |= workshop.seconds
        # After each target: an interrupted benchmark keeps what it measured.
        write_json(out, record)
    print(table(record))


def read_kept(file: Path, form: Form) -> dict[str, Any] | None:
    """Read what was measured before with the same settings, whatever the targets."""
    if not file.is_file():
        return None
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    same = record["settings"] | {"targets": form["targets"]} == form
    return record | {"settings": form} if same else None


def read_form(name: str, **changes: Any) -> Form:
    """Read one form of `conditions.toml`, with what the command line changes."""
    form: Form = tomllib.loads((HERE / "conditions.toml").read_text(encoding="utf-8"))["ddr"][name]
    if changes["backbone"]:
        form["backbone"] = changes["backbone"]
    if changes["targets"]:
        form["targets"] = changes["targets"].split(",")
    return form


def measure(workshop: Workshop, target: str) -> dict[str, Any]:
    """Rank one target by all rows and compare each with `dr`."""
    corpus, queries, qrels = read_beir(workshop.collections / target)
    queries = chosen(queries, qrels, workshop.form["queries"])
    runs = {"bm25": lexical_run(corpus, queries)}
    rows = ["source", *workshop.form["rows"]]
    if (Path(workshop.backbone) / "modules.json").is_file():
        rows.insert(0, "as-is")
    for row in rows:
        encoder = workshop.encoder(row, target)
        where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
    return {query.query_id: named(index.search(query.text, DEPTH), corpus) for query in queries}


def dense_run(encoder: Encode, corpus: list[Document], queries: list[Query], max_tokens: int) -> Run:
    """Rank exactly by the inner product of vectors."""
    texts, asked = [document.contents for document in corpus], [query.text for query in queries]
    limit = min(max_tokens, encoder.max_tokens)
    documents = encoder.encode_documents(texts, max_tokens=limit)
    scores = encoder.encode_queries(asked, max_tokens=limit) @ documents.T  # (queries, documents)
    shifted = scores - scores.min() + 1.0  # `best` keeps positive scores only; the order stays
    return {
        query.query_id: named(best(row, DEPTH), corpus) for query, row in zip(queries, shifted, strict=True)
    }


def named(found: dict[str, float], corpus: list[Document]) -> dict[str, float]:
    """Put ids in place of positions."""
    return {corpus[int(position)].doc_id: score for position, score in found.items()}


def reporter(name: str) -> Callable[..., None]:
    """Report long stages to the screen, a line every half minute."""
    last = [time.monotonic()]

    def report(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if time.monotonic() - last[0] > 30:
            last[0] = time.monotonic()
            print(f"{name}: {stage} {done}/{total or '?'} {note}", file=sys.stderr, flush=True)

    return report


def machine() -> dict[str, Any]:
    """Describe where this runs."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "system": platform.system(),
        "cpu": read_cpu().model,
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def table(record: dict[str, Any]) -> str:
    """Render nDCG@10 as Markdown; a star marks p < 0.05 against `dr` (paired t-test)."""
    targets = record["targets"]
    lines = [f"| | {' | '.join(targets)} |", "|---" * (len(targets) + 1) + "|"]
    rows = dict.fromkeys(row for found in targets.values() for row in found["systems"])
    for row in rows:
        cells = []
        for found in targets.values():
            star = "*" if found["against_dr"].get(row, {"p": 1.0})["p"] < 0.05 else ""
            cells.append(f"{found['systems'][row][MEASURES[0]]:.4f}{star}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
