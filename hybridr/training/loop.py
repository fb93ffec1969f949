"""The training loop of every objective, in one or several processes, with exact resumption.

It also checks disk and memory, and chooses the precision.
"""

from __future__ import annotations

import atexit
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from ..encoders.machine import FEATURES, amx_works, read_cpu
from ..errors import DownloadError, ModelError, extra
from ..files.local import replacing, storing
from ..files.staging import delete_leftovers
from ..records import Progress, silent
from .objectives import CarriedState, Objective, Recipe, TrainingPrecision
from .runs import LOSSES_FILE, Training, write_steps

with extra("train", "training a model"):
    import torch
    import torch.distributed.nn.functional  # before the group exists: its default arguments would keep it
    from accelerate import PartialState
    from torch import distributed


CHECKPOINT_COPIES = 3  # times the weights: themselves and two moments
CHECKPOINTS = 2  # a new one is written before the old one is deleted
TRAINING_COPIES = 3  # times the weights in memory that training adds: gradients and two moments
CACHE_BYTES_PER_BYTE = 1.2  # 4 bytes for a token of about 4 letters, and data of each document
STATES_PER_LAYER = 20  # vectors of a state's width that the backward pass stores per token and layer
MASKED_SHARE = 0.2  # of the tokens; their logits are stored three times
CGROUP = Path("/sys/fs/cgroup")


def train(
    objective: Objective,
    path: Path,
    key: str,
    carried_state: CarriedState | None = None,
    progress: Progress = silent,
) -> Training:
    """Train the objective's weights in place, with checkpoints in the file `path`.

    A checkpoint with the same `key` is resumed exactly, another one is ignored; it includes the
    `carried_state`. Losses and other measured values are logged beside the checkpoint. Raises ModelError if
    the loss is not finite, DownloadError if the disk is full.
    """
    recipe, processes = objective.recipe, objective.processes
    optimizer = make_optimizer(objective.weights, recipe)
    if processes.is_main:
        delete_leftovers(path)
    checkpoint = Checkpoint(path, key, objective.weights, optimizer, carried_state)
    run, log = checkpoint.read(), path.parent / LOSSES_FILE
    if processes.is_main:
        write_steps(log, run)
    objective.module.train(objective.dropout)  # the mode only switches dropout
    started = time.monotonic() - run.seconds
    with torch.random.fork_rng():
        for step in range(len(run.losses) + 1, recipe.steps + 1):
            loss, norm = take_step(objective, optimizer, step)
            run.add(loss, {"gradient_norm": norm} | dict(carried_state.observed() if carried_state else {}))
            progress("train", step, recipe.steps, f"loss {loss:.3f}")
            if not processes.is_main:
                continue
            with storing(log), log.open("a", encoding="utf-8") as file:
                file.write(run.line(len(run.losses)))
            if step % recipe.checkpoint_every == 0 or step == recipe.steps:
                run.seconds = time.monotonic() - started
                checkpoint.write(run)
    objective.module.eval()
    processes.wait()
    return run


