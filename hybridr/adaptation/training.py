"""The training loop: every step follows from the seed and its number, so a killed run goes on exactly."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import default_rng
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..encoder import padded
from ..errors import ModelError
from ..manifest import replacing
from ..progress import Progress
from ..retriever import Retriever
from ..settings import AdaptSettings
from ..staging import storing
from .low_rank import low_rank_weights
from .spans import SpanCorpus, span_loss

WARM_UP = 0.1  # share of the steps in which the learning rate rises; it falls to 0 afterwards
CLIP = 1.0  # norm of the gradient
STATE_FILE = "training.safetensors"
LOSSES_FILE = "losses.jsonl"


@dataclass
class Training:
    """What a run has done so far: one loss per step, and where it went on from."""

    losses: list[float] = field(default_factory=list)
    resumed_from: int = 0
    seconds: float = 0.0
    unseen: tuple[float | None, float | None] = (None, None)

    @property
    def loss_start(self) -> float:
        """Mean loss of the first tenth of the steps."""
        return float(np.mean(self.losses[: max(1, len(self.losses) // 10)]))

    @property
    def loss_end(self) -> float:
        """Mean loss of the last tenth of the steps."""
        return float(np.mean(self.losses[-max(1, len(self.losses) // 10) :]))


def train(
    retriever: Retriever,
    corpus: SpanCorpus,
    settings: AdaptSettings,
    state: Path,
    key: str,
    progress: Progress,
) -> Training:
    """Train the low-rank weights of `retriever` in place, in fp32, and checkpoint into the file `state`.

    A checkpoint with the same `key` is continued, another one is ignored. Raises ModelError when the
    loss is not finite.
    """
    weights = low_rank_weights(retriever)
    optimizer = torch.optim.AdamW(list(weights.values()), lr=settings.learning_rate, weight_decay=0.0)
    run = restore(state, key, weights, optimizer)
    log = state.parent / LOSSES_FILE
    write_losses(log, run.losses)
    started = time.monotonic()
    retriever.eval()  # no dropout: nothing random but the batches
    for step, rows in batches(corpus, settings, len(run.losses)):
        loss = update(retriever, rows, optimizer, settings, step)
        run.losses.append(loss)
        with storing(log), log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "loss": loss}) + "\n")
        progress("train", step, settings.steps, f"loss {loss:.3f}")
        if step % settings.checkpoint_every == 0 or step == settings.steps:
            run.seconds += time.monotonic() - started
            started = time.monotonic()
            store(state, key, weights, optimizer, run)
    return run


def batches(corpus: SpanCorpus, settings: AdaptSettings, done: int) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield (step, span rows) for the steps after `done`; each epoch visits every document once."""
    size = min(settings.batch_size, len(corpus))
    per_epoch = len(corpus) // size
    for step in range(done + 1, settings.steps + 1):
        epoch, part = divmod(step - 1, per_epoch)
        order = default_rng([settings.seed, 0, epoch]).permutation(len(corpus))
        chosen = order[part * size : (part + 1) * size].tolist()
        yield step, corpus.pairs(chosen, settings.span_tokens, default_rng([settings.seed, 1, step]))


def update(
    retriever: Retriever,
    rows: list[list[int]],
    optimizer: torch.optim.Optimizer,
    settings: AdaptSettings,
    step: int,
) -> float:
    """Take one optimiser step on span rows `(2n, tokens)` and give the loss before it."""
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * schedule(step, settings.steps)
    ids, mask = (torch.from_numpy(array).to(retriever.device) for array in padded(rows))
    _, vectors = retriever(ids, mask)
    loss = span_loss(vectors, settings.temperature)
    value = loss.item()
    if not np.isfinite(value):
        raise ModelError(
            f"the loss is {value} at step {step}",
            hint="lower --learning-rate, or check that the base model works",
        )
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], CLIP)
    optimizer.step()
    return value


def contrast(retriever: Retriever, corpus: SpanCorpus, settings: AdaptSettings) -> float | None:
    """Measure the loss on fixed spans of documents that are not trained on; None with fewer than 2."""
    size = min(settings.batch_size, len(corpus))
    if size < 2:
        return None
    random = default_rng([settings.seed, 3])
    losses = []
    with torch.inference_mode():
        for start in range(0, len(corpus) - size + 1, size):
            rows = corpus.pairs(range(start, start + size), settings.span_tokens, random)
            ids, mask = (torch.from_numpy(array).to(retriever.device) for array in padded(rows))
            losses.append(span_loss(retriever(ids, mask)[1], settings.temperature).item())
    return float(np.mean(losses))


def schedule(step: int, steps: int) -> float:
    """Rise linearly over the first tenth of the steps, then fall linearly to zero; steps start at 1."""
    rising = max(1, round(WARM_UP * steps))
    return step / rising if step <= rising else (steps - step + 1) / (steps - rising + 1)


def store(
    path: Path,
    key: str,
    weights: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    run: Training,
) -> None:
    """Write weights, optimiser state and losses as one safetensors file, whole or not at all."""
    tensors = {f"weight.{name}": weight.detach().cpu().contiguous() for name, weight in weights.items()}
    for name, weight in weights.items():
        for part, value in optimizer.state[weight].items():
            tensors[f"{part}.{name}"] = value.detach().cpu().contiguous()
    tensors["losses"] = torch.tensor(run.losses, dtype=torch.float64)
    with storing(path), replacing(path) as temporary:
        save_file(tensors, temporary, metadata={"key": key, "seconds": str(run.seconds)})


def restore(
    path: Path, key: str, weights: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> Training:
    """Load a checkpoint of the same `key` into weights and optimiser; else start from nothing."""
    found = read_state(path, key)
    if found is None:
        return Training()
    tensors, seconds = found
    state: dict[int, dict[str, Any]] = {}
    with torch.no_grad():
        for position, (name, weight) in enumerate(weights.items()):
            weight.copy_(tensors[f"weight.{name}"])
            state[position] = {part: tensors[f"{part}.{name}"] for part in ("step", "exp_avg", "exp_avg_sq")}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    losses = tensors["losses"].tolist()
    return Training(losses, len(losses), seconds)


def read_state(path: Path, key: str) -> tuple[dict[str, torch.Tensor], float] | None:
    """Read a checkpoint; None when there is none, it is damaged, or it belongs to another run."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != key:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}, float(metadata["seconds"])  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError):
        return None


def write_losses(path: Path, losses: list[float]) -> None:
    """Start the log with the losses of the steps that are done."""
    lines = (json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses, 1))
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")
