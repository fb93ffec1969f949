"""Masked-LM training of a DAM: the head runs at masked positions only; micro-batches are cut by length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import default_rng
from torch import Tensor
from torch.nn import functional

from ...encoders.contract import longest_input
from ...relevance.corpus import held_out_count
from ..backbone import Dam
from ..loop import Processes
from ..settings import DamSettings
from ..token_cache import (
    FIXED,
    WINDOWS,
    Frame,
    TokenCache,
    TokenIds,
    TokenWindows,
    cut_by_length,
    masked_windows,
    visited_documents,
)
from . import Recipe, TrainingPrecision

MAX_WARM_UP_STEPS = 1000  # steps
WEIGHT_DECAY = 0.01  # not on biases and LayerNorm (Zhan et al. 2022)
WIDTHS, MASKED = 16, 32  # multiples that sizes are rounded up to
IGNORED = -100  # target of positions that do not count
OVERHEAD = 128  # cost of one more micro-batch in tokens, mostly for gradients of the embeddings
TOKEN_BUDGETS = {"cpu": 4096, "cuda": 65_536}


class MaskedLm:
    """The masked-LM objective; the gradients of the micro-batches add up to that of the whole batch."""

    name = "mlm"
    help = "for a DAM, masked-LM"
    on = "documents"
    title = "masked-LM"
    source = "Zhan et al. 2022"
    Settings = DamSettings
    strength = 1.0
    unused = frozenset({"span_tokens", "pooling", "head_layers", "skip_from"})
    """Settings that do not affect the result."""
    shared_loss = False

    def __init__(
        self,
        dam: Dam,
        frame: Frame,
        cache: TokenCache,
        settings: DamSettings,
        precision: TrainingPrecision,
        processes: Processes,
    ) -> None:
        """Take a DAM, whose model is trained in place.

        The first documents of the cache, at most a fifth, are held out from training. `precision` is the
        number format of the training.
        """
        attention = fastest_attention(processes.device, precision)
        self.model: Any = set_up_model(dam.model, settings.dropout, attention).to(processes.device)
        self.module: torch.nn.Module = self.model
        self.weights: Mapping[str, torch.nn.Parameter] = dict(self.model.named_parameters())
        self.dropout = settings.dropout > 0
        self.head = language_head(self.model)
        self.padding = int(self.model.config.pad_token_id or 0)
        self.frame, self.cache, self.processes = frame, cache, processes
        self.batch_size, self.seed = settings.batch_size, settings.seed
        self.max_tokens = min(settings.max_tokens, longest_input(self.model.config))
        self.held_out = held_out_count(len(cache), settings.held_out)
        self.budget = settings.token_budget or TOKEN_BUDGETS.get(processes.device.type, TOKEN_BUDGETS["cpu"])
        warm_up = (
            min(MAX_WARM_UP_STEPS, settings.steps // 10) if settings.warm_up is None else settings.warm_up
        )
        self.recipe = Recipe(  # Zhan et al. 2022: a constant rate after a linear warm-up, the norm cut to 1
            steps=settings.steps,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            warm_up=warm_up,
            weight_decay=WEIGHT_DECAY,
            precision=precision,
            checkpoint_every=settings.checkpoint_every,
        )
        self.complete(dam, settings, precision)

    def complete(self, dam: Dam, settings: DamSettings, precision: TrainingPrecision) -> None:
        """Set up a subclass; called at the end of `__init__`."""

    @property
    def documents(self) -> int:
        """The number of training documents."""
        return len(self.cache) - self.held_out

    def parts(self, step: int) -> list[MicroBatch]:
        """Return this process's micro-batches of optimiser step `step`, numbered from 1."""
        return list(self.share(self.windows(step)))

    def windows(self, step: int) -> TokenWindows:
        """Return the batch of a step, numbered from 1, for all processes.

        Each epoch visits every document once, in a different random order.
        """
        visits = visited_documents(self.documents, (step - 1) * self.batch_size, self.batch_size, self.seed)
        spans, random = self.cache.spans(self.held_out + visits), default_rng([self.seed, WINDOWS, step])
        return masked_windows(self.cache, self.frame, spans, self.max_tokens, random)

    def share(self, windows: TokenWindows) -> Iterator[Any]:
        """Yield the micro-batches of this process's share of a batch that have a masked token."""
        order = np.argsort(-windows.lengths, kind="stable")
        process_rows = order[self.processes.rank :: self.processes.count]
        return (part for _, part in self.micro_batches(windows, process_rows) if len(part.positions))

    def micro_batches(self, windows: TokenWindows, texts: TokenIds) -> Iterator[tuple[TokenIds, MicroBatch]]:
        """Yield (rows, micro-batch) for the rows `texts` of a batch, cut by length.

        Sizes are rounded up, the width to at most the limit. For each size, oneDNN keeps a kernel and the
        allocator a block; thousands of sizes would multiply the memory.
        """
        widths = np.minimum(round_up(windows.lengths[texts], WIDTHS), self.max_tokens)
        for group in cut_by_length(widths, self.budget, OVERHEAD) if len(texts) else ():
            rows = texts[group]
            lengths = windows.lengths[rows]
            width = min(round_up(int(lengths.max()), WIDTHS), self.max_tokens)
            ids = np.full((len(rows), width), self.padding, dtype=np.int64)
            filled = np.arange(width) < lengths[:, None]
            starts = np.cumsum(windows.lengths)[rows] - lengths
            places = (starts[:, None] + np.arange(width))[filled]
            ids[filled] = windows.ids[places]
            indices = np.searchsorted(windows.masked, places)
            is_masked = np.append(windows.masked, -1)[indices] == places
            positions, targets = np.flatnonzero(filled)[is_masked], windows.targets[indices[is_masked]]
            unused, device = round_up(len(positions), MASKED) - len(positions), self.processes.device
            yield (
                rows,
                MicroBatch(
                    torch.from_numpy(ids).to(device),
                    None if filled.all() else torch.from_numpy(filled.astype(np.int64)).to(device),
                    torch.from_numpy(np.pad(positions, (0, unused))).to(device),
                    torch.from_numpy(np.pad(targets, (0, unused), constant_values=IGNORED)).to(device),
                    len(windows.masked),
                ),
            )

    def loss(self, part: MicroBatch) -> Tensor:
        """Return a micro-batch's summed cross-entropy, divided by the masked tokens of the entire batch."""
        return self.masked_lm_loss(
            self.model.base_model(input_ids=part.ids, attention_mask=part.mask)[0], part
        )

    def masked_lm_loss(self, states: Tensor, part: MicroBatch) -> Tensor:
        """Return the masked-LM loss of a micro-batch from its states `(documents, width, dim)`."""
        logits = self.head(states.flatten(0, 1)[part.positions])  # (masked, vocabulary)
        return (
            functional.cross_entropy(logits.float(), part.targets, reduction="sum", ignore_index=IGNORED)
            / part.divisor
        )

    def unseen_loss(self) -> float | None:
        """Return the loss on fixed windows of the held-out documents in fp32; None without any."""
        if not self.held_out:
            return None
        self.module.eval()
        with torch.no_grad():
            losses = [self.loss(part).double() for part in self.share(self.unseen_windows())]
        total = torch.stack(losses).sum() if losses else torch.zeros((), dtype=torch.float64)
        total = total.to(self.processes.device)
        self.processes.add_up([total])
        return float(total.item())

    def unseen_windows(self) -> TokenWindows:
        """Return the same windows of the held-out documents at every call, so that losses compare."""
        spans, random = self.cache.spans(np.arange(self.held_out)), default_rng([self.seed, FIXED])
        return masked_windows(self.cache, self.frame, spans, self.max_tokens, random)

    def write_extra_weights(self, folder: Path) -> list[str]:
        """Return no file names, since there are no weights besides the DAM."""
        return []


