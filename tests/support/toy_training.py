"""A toy objective for the training loop, and a program that trains it: OUT STEP_TO_DIE_AT DROPOUT."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from hybridr.training.loop import Processes, train
from hybridr.training.objectives import Recipe
from hybridr.training.runs import STATE_FILE

RECIPE = Recipe(steps=12, learning_rate=0.05, seed=3, warm_up=2, weight_decay=0.01, checkpoint_every=2)


class Regression:
    """Least squares on 8 rows a step, in two micro-batches of unequal size, with or without dropout."""

    shared_loss = False

    def __init__(self, processes: Processes, dropout: bool = True) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Dropout(0.3), torch.nn.Linear(7, 1))
        self.module.to(processes.device)
        self.weights = dict(self.module.named_parameters())
        self.dropout = dropout
        self.processes, self.recipe = processes, RECIPE
        self.died_at = 0

    def parts(self, step: int) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        if step == self.died_at:
            os.kill(os.getpid(), signal.SIGKILL)
        random = np.random.default_rng([3, step])
        inputs = random.normal(size=(8, 5)).astype(np.float32)
        rows = torch.from_numpy(inputs)
        targets = rows.sum(1, keepdim=True)
        own = slice(self.processes.rank, None, self.processes.count)
        rows, targets = rows[own], targets[own]
        cut = len(rows) // 3 or 1
        return [(rows[:cut], targets[:cut]), (rows[cut:], targets[cut:])]

    def loss(self, part: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rows, targets = part
        return ((self.module(rows) - targets) ** 2).sum() / 8


def report_threads(file: Path) -> None:
    """Write how many threads are left; the group of processes must have ended its own."""
    file.write_text(str(len(os.listdir("/proc/self/task"))))


def main() -> None:
    out = Path(sys.argv[1])
    died_at, dropout = map(json.loads, sys.argv[2:])
    atexit.register(report_threads, out / f"threads.{os.environ.get('RANK', '0')}")
    processes = Processes("cpu")
    objective = Regression(processes, dropout)
    objective.died_at = died_at
    run = train(objective, out / STATE_FILE, "toy")
    if processes.is_main:
        tensors = {name: weight.detach() for name, weight in objective.weights.items()}
        tensors |= {"losses": torch.tensor(run.losses), "resumed_from": torch.tensor(run.resumed_from)}
        tensors["processes"] = torch.tensor(processes.count)
        save_file(tensors, out / "trained.safetensors")


def trained(tmp_path: Path, recipe: Recipe, objective: Regression | None = None) -> Regression:
    processes = Processes("cpu")
    objective = objective or Regression(processes, dropout=False)
    objective.recipe = recipe
    train(objective, tmp_path / STATE_FILE, "key")
    return objective


if __name__ == "__main__":
    main()
