"""Why do MoDIR and BERM lose: what do their terms do to the gradient and the vectors, step by step?

    python benchmarks/run.py method-traces FOLDER [--rows "A;B"] [--json FILE]

FOLDER holds collections in BEIR layout. All weights of the packaged MiniLM are trained on the source's
labels, as rows `dr`, `modir` and `berm` of `methods` are, for a few steps; of some of them the gradient of
the ranking loss and that of the method's term are taken apart. `ratio` is the norm of the term's over that
of the ranking's, `angle` their cosine, `norm` the mean length of the step's query vectors, `clipped` by how
much the whole gradient is shortened. Then parts of the target are ranked (dense, exact).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from conditions import read_form
from hybridr.adaptation import rem as rem_module
from hybridr.adaptation.corpus import CorpusFile, read_target
from hybridr.adaptation.judged import Judged, read_judged_beir
from hybridr.adaptation.loop import Processes, make_optimizer, take_step
from hybridr.adaptation.objectives.labelled import ComparedBatch
from hybridr.adaptation.settings import RemSettings
from hybridr.encoding.packaged import minilm
from hybridr.evaluation.evaluation import evaluate
from hybridr.progress import silent
from studies.methods import Collection, read_collection
from study import LEAD, Record, Section, add_json, kept, machine_of, table, write_result
from workshop import dense_run, encoded

ROWS: dict[str, Record] = {
    "DR": {},
    "MoDIR": {"modir": {}},
    "MoDIR, invariance .01": {"modir": {"invariance": 0.01}},
    "MoDIR, rate of the paper": {"modir": {}, "learning_rate": 1e-6},
    "BERM": {"berm": {}},
    "BERM, extract .01": {"berm": {"extract": 0.01, "balance": 0.001}},
    "DR, cosine": {"similarity": "cosine"},
    "MoDIR, cosine": {"modir": {}, "similarity": "cosine"},
    "BERM, cosine": {"berm": {}, "similarity": "cosine"},
}
"""What each changes of the form; `modir` and `berm` are settings of the method."""


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections and the rows."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="collections in BEIR layout")
    parser.add_argument("--rows", type=lambda text: text.split(";"), default=list(ROWS), metavar="A;B")
    add_json(parser, "method-traces")


def measure(given: argparse.Namespace) -> None:
    """Train and rank each row that the file has not."""
    form = read_form("method_traces", "reduced")
    record = kept(given.json, form) or {"settings": form, "rows": {}}
    judged = read_judged_beir(given.folder / form["source"]).sample(form["rem"]["max_queries"], 0)
    found = read_collection(given.folder / form["target"], form["queries"], form["documents"])
    domain = read_target(form["target"], CorpusFile(given.folder / form["target"]))
    for row in (row for row in given.rows if row not in record["rows"]):
        with tempfile.TemporaryDirectory() as scratch:
            changes = dict(ROWS[row])
            target = domain if "modir" in changes else None
            settings = settings_of(form, changes, Path(scratch))
            record["rows"][row] = traced(judged, settings, target, found, form)
        write_result(given.json, record)
        print(row, record["rows"][row], flush=True)


def settings_of(form: Record, changes: Record, out: Path) -> RemSettings:
    """Give the settings of a row."""
    own = {name: changes.pop(name) for name in ("modir", "berm") if name in changes}
    method = {"method": "berm"} if "berm" in own else {}
    given = {"method_settings": next(iter(own.values()), {}), **method, **form["rem"], **changes}
    return RemSettings(dam=str(minilm()), out=out / "rem", full=True, device="cpu", **given)


@dataclass
class Trace:
    """What was seen of some steps."""

    weights: list[torch.nn.Parameter]
    step: int = 0
    every: int = 1
    seen: list[Record] = field(default_factory=list)

    def around(
        self, loss: Callable[[ComparedBatch], torch.Tensor]
    ) -> Callable[[ComparedBatch], torch.Tensor]:
        """Give the loss of a method that takes its gradients apart as well."""

        def watched(compared: ComparedBatch) -> torch.Tensor:
            total = loss(compared)
            if (self.step - 1) % self.every == 0:
                ranking = compared.losses.mean()
                self.seen.append(self.apart(ranking, total - ranking, compared))
            return total

        return watched

    def apart(self, ranking: torch.Tensor, term: torch.Tensor, compared: ComparedBatch) -> Record:
        """Measure the two gradients, and the vectors."""
        one, other = self.gradient(ranking), self.gradient(term)
        sizes = one.norm().item(), other.norm().item()
        angle = float(one @ other / max(sizes[0] * sizes[1], 1e-12))
        return {
            "step": self.step,
            "ranking": ranking.item(),
            "term": term.item(),
            "gradients": sizes,
            "angle": angle,
            "clipped": max(1.0, (one + other).norm().item()),
            "norm": compared.queries.detach().norm(dim=1).mean().item(),
        }

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        """Give the gradient of all weights as one vector; zeros where nothing is asked."""
        if not loss.requires_grad or not loss.item():
            return torch.zeros(sum(weight.numel() for weight in self.weights))
        found = torch.autograd.grad(loss, self.weights, retain_graph=True, allow_unused=True)
        pairs = zip(found, self.weights, strict=True)
        return torch.cat(
            [(torch.zeros_like(weight) if one is None else one).flatten() for one, weight in pairs]
        )


def traced(judged: Judged, settings: RemSettings, target: Any, found: Collection, form: Record) -> Record:
    """Train, and rank the target; what was seen on the way."""
    plan = rem_module.plan_rem(judged, settings, Processes("cpu"), "bm25", target, silent)
    weights = rem_module.make_trainable(plan)
    objective = rem_module.objective_of(plan, rem_module.read(plan, 0, None, silent), weights, 0)
    method = rem_module.made_method(plan, objective) or objective.method
    trace = Trace(list(weights.values()), every=form["every"])
    accuracies = []
    if target is not None:
        diagnosis, method.diagnosis = method.diagnosis, None
        accuracies.append(diagnosis.now())
    method.loss = trace.around(method.loss)
    objective.method = method
    optimizer = make_optimizer(weights, objective.recipe)
    local = []
    for number in range(1, objective.recipe.steps + 1):
        trace.step = number
        objective.module.train()
        take_step(objective, optimizer, number)
        local.append(method.observed().get("local_accuracy"))
    if target is not None:
        accuracies.append(diagnosis.now())
    vectors = encoded(plan.ranker, found.corpus, found.queries, form["max_tokens"])
    run = {"dense": dense_run(vectors, found.corpus, found.queries)}
    dense = evaluate(run, found.queries, found.qrels, [LEAD]).systems["dense"][LEAD]
    return {"dense": dense, "seen": trace.seen, "accuracies": accuracies, "local": local}


def render(record: Record) -> str:
    """Render a line for each row: the first step, the last that was taken apart, and the ranking."""
    form = record["settings"]
    header = [
        "row",
        "ratio, first",
        "last",
        "angle",
        "clipped",
        "norm, first",
        "last",
        "domain accuracy",
        LEAD,
    ]
    said = (
        f"{form['rem']['steps']} steps of {form['rem']['batch_size']} queries of `{form['source']}` at "
        f"{form['rem']['learning_rate']:g} unless a row says otherwise; parts of `{form['target']}` ranked. "
        f"Domain accuracy: of documents, before and after. {machine_of(record['machine'])}."
    )
    return f"{said}\n\n{table(header, [line(*row) for row in record['rows'].items()])}"


def line(name: str, row: Record) -> list[str]:
    """Render a row."""
    first, last = row["seen"][0], row["seen"][-1]
    ratios = [f"{one['gradients'][1] / one['gradients'][0]:.2f}" for one in (first, last)]
    angle, clipped = (fmean(one[key] for one in row["seen"]) for key in ("angle", "clipped"))
    accuracy = " ".join(f"{one['documents']:.2f}" for one in row["accuracies"])
    norms = [f"{one['norm']:.2f}" for one in (first, last)]
    return [name, *ratios, f"{angle:+.2f}", f"{clipped:.1f}", *norms, accuracy, f"{row['dense']:.4f}"]


SECTIONS = [
    Section(
        86,
        "Methods of training: gradients of MoDIR and BERM",
        "method-traces",
        "python benchmarks/run.py method-traces FOLDER",
        render,
    )
]
