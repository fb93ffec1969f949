"""COCO (Yu et al. 2022, COCO-DR): contrast of spans and masked-LM training, for a DAM.

The two spans of one document are told from all others of the batch, and their masked tokens are restored. A
batch may be larger than memory (gradient cache, Gao et al. 2021): the vectors of all micro-batches are
computed first, then the contrast and its gradient, then each micro-batch again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator, default_rng
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEncoder

from ...encoders.contract import Usage
from ...errors import DataError, ModelError, SettingsError, quantity
from ..backbone import Dam, read_tensors
from ..settings import DamSettings
from ..token_cache import (
    FIXED,
    WINDOWS,
    Frame,
    TokenCache,
    TokenIds,
    TokenWindows,
    choose_words,
    masked_windows,
    scramble,
    visited_documents,
)
from ..torch_models import BackboneModel, plain_tensors
from . import TrainingPrecision
from .mlm import MaskedLm, MicroBatch, fastest_attention, set_up_model

MIN_SPAN_TOKENS = 3
MIN_DOCUMENTS = 2  # in training, and in a batch
CLOSED_EARLY = 0.1  # chance that a span ends although the next sentence would fit


class SpansAndMaskedLm(MaskedLm):
    """The objective COCO: contrast of spans + masked-LM loss, also that of a Condenser head, if any."""

    name = "coco"
    help = "for a DAM, spans of one document attract, and masked-LM"
    on = "documents"
    pooled = True
    title = "COCO"
    source = "Yu et al. 2022, COCO-DR"
    strength = 1.0
    unused = frozenset[str]()
    temperature = 1.0
    late = True
    """Whether the backbone's states also restore masked tokens, like those of a head ("late masked-LM")."""

    def complete(self, dam: Dam, settings: DamSettings, precision: TrainingPrecision) -> None:
        """Set up spans, batch size, pooling and the Condenser head. Raises DataError, SettingsError."""
        _, sizes = self.cache.spans(np.arange(len(self.cache)))
        has_span = sizes >= MIN_SPAN_TOKENS
        self.held_out = int(has_span[: self.held_out].sum())
        self.cache = replace(self.cache, order=self.cache.order[has_span])
        if self.documents < MIN_DOCUMENTS:
            raise DataError(
                f"found {quantity(self.documents, 'document')} of {MIN_SPAN_TOKENS} tokens, enough for a "
                f"span; {MIN_DOCUMENTS} are needed to tell them apart",
                hint="train on more documents, or with --objective mlm",
            )
        if settings.batch_size < MIN_DOCUMENTS:
            raise SettingsError(
                f"a batch of {settings.batch_size} document has no other spans to compare with",
                hint=f"--batch-size {MIN_DOCUMENTS} or more; hundreds are usual",
            )
        size, count = min(settings.batch_size, self.documents), self.processes.count
        self.batch_size = max(1, size // count) * count
        self.recipe = replace(self.recipe, decay=True)
        self.span_tokens = settings.span_tokens
        usage = Usage(settings.pooling, "ip", {}, self.max_tokens)
        self.pool = BackboneModel(self.model.base_model, usage, None).pool
        self.condenser = make_condenser(dam, settings.head_layers, settings.seed)
        self.projection: torch.nn.Module = torch.nn.Identity()
        layers = int(self.model.config.num_hidden_layers)
        self.skip_from = layers // 2 if settings.skip_from is None else settings.skip_from
        if self.skip_from > layers:
            raise SettingsError(f"--skip-from {self.skip_from}: the model has {layers} layers")
        if self.condenser is not None:
            attention = fastest_attention(self.processes.device, precision)
            set_up_model(self.condenser, settings.dropout, attention).to(self.processes.device)
            self.module = torch.nn.ModuleList([self.model, self.condenser])
            self.weights = {**self.weights, **self.condenser.named_weights()}

    def write_extra_weights(self, folder: Path) -> list[str]:
        """Write the Condenser head, for further training on another corpus; return the files' names."""
        if self.condenser is None:
            return []
        weights = plain_tensors(self.condenser.named_weights())
        save_file(weights, folder / CONDENSER_FILE, metadata={"format": "pt"})
        return [CONDENSER_FILE]

    def windows(self, step: int) -> TokenWindows:
        """Return the spans of a step in pairs a1 b1 a2 b2 …; an epoch visits no document twice."""
        batches = max(1, self.documents // self.batch_size)
        epoch, batch = divmod(step - 1, batches)
        start = epoch * self.documents + batch * self.batch_size
        rows = self.held_out + visited_documents(self.documents, start, self.batch_size, self.seed)
        return self.pairs(rows, default_rng([self.seed, WINDOWS, step]))

    def pairs(self, rows: TokenIds, random: Generator) -> TokenWindows:
        """Return two random spans of each document with masked words."""
        spans = draw_pairs(self.cache, self.frame, rows, self.span_tokens, self.seed, random)
        return masked_windows(self.cache, self.frame, spans, self.max_tokens, random, choose_words)

    def unseen_windows(self) -> TokenWindows:
        """Return the fixed span pairs of the held-out documents, as many for each process."""
        rows = np.arange(self.held_out - self.held_out % self.processes.count)
        return self.pairs(rows, default_rng([self.seed, FIXED]))

    def share(self, windows: TokenWindows) -> Iterator[Any]:
        """Yield this process's micro-batches of pairs; if there are several, with the cached gradient."""
        pairs = np.arange(len(windows.lengths)).reshape(-1, 2)
        texts = pairs[self.processes.rank :: self.processes.count].ravel()
        batches = [(np.searchsorted(texts, rows), part) for rows, part in self.micro_batches(windows, texts)]
        seed = torch.initial_seed()  # both passes of a micro-batch use the same dropout
        parts = [Spans(part, torch.from_numpy(rows), seed + i) for i, (rows, part) in enumerate(batches)]
        is_single = not parts or len(parts) == self.processes.count == 1
        return iter(parts if is_single else self.cached(parts))

    def cached(self, parts: list[Spans]) -> list[Spans]:
        """Return the micro-batches with their part of the contrast, as value and gradient of vectors."""
        with torch.no_grad():
            vectors = torch.cat([self.forward(part)[0] for part in parts])
        places = torch.cat([part.places for part in parts])
        with torch.enable_grad():
            leaf = vectors[torch.argsort(places)].requires_grad_()
            losses = self.contrast(self.processes.gathered(leaf))
            (gradient,) = torch.autograd.grad(losses.mean(), leaf)
        offset = self.processes.rank * len(leaf)
        shares = losses.detach()[offset : offset + len(leaf)] / len(losses)
        return [
            part._replace(value=shares[part.places].sum(), gradient=gradient[part.places]) for part in parts
        ]

    def loss(self, part: Spans) -> Tensor:  # type: ignore[override]
        """Return the loss of a micro-batch, whose gradient is its part of the batch's gradient."""
        return sum(self.terms(part).values(), start=torch.zeros((), device=self.processes.device))

    def terms(self, part: Spans) -> dict[str, Tensor]:
        """Return the parts of a micro-batch's loss by name: contrast, mlm_backbone, mlm_head."""
        vectors, states = self.forward(part)
        if part.gradient is None:  # the only micro-batch
            contrast = self.contrast(vectors[torch.argsort(part.places)]).mean()
        else:
            inner = (vectors * part.gradient).sum()
            contrast = part.value + inner - inner.detach()
        losses = {"contrast": contrast}
        if len(part.batch.positions) and self.late:
            losses["mlm_backbone"] = self.masked_lm_loss(states[-1], part.batch)
        if len(part.batch.positions) and self.condenser is not None:
            condensed = self.condenser(states[-1], states[self.skip_from], part.batch.mask)
            losses["mlm_head"] = self.masked_lm_loss(condensed, part.batch)
        return losses

    def forward(self, part: Spans) -> tuple[Tensor, list[Tensor]]:
        """Return spans' vectors `(n, dim)` and states `(n, width, dim)`, of all layers or the last."""
        if self.dropout:
            torch.manual_seed(part.seed)
        batch, all_layers = part.batch, self.condenser is not None
        output = self.model.base_model(
            input_ids=batch.ids, attention_mask=batch.mask, output_hidden_states=all_layers
        )
        mask = torch.ones_like(batch.ids) if batch.mask is None else batch.mask
        vectors = self.projection(self.pool(output[0], mask)).float()
        return vectors, [*(output.hidden_states[:-1] if all_layers else ()), output[0]]

    def contrast(self, vectors: Tensor) -> Tensor:
        """Return the contrastive losses of all rows, computed in fp32."""
        with torch.autocast(self.processes.device.type, enabled=False):
            return sequence_contrastive(vectors, self.temperature)


class Spans(NamedTuple):
    """A micro-batch of spans."""

    batch: MicroBatch
    places: Tensor
    """Indices of its rows among this process's a1 b1 a2 b2 …, `(n,)`."""
    seed: int
    """Seed of dropout."""
    value: Tensor | float = 0.0
    """Part of the contrast, if that is cached."""
    gradient: Tensor | None = None
    """Gradient of the contrast by its vectors, `(n, dim)`; None for the only micro-batch."""


def draw_pairs(
    cache: TokenCache, frame: Frame, rows: TokenIds, limit: int, seed: int, random: Generator
) -> tuple[TokenIds, TokenIds]:
    """Return starts (in `cache.ids`) and lengths of two random spans of each document, `(2n,)`: a1 b1 a2 b2 …

    A document with only one span gives that span twice; the two are masked differently.
    """
    pairs = []
    for start, size in zip(*(array.tolist() for array in cache.spans(rows)), strict=True):
        borders = cut_spans(np.asarray(cache.ids[start : start + size]), start, frame, limit, seed)
        count = len(borders) - 1
        first = int(random.integers(count))
        second = (first + 1 + int(random.integers(count - 1))) % count if count > 1 else first
        pairs += [(start + borders[i], borders[i + 1] - borders[i]) for i in (first, second)]
    begins, lengths = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
    return begins, lengths


def cut_spans(ids: TokenIds, start: int, frame: Frame, limit: int, seed: int) -> list[int]:
    """Return the start positions of a document's spans of whole sentences, and its end, reproducibly.

    A span grows by sentences to at most `limit` tokens, but one in ten begins a new span (Yu et al. 2022).
    Longer sentences, which the paper's code leaves whole, are cut.
    """
    ends = np.flatnonzero(np.isin(ids, frame.stops)) + 1
    ends = np.unique(np.concatenate([ends, [len(ids)]]))
    early = scramble((start + ends).astype(np.uint64), seed) < CLOSED_EARLY * 2.0**64
    borders, sentence_start, must_end = [0], 0, False
    for end, close in zip(ends.tolist(), early.tolist(), strict=True):
        if (must_end or end - borders[-1] > limit) and sentence_start - borders[-1] >= MIN_SPAN_TOKENS:
            borders.append(sentence_start)
        while end - borders[-1] > limit:
            borders.append(borders[-1] + limit)
        sentence_start, must_end = end, close
    if len(borders) > 1 and len(ids) - borders[-1] < MIN_SPAN_TOKENS:
        borders.pop()
    return [*borders, len(ids)]


def sequence_contrastive(states: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the losses `(2n,)` of telling a span of the same document from all others in the batch.

    `states` `(2n, dim)` are [CLS] states, those of one document adjacent. Scores are products; a span is no
    candidate for itself. COCO-DR (Yu et al. 2022, equation 5), after coCondenser (Gao and Callan 2022).
    """
    scores = states @ states.T / temperature
    scores = scores.masked_fill(torch.eye(len(states), dtype=torch.bool, device=states.device), -torch.inf)
    partners = torch.arange(len(states), device=states.device) ^ 1
    return functional.cross_entropy(scores, partners, reduction="none")


CONDENSER_FILE = "condenser.safetensors"
CONDENSER = "condenser."


class CondenserHead(torch.nn.Module):
    """Layers of BERT that restore masked tokens from an early layer and the last [CLS] (Gao and Callan 2021).

    So [CLS] learns the information that these layers lack.
    """

    def __init__(self, config: Any, layers: int) -> None:
        """Make layers with the sizes of a backbone's configuration and random weights as in BERT."""
        super().__init__()
        sizes = {name: getattr(config, name) for name in ("hidden_size", "num_attention_heads")}
        self.layers = BertEncoder(  # type: ignore[no-untyped-call]
            BertConfig(
                **sizes,
                num_hidden_layers=layers,
                intermediate_size=getattr(config, "intermediate_size", None) or config.hidden_dim,
                hidden_act=getattr(config, "hidden_act", None) or config.activation,
                layer_norm_eps=getattr(config, "layer_norm_eps", 1e-12),
            )
        )
        for module in self.layers.modules():
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=config.initializer_range)
                torch.nn.init.zeros_(module.bias)

    def set_attn_implementation(self, attention: str) -> None:
        """Set how attention is computed: "eager" or "sdpa"."""
        self.layers.config._attn_implementation = attention

    def forward(self, last: Tensor, early: Tensor, mask: Tensor | None) -> Tensor:
        """Return the states `(n, tokens, dim)` computed from [CLS] of `last` and the other tokens of `early`.

        `mask` `(n, tokens)` is 0 at padding; None without padding.
        """
        hidden = None
        if mask is not None:
            hidden = (1 - mask[:, None, None]).to(last.dtype) * torch.finfo(last.dtype).min
        states: Tensor = self.layers(torch.cat([last[:, :1], early[:, 1:]], dim=1), hidden)[0]
        return states

    def named_weights(self) -> dict[str, torch.nn.Parameter]:
        """Return each weight by its name in a checkpoint: `condenser.0.attention.self.query.weight`."""
        return {
            CONDENSER + name.removeprefix("layer."): parameter
            for name, parameter in self.layers.named_parameters()
        }


def make_condenser(dam: Dam, count: int | None, seed: int) -> CondenserHead | None:
    """Return the Condenser head stored beside a DAM, or a new one of `count` layers drawn from the seed.

    `count` None takes as many layers as the stored head has; without layers the result is None. Raises
    ModelError if the stored head has another number of layers.
    """
    path = dam.folder / CONDENSER_FILE
    tensors = read_tensors(path, str(path)) if path.is_file() else {}
    stored_layers = len({name.split(".")[1] for name in tensors})
    layers = stored_layers if count is None else count
    if not layers:
        return None
    if stored_layers not in (0, layers):
        raise ModelError(
            f"the DAM {dam.folder} was trained with a head of {stored_layers} layers, not of {layers}",
            hint=f"--head-layers {stored_layers}, or 0 to go on without",
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = CondenserHead(dam.model.config, layers)
    fill_head(head, tensors, path)
    return head


def fill_head(head: CondenserHead, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy stored weights, if there are any, into a head. Raises ModelError if they do not fit."""
    weights = head.named_weights()
    if tensors and {name: tensor.shape for name, tensor in tensors.items()} != {
        name: parameter.shape for name, parameter in weights.items()
    }:
        raise ModelError(f"the weights in {path} do not fit the DAM beside them", hint="fetch both again")
    with torch.no_grad():
        for name, value in tensors.items():
            weights[name].copy_(value)
