"""What does COCO cost beside masked-LM: time for a token, and memory of a large batch?

    python benchmarks/run.py coco-cost FOLDER [--steps 6] [--batches 16 256]

FOLDER is a BEIR folder; the packaged MiniLM is trained on up to 3,000 of its documents. Steps are taken in
turns, so that whatever else the machine does slows all alike; what counts is processor time per real token,
special ones included and padding not. Each batch size has a process of its own for the memory: the peak of
anonymous pages (/proc, Linux), with micro-batches of --token-budget tokens and a Condenser head.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hybridr.adaptation.corpus import CorpusFile
from hybridr.adaptation.dam import frame_of
from hybridr.adaptation.loop import Processes, make_optimizer, take_step
from hybridr.adaptation.objectives.coco import SpansAndMaskedLm
from hybridr.adaptation.objectives.mlm import MaskedLm
from hybridr.adaptation.settings import DamSettings
from hybridr.adaptation.token_cache import TokenCache, build_cache
from hybridr.assembly.backbone import Dam, read_dam
from hybridr.encoding.packaged import minilm
from studies.dam_memory import Peak
from study import Section, own_process

DOCUMENTS, HELD_OUT, SEED = 3000, 64, 13
PER_VISIT = 10_000  # documents that minutes are given for
LANES: dict[str, tuple[type[MaskedLm], dict[str, Any]]] = {
    "mlm": (MaskedLm, {"batch_size": 36}),
    "coco": (SpansAndMaskedLm, {"batch_size": 128, "head_layers": 0}),
    "coco, a head of 2 layers": (SpansAndMaskedLm, {"batch_size": 128, "head_layers": 2}),
}
"""The batches have about as many tokens."""


class Lane:
    """One training, step by step."""

    def __init__(self, kind: type[MaskedLm], dam: Dam, cache: TokenCache, **given: Any) -> None:
        settings = DamSettings(seed=SEED, held_out=HELD_OUT, **given)
        own = replace(dam, model=deepcopy(dam.model))
        self.objective = kind(own, frame_of(own), cache, settings, "fp32", Processes("cpu"))
        self.optimizer = make_optimizer(self.objective.weights, self.objective.recipe)
        self.seconds, self.tokens = 0.0, 0

    def step(self, number: int) -> None:
        """Take a step; the first, which allocates, does not count."""
        began = time.process_time()
        take_step(self.objective, self.optimizer, number)
        if number > 1:
            self.seconds += time.process_time() - began
            self.tokens += self.objective.count_tokens(number)


def opened(folder: Path, scratch: Path) -> tuple[Dam, TokenCache]:
    """Open the model with a seeded masked-LM head, and tokenise the documents."""
    torch.manual_seed(SEED)
    dam = read_dam(minilm())
    documents = islice(CorpusFile(folder), DOCUMENTS)
    return dam, build_cache(documents, str(dam.tokenizer), scratch, seed=SEED)


def race(folder: Path, steps: int) -> None:
    """Print what a token costs each training."""
    with tempfile.TemporaryDirectory() as scratch:
        dam, cache = opened(folder, Path(scratch))
        lanes = {name: Lane(kind, dam, cache, **given) for name, (kind, given) in LANES.items()}
        for number in range(1, steps + 1):
            for lane in lanes.values():
                lane.step(number)
    base = lanes["mlm"].seconds / lanes["mlm"].tokens
    for name, lane in lanes.items():
        each = lane.seconds / lane.tokens
        visit = lane.seconds / lane.objective.batch_size / (steps - 1) * PER_VISIT / 60
        print(
            f"{name:26}{lane.tokens / (steps - 1):8,.0f} tokens a step{each * 1000:8.3f} ms a token"
            f"{each / base:6.2f} times mlm{visit:7.1f} minutes for {PER_VISIT:,} documents"
        )


def most_memory(folder: Path, size: int, budget: int) -> dict[str, float]:
    """Train some steps of a batch size, and give the peak of anonymous pages in MiB."""
    peak = Peak()
    with tempfile.TemporaryDirectory() as scratch:
        dam, cache = opened(folder, Path(scratch))
        lane = Lane(SpansAndMaskedLm, dam, cache, batch_size=size, token_budget=budget, head_layers=2)
        peak.start()
        for number in (1, 2, 3):
            lane.step(number)
        parts = len(lane.objective.parts(1))
    return {"batch": size, "micro_batches": parts, "peak_mib": peak.kib["start"] / 1024}


def options(parser: argparse.ArgumentParser) -> None:
    """Take the corpus, and how much is trained."""
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batches", type=int, nargs="*", default=[16, 256], help="for the memory")
    parser.add_argument("--token-budget", type=int, default=1024, help="for the memory")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)


def measure(given: argparse.Namespace) -> None:
    """Race, and measure the memory of each batch size in a process of its own."""
    if given.part:
        print(json.dumps(most_memory(given.folder, given.part, given.token_budget)))
        return
    found = []
    for size in given.batches:
        command = own_process("coco-cost", given.folder, "--part", size, "--token-budget", given.token_budget)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        found.append(json.loads(done.stdout))
        print("batch {batch}: {micro_batches} micro-batches, peak {peak_mib:,.0f} MiB".format(**found[-1]))
    if len(found) > 1:
        print(f"last over first: {found[-1]['peak_mib'] / found[0]['peak_mib'] - 1:+.1%}")
    race(given.folder, given.steps)


SECTIONS: list[Section] = []
