"""Replays a golden trace of COCO by the product's own training; batches and optimiser come with the case."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from hybridr.training.backbone import read_dam
from hybridr.training.loop import Processes, train
from hybridr.training.objectives.coco import Spans, SpansAndMaskedLm, fill_head
from hybridr.training.settings import DamSettings
from hybridr.training.token_cache import Frame, TokenCache, TokenWindows
from support.projection import ProjectionHead
from support.traces import Arrays, recipe_of

FRAME = Frame(2, 3, 4, (), 0)  # batches come ready made: nothing is drawn


class Replayed(SpansAndMaskedLm):
    """The objective on given batches; adds up the terms of a step."""

    def __init__(self, case: dict[str, Any], batches: Arrays, models: Path) -> None:
        settings = case["settings"]
        given = DamSettings(
            batch_size=2,
            pooling=case["pooling"],
            head_layers=settings["condenser_layers"],
            skip_from=settings["skip_from"],
            max_tokens=max(8, batches["ids"].shape[-1]),
            held_out=0,
        )
        dam = read_dam(models / case["start"])
        super().__init__(dam, FRAME, no_documents(), given, "fp32", Processes("cpu"))
        self.batches, self.records = batches, dict[str, float]()
        self.masks = bool(settings["mlm_weight"])
        self.temperature, self.late = settings["temperature"], bool(settings["mlm_backbone"])
        if settings["micro_rows"]:
            self.budget = settings["micro_rows"] * batches["ids"].shape[-1]
        if case["head"] is not None:
            self.projection = ProjectionHead(int(dam.model.config.hidden_size))
            self.weights = {**self.weights, **named("head.", self.projection)}
        self.take(given_weights(batches))

    def take(self, start: dict[str, torch.Tensor]) -> None:
        """Begin from weights that the case gives, by the names it gives them."""
        if self.condenser is not None:
            own = {name: value for name, value in start.items() if name.startswith("condenser.")}
            fill_head(self.condenser, own, Path("batches.npz"))
        with torch.no_grad():
            for name, weight in named("head.", self.projection).items():
                weight.copy_(start[name])

    def windows(self, step: int) -> TokenWindows:
        ids, kept = self.batches["ids"][step - 1].astype(np.int64), self.batches["mask"][step - 1] == 1
        nothing = np.full_like(ids, -100)
        labels = self.batches["labels"][step - 1].astype(np.int64) if self.masks else nothing
        masked = np.flatnonzero(labels[kept] != -100)
        return TokenWindows(ids[kept], kept.sum(axis=1), masked, labels[kept][masked])

    def trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Give what the case trains: without masked-LM not its head."""
        beside = ("condenser.", "head.", f"{self.model.base_model_prefix}.")
        for name, weight in self.weights.items():
            if self.masks or name.startswith(beside):
                yield name, weight

    def terms(self, part: Spans) -> dict[str, torch.Tensor]:
        found = super().terms(part)
        for name, loss in found.items():
            self.records[name] = self.records.get(name, 0.0) + loss.item()
        return found


def replay_coco(folder: Path, models: Path) -> Arrays:
    """Replay the case in `folder`, whose `start` lies below `models`; keys as in its `expected.npz`."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    with np.load(folder / "batches.npz") as stored:
        objective = Replayed(case, dict(stored.items()), models)
    terms: dict[str, list[float]] = {name: [] for name in wanted_terms(case)}

    def look(*_: Any) -> None:
        for name, values in terms.items():
            values.append(objective.records.get(name.removeprefix("loss_"), 0.0))
        objective.records = {}

    with TemporaryDirectory() as place:
        state = Path(place) / "training.safetensors"
        objective.recipe = recipe_of(case["optimiser"], case["steps"], case["clip"])
        run = train(objective, state, "trace", progress=look)
    seen = terms | {"loss": run.losses, "gradient_norm": run.observed["gradient_norm"]}
    found = {name: np.asarray(values) for name, values in seen.items()}
    return found | {f"final/{name}": weight.detach().numpy() for name, weight in objective.trained()}


def wanted_terms(case: dict[str, Any]) -> list[str]:
    """Name the terms that a case records: with masked-LM all, also those that it lacks."""
    masked_lm = ["loss_mlm_backbone", "loss_mlm_head"] if case["settings"]["mlm_weight"] else []
    return ["loss_contrast", *masked_lm]


def named(prefix: str, module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Name a module's weights as a case does."""
    return {f"{prefix}{name}": weight for name, weight in module.named_parameters()}


def given_weights(batches: Arrays) -> dict[str, torch.Tensor]:
    """Give the starting weights that come with the batches."""
    return {
        name.removeprefix("start/"): torch.from_numpy(value)
        for name, value in batches.items()
        if name.startswith("start/")
    }


def no_documents() -> TokenCache:
    """Make a cache of two documents that are never read."""
    ids = np.full(8, 5, dtype=np.uint32)
    return TokenCache(Path(), ids, np.array([4, 8]), np.array([0, 1]), 2, 8, 0, "")