def make_optimizer(weights: Mapping[str, torch.nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """Return the recipe's optimiser; weight decay applies to matrices only, not to biases and LayerNorm."""
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(list(weights.values()), lr=recipe.learning_rate)
    groups: list[dict[str, Any]] = [
        {
            "params": [weight for weight in weights.values() if weight.ndim > 1],
            "weight_decay": recipe.weight_decay,
        },
        {"params": [weight for weight in weights.values() if weight.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=recipe.learning_rate,
        betas=recipe.betas,
        eps=recipe.eps,
        fused=True,
    )


def take_step(objective: Objective, optimizer: torch.optim.Optimizer, step: int) -> tuple[float, float]:
    """Take one optimiser step; return the loss before it and the norm of the gradient before clipping.

    Raises ModelError if the loss is not finite.
    """
    recipe, processes = objective.recipe, objective.processes
    entropy = np.random.SeedSequence([recipe.seed, step, processes.rank]).generate_state(1, np.uint64)[0]
    torch.manual_seed(int(entropy >> np.uint64(1)))  # seed of dropout, the same after a restart
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64, device=processes.device)
    mixed = torch.autocast(processes.device.type, dtype=torch.bfloat16, enabled=recipe.precision == "bf16")
    with mixed:
        parts = objective.parts(step)
    for part in parts:
        with mixed:
            loss = objective.loss(part)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    if not objective.shared_loss:
        processes.add_up([total])
    if not np.isfinite(total.item()):
        reason = "the base model or its head is broken" if step == 1 else "training diverged"
        raise ModelError(
            f"the loss is {total.item()} at step {step}; most likely {reason}",
            hint="lower learning_rate, set precision = 'fp32', or check that the base model works",
        )
    weights = list(objective.weights.values())
    for weight in weights:
        if weight.grad is None:  # unused in this step; all processes must still add up the same tensors
            weight.grad = torch.zeros_like(weight)
    processes.add_up(weight.grad for weight in weights if weight.grad is not None)
    norm = torch.nn.utils.clip_grad_norm_(weights, recipe.clip or torch.inf)
    for group in optimizer.param_groups:
        group["lr"] = recipe.rate(step)
    optimizer.step()
    return total.item(), float(norm)


def weight_bytes(model: Any) -> int:
    """Return the number of bytes of a model's weights."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def require_disk(folder: Path, model: Any, text_bytes: int) -> None:
    """Raise DownloadError unless token cache, two checkpoints and the result fit on the disk of `folder`."""
    weights = weight_bytes(model)
    needed = int(text_bytes * CACHE_BYTES_PER_BYTE) + (CHECKPOINTS * CHECKPOINT_COPIES + 1) * weights
    existing = next(folder for folder in (folder.absolute(), *folder.absolute().parents) if folder.exists())
    with storing(folder):
        free = shutil.disk_usage(existing).free
    if free < needed:
        raise DownloadError(
            f"{existing} has {free / 1e6:,.0f} MB free; tokens and checkpoints need about "
            f"{needed / 1e6:,.0f} MB",
            hint="free some space, or choose a folder on a larger disk with --out",
        )


def require_memory(model: Any, tokens: int, device: torch.device) -> None:
    """Raise ModelError unless weights, optimiser and a micro-batch of `tokens` fit into the device."""
    config = model.config
    states = config.num_hidden_layers * STATES_PER_LAYER * config.hidden_size
    logits = MASKED_SHARE * 3 * config.vocab_size  # stored for the backward pass in fp32, like the states
    needed = TRAINING_COPIES * weight_bytes(model) + int(4 * tokens * (states + logits))
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
    else:
        free = int(psutil.virtual_memory().available)
        with suppress(OSError, ValueError):  # another system, another version, or no limit ("max")
            limit = int((CGROUP / "memory.max").read_text(encoding="ascii"))
            in_use = int((CGROUP / "memory.current").read_text(encoding="ascii"))
            free = min(free, limit - in_use)
    if free < needed:
        raise ModelError(
            f"{free / 1e6:,.0f} MB of memory are free on {device}; training needs about "
            f"{needed / 1e6:,.0f} MB",
            hint=f"--token-budget {max(256, tokens // 4)} needs less, or choose a smaller base model",
        )


def choose_precision(precision: Literal["auto", "fp32", "bf16"], device: torch.device) -> TrainingPrecision:
    """Return bf16 if the device computes in it, else fp32; weights and optimiser are fp32 either way.

    On a CPU bf16 needs AMX, without which it is slower than fp32. A child process tries AMX, which kills the
    process on some virtual machines. Raises ModelError if bf16 is requested and AMX does not work.
    """
    if precision == "fp32":
        return "fp32"
    if device.type == "cuda":
        supported = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if supported or precision == "bf16" else "fp32"
    cpu = read_cpu()
    advertised = FEATURES["AMX"] in cpu.flags
    works = advertised and device.type == "cpu" and amx_works(cpu) is True
    if precision == "bf16" and advertised and not works:
        raise ModelError(
            "bf16 was requested, but AMX does not work on this processor: the process would be killed",
            hint="train with --precision fp32, or let it be chosen (auto)",
        )
    return "bf16" if works or precision == "bf16" else "fp32"


class Processes:
    """The processes that train together, seen from this one."""

    def __init__(self, device: str = "auto") -> None:
        """Join the group; `device` "cpu" avoids the GPU, "auto" and "cuda" take one if there is one."""
        self._state = PartialState(cpu=device == "cpu")
        self.main_first = self._state.main_process_first
        """Context manager: its block runs in the main process alone, then in the others."""
        self.rank: int = self._state.process_index
        self.count: int = self._state.num_processes
        self.is_main = self.rank == 0
        """Whether this process is the one that writes files."""
        self.device: torch.device = self._state.device
        if self.count > 1:  # threads of the group may otherwise abort the interpreter at exit
            atexit.register(self._state.destroy_process_group)

    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace each tensor by its sum over the processes, which all give the same shapes in order."""
        if self.count > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the `(n, ...)` tensors of all processes joined in order of rank, `(count * n, ...)`.

        This process's part keeps its gradient, the others are constants. All must have the same shape.
        """
        if self.count == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        distributed.all_gather(parts, tensor.detach().contiguous())
        parts[self.rank] = tensor
        return torch.cat(parts)

    def wait(self) -> None:
        """Wait until every process has called this."""
        self._state.wait_for_everyone()


@dataclass(frozen=True)
class Checkpoint:
    """A file with all that a training needs to go on: weights, optimiser, carried state and losses so far.

    `key` identifies the training.
    """

    path: Path
    key: str
    weights: Mapping[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    carried_state: CarriedState | None

    def write(self, run: Training) -> None:
        """Write the file atomically. Raises DownloadError if the disk is full or not writable."""
        content = {
            "key": self.key,
            "weights": {name: weight.detach() for name, weight in self.weights.items()},
            "optimizer": self.optimizer.state_dict(),
            "carried": self.carried_state.tensors() if self.carried_state else {},
            "run": asdict(run),
        }
        with storing(self.path), replacing(self.path) as temporary:
            torch.save(content, temporary)

    def read(self) -> Training:
        """Load the file into weights, optimiser and carried state; return its progress.

        Return an empty `Training` if there is no file, or it is damaged or has another key.
        """
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            if content["key"] != self.key:
                return Training()
            run = Training(**content["run"])
        except Exception:  # torch raises many kinds
            return Training()
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(content["weights"][name])
        self.optimizer.load_state_dict(content["optimizer"])
        if self.carried_state is not None:
            self.carried_state.restore(content["carried"])
        return replace(run, resumed_from=len(run.losses))
