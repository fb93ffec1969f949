"""What does a step of iDRO, GroupDRO, MoDIR and BERM cost beside plain training?

    python benchmarks/run.py method-cost FOLDER [--split train] [--steps 5] [--batch 16] [--negatives 3]
                                               [--full]

FOLDER is a BEIR folder with labelled queries; the packaged MiniLM is trained with a fresh REM, or whole with
--full. Target queries and documents of MoDIR are those of the folder too: their number is what costs. Steps
are taken in turns, so that whatever else the machine does slows all alike; what counts is processor time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hybridr.adaptation import rem as rem_module
from hybridr.adaptation.batches import Limits, read_examples
from hybridr.adaptation.corpus import TargetDomain, read_target
from hybridr.adaptation.judged import Judged, read_judged_beir
from hybridr.adaptation.loop import Processes, make_optimizer, take_step
from hybridr.adaptation.settings import RemSettings
from hybridr.encoding.packaged import minilm
from hybridr.progress import silent
from study import Section

DOCUMENTS, QUERIES = 3000, 300
METHODS: dict[str, dict[str, Any]] = {
    "pairwise": {"loss": "pairwise"},
    "pairwise, idro": {"method": "idro"},
    "pairwise, groupdro": {"method": "groupdro"},
    "pairwise, modir": {"loss": "pairwise"},
    "pairwise, berm": {"loss": "pairwise", "method": "berm"},
    "contrast": {},
    "contrast, idro": {"loss": "contrast", "method": "idro"},
    "contrast, modir": {},
    "contrast, berm": {"method": "berm"},
}


class Lane:
    """One training, step by step."""

    def __init__(self, judged: Judged, settings: RemSettings, target: TargetDomain | None) -> None:
        plan = rem_module.plan_rem(judged, settings, Processes("cpu"), "none", target, silent)
        weights = rem_module.make_trainable(plan)
        examples = read_examples(judged, None, plan.ranker.tokens, Limits.of(plan.ranker, settings))
        self.objective = rem_module.objective_of(plan, examples, weights, 0)
        rem_module.made_method(plan, self.objective)
        if target is not None:
            self.objective.method.diagnosis = None
        self.optimizer = make_optimizer(weights, self.objective.recipe)
        self.seconds: list[float] = []

    def step(self, number: int) -> None:
        """Take a step."""
        self.objective.module.train()
        began = time.process_time()
        take_step(self.objective, self.optimizer, number)
        self.seconds.append(time.process_time() - began)

    def median(self) -> float:
        """Give the processor seconds of a step, without the first, which allocates."""
        return float(np.median(self.seconds[1:]))


def some(judged: Judged) -> Judged:
    """Keep some queries, their documents, and others up to a number."""
    drawn = judged.sample(QUERIES, 0)
    wanted = {doc_id for listed in drawn.positives.values() for doc_id in listed}
    others = islice((one for one in drawn.documents() if one.doc_id not in wanted), DOCUMENTS)
    kept = [*(one for one in drawn.documents() if one.doc_id in wanted), *others]
    return replace(drawn, documents=lambda: iter(kept))


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collection, and how much is trained."""
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--split", default="train")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--negatives", type=int, default=3)
    parser.add_argument("--full", action="store_true")


def measure(given: argparse.Namespace) -> None:
    """Race, and print what a step of each costs."""
    judged = some(read_judged_beir(given.folder, given.split))
    target = read_target(given.folder.name, judged.documents(), list(judged.queries.values()))
    with tempfile.TemporaryDirectory() as scratch:
        common = {"dam": str(minilm()), "out": Path(scratch) / "rem", "full": given.full, "mined": 0}
        common |= {"batch_size": given.batch, "negatives_per_query": given.negatives, "device": "cpu"}
        lanes = {
            name: Lane(judged, RemSettings(**common, **values), target if "modir" in name else None)
            for name, values in METHODS.items()
        }
        for number in range(1, given.steps + 1):
            for lane in lanes.values():
                lane.step(number)
    for name, lane in lanes.items():
        plain = lanes[name.split(",")[0]].median()
        print(f"{name:20}{lane.median():8.2f} s a step{lane.median() / plain:6.2f} times plain")


SECTIONS: list[Section] = []