def fastest_attention(device: torch.device, precision: TrainingPrecision) -> str:
    """Return the faster implementation of attention; torch's fused one is slow backwards in bf16 on a CPU."""
    return "eager" if device.type == "cpu" and precision == "bf16" else "sdpa"


def set_up_model(model: Any, dropout: float, attention: str) -> Any:
    """Set dropout and attention of a model and return the model."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    if hasattr(model, "set_attn_implementation"):  # in newer versions; others use "eager"
        model.set_attn_implementation(attention)
    return model


def language_head(model: Any) -> Callable[[Tensor], Tensor]:
    """Return the masked-LM head as a function from states `(n, dim)` to logits `(n, vocabulary)`."""
    kind = model.config.model_type
    if kind == "distilbert":
        return lambda states: model.vocab_projector(
            model.vocab_layer_norm(model.activation(model.vocab_transform(states)))
        )
    head: Callable[[Tensor], Tensor] = model.cls if kind == "bert" else model.lm_head
    return head


class MicroBatch(NamedTuple):
    """One micro-batch of masked texts as tensors."""

    ids: Tensor
    """`(documents, width)`."""
    mask: Tensor | None
    """`(documents, width)`, 0 at padding; None without padding, which is faster."""
    positions: Tensor
    """Masked positions in the flattened `ids`, `(masked,)`, padded with zeros."""
    targets: Tensor
    """Masked tokens, `(masked,)`; -100 at padded `positions`."""
    divisor: int
    """Masked tokens of the batch in all processes."""


def round_up(size: Any, step: int) -> Any:
    """Return a number, or each number of an array, rounded up to a multiple of `step`."""
    return -(-size // step) * step
