"""Span contrast: two spans of one document attract; a low-rank change (LoRA) of a retriever is trained."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from pydantic import Field

from ...encoders.tokens import padded
from ...errors import DataError, ModelError, extra
from ...records import Document
from ...settings import NoOption, Stage
from ..loop import Processes
from ..torch_models import BiEncoder
from . import Recipe

with extra("train", "adapting a model"):
    import peft
    from peft.tuners.lora import LoraLayer

LEAST_SPAN = 8  # tokens; shorter spans say too little about their document
LEAST_TRAINED = 32  # documents that must be long enough for two spans
LONGEST_DOCUMENT = 512  # tokens that are kept of a document; spans come from there
PROJECTIONS = ({"query", "value"}, {"q_lin", "v_lin"}, {"q", "v"}, {"q_proj", "v_proj"})
"""How BERT and RoBERTa, DistilBERT, MPNet, and later models call the two projections."""
WARM_UP = 0.1  # share of the steps in which the learning rate rises; it falls to 0 afterwards


class SpanSettings(Stage):
    """Span contrast: how a retriever is trained. Part of `AdaptSettings`, with the defaults filled in."""

    table: ClassVar[str] = "adapt.objective_settings"

    fields: tuple[str, ...] = ()
    max_documents: int = Field(20_000, ge=10)
    steps: int = Field(60, ge=1)
    batch_size: NoOption[int] = Field(32, ge=2)
    learning_rate: float = Field(2e-4, gt=0, lt=1)
    temperature: float = Field(0.05, gt=0, le=10)
    span_tokens: int = Field(32, ge=8, le=510)
    rank: int = Field(16, ge=1, le=512)
    held_out: int = Field(200, ge=20)
    checkpoint_every: int = Field(20, ge=1)
    seed: int = Field(13, ge=0)


class SpanContrast:
    """Two spans of one document attract each other, whatever else the batch holds."""

    name = "span"
    help = "for a retriever, two spans of one document attract"
    on = "documents"
    fits = "retriever"
    title = "span contrast"
    source = "after Gao and Callan 2022"
    Settings = SpanSettings
    strength = 0.3  # measured: full strength hurts (findings.md)
    dropout = False  # nothing is random but the batches
    shared_loss = True

    def __init__(
        self,
        retriever: BiEncoder,
        documents: Sequence[Document],
        unseen: Sequence[Document],
        settings: SpanSettings,
        processes: Processes,
    ) -> None:
        """Take the documents to train on, and others for the loss. Raises DataError, ModelError."""
        self.corpus, self.unseen = SpanCorpus(documents, retriever), SpanCorpus(unseen, retriever)
        if len(self.corpus) < LEAST_TRAINED:
            raise DataError(
                f"only {len(self.corpus)} documents have {2 * LEAST_SPAN} tokens, enough for two spans; "
                f"{LEAST_TRAINED} are needed",
                hint="use the unadapted encoder: hybridr reindex NAME without --encoder",
            )
        self.module = attach_low_rank(retriever, settings.rank, settings.seed).to(processes.device)
        self.weights: Mapping[str, torch.nn.Parameter] = low_rank_weights(self.module)
        self.recipe = recipe_of(settings)
        self.settings = settings
        self.processes = processes
        self.share = max(1, min(settings.batch_size, len(self.corpus)) // processes.count)  # documents

    def parts(self, step: int) -> Sequence[list[list[int]]]:
        """Give this process's span rows `(2 share, tokens)`; each epoch visits every document once."""
        size = self.share * self.processes.count
        epoch, part = divmod(step - 1, max(1, len(self.corpus) // size))
        order = default_rng([self.settings.seed, 0, epoch]).permutation(len(self.corpus))
        chosen = order[part * size : (part + 1) * size][self.processes.rank :: self.processes.count].tolist()
        alone = self.processes.count == 1
        random = default_rng([self.settings.seed, 1, step, *(() if alone else (self.processes.rank,))])
        return [self.corpus.pairs(chosen, self.settings.span_tokens, random)]

    def loss(self, part: list[list[int]]) -> torch.Tensor:
        """Give the loss over the spans of all processes."""
        vectors = self._encoded(part).float()
        return span_loss(self.processes.gathered(vectors), self.settings.temperature)

    def unseen_loss(self) -> float | None:
        """Measure the loss on fixed spans of the unseen documents; None with fewer than 2 of them."""
        size = min(self.settings.batch_size, len(self.unseen))
        if size < 2:
            return None
        random = default_rng([self.settings.seed, 3])
        losses = []
        self.module.eval()
        with torch.inference_mode():
            for start in range(0, len(self.unseen) - size + 1, size):
                rows = self.unseen.pairs(range(start, start + size), self.settings.span_tokens, random)
                losses.append(span_loss(self._encoded(rows), self.settings.temperature).item())
        return float(np.mean(losses))

    def _encoded(self, rows: list[list[int]]) -> torch.Tensor:
        ids, mask = (torch.from_numpy(array).to(self.processes.device) for array in padded(rows))
        vectors: torch.Tensor = self.module(ids, mask)[1]
        return vectors

    def candidate(self, strength: float) -> BiEncoder:
        """Give the retriever with `strength` (0..1) of the change, on the CPU."""
        return fold_in(self.module.to("cpu"), strength)


def recipe_of(settings: SpanSettings) -> Recipe:
    """Give the schedule of span contrast: a rise over the first tenth of the steps, then a fall to 0."""
    return Recipe(
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        warm_up=max(1, round(WARM_UP * settings.steps)),
        decay=True,
        checkpoint_every=settings.checkpoint_every,
    )


def span_loss(vectors: torch.Tensor, temperature: float) -> torch.Tensor:
    """Symmetric cross entropy of cosine / temperature over the batch's own pairs.

    `vectors` is `(2n, dim)` in the order a1 b1 a2 b2 …; every a must find its b among all b, and back
    (Gao and Callan 2022 with in-batch negatives of the other side; methods B.1).
    """
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    scores = unit[0::2] @ unit[1::2].T / temperature  # (n, n)
    own = torch.arange(len(scores), device=scores.device)
    crossed = torch.nn.functional.cross_entropy
    return (crossed(scores, own) + crossed(scores.T, own)) / 2


class SpanCorpus:
    """Token ids of documents that are long enough for two spans, without special tokens."""

    def __init__(self, documents: Sequence[Document], retriever: BiEncoder) -> None:
        empty, prefix = retriever.tokenizer.ids(["", retriever.usage.prefixes["document"]], None)
        if len(empty) != 2:
            raise ModelError(f"the tokenizer adds {len(empty)} special tokens to a text; 2 are supported")
        self.before, self.after = prefix[:-1], prefix[-1:]
        texts = [document.contents for document in documents]
        cut = LONGEST_DOCUMENT + 2
        inner = (ids[1:-1] for ids in retriever.tokenizer.ids(texts, cut))
        self.rows = [np.asarray(ids, dtype=np.int32) for ids in inner if len(ids) >= 2 * LEAST_SPAN]

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self, positions: Iterable[int], longest: int, random: Generator) -> list[list[int]]:
        """Draw two disjoint spans of each document: `2n` rows with special tokens, a1 b1 a2 b2 …"""
        rows = []
        for position in positions:
            for span in draw_spans(self.rows[position], longest, random):
                rows.append([*self.before, *span.tolist(), *self.after])
        return rows


def draw_spans(
    ids: NDArray[np.int32], longest: int, random: Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Cut two disjoint windows of 8 to `longest` tokens out of a document, in random order."""
    border = int(random.integers(LEAST_SPAN, len(ids) - LEAST_SPAN + 1))
    left, right = window(ids[:border], longest, random), window(ids[border:], longest, random)
    return (left, right) if random.random() < 0.5 else (right, left)


def window(ids: NDArray[np.int32], longest: int, random: Generator) -> NDArray[np.int32]:
    """Cut a random window of 8 to `longest` tokens."""
    size = int(random.integers(LEAST_SPAN, min(longest, len(ids)) + 1))
    start = int(random.integers(0, len(ids) - size + 1))
    return ids[start : start + size]


def attach_low_rank(retriever: BiEncoder, rank: int, seed: int) -> BiEncoder:
    """Give a copy whose backbone carries a fresh LoRA; everything else is frozen.

    The change starts at zero; its random half is drawn from `seed`. Raises ModelError.
    """
    names = {name.rsplit(".", 1)[-1] for name, _ in retriever.backbone.named_modules()}
    targets = next((targets for targets in PROJECTIONS if targets <= names), None)
    if targets is None:
        raise ModelError(f"{retriever.base} has no query and value projections that LoRA could change")
    settings = peft.LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=sorted(targets))
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft calls what transformers renamed
        torch.manual_seed(seed)
        backbone = peft.get_peft_model(copy.deepcopy(retriever.backbone), settings)
    return BiEncoder(backbone, retriever.tokenizer_json, retriever.usage, retriever.folder)


def low_rank_weights(retriever: BiEncoder) -> dict[str, torch.nn.Parameter]:
    """Name the weights that are trained, in a fixed order."""
    return {name: weight for name, weight in retriever.backbone.named_parameters() if weight.requires_grad}


def fold_in(retriever: BiEncoder, strength: float) -> BiEncoder:
    """Give a plain copy with `strength` (0..1) of the low-rank change folded into the weights."""
    backbone: Any = copy.deepcopy(retriever.backbone)
    for module in backbone.modules():
        if isinstance(module, LoraLayer):
            module.scale_layer(strength)
    merged = backbone.merge_and_unload().eval()
    return BiEncoder(merged, retriever.tokenizer_json, retriever.usage, retriever.folder)
