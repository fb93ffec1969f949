"""Replays cases of golden/traces by the product's own training (golden/traces/README.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from hybridr.training.backbone import read_dam
from hybridr.training.batches import Batch, Examples, Rows, TargetBatch, TargetBatches, TargetTexts
from hybridr.training.loop import Processes, train
from hybridr.training.objectives import Recipe
from hybridr.training.objectives.berm import Berm, Bm25Units
from hybridr.training.objectives.contrast import Contrastive
from hybridr.training.objectives.groupdro import GreedyDro, GroupDro
from hybridr.training.objectives.idro import Idro, IdroRule
from hybridr.training.objectives.labelled import EncodedApart, Plain
from hybridr.training.objectives.modir import Game, Modir
from hybridr.training.objectives.pairwise import Pairwise
from hybridr.training.rankers import Dense
from hybridr.training.rem import unfreeze
from hybridr.training.settings import RemSettings
from support.projection import ProjectionHead

RANKINGS: dict[str, type[EncodedApart]] = {"pairwise": Pairwise, "in_batch": Contrastive}
Arrays = Mapping[str, np.ndarray]


def replay(folder: Path, models: Path) -> dict[str, np.ndarray]:
    """Train as the case in `folder` says, from a model below `models`; keys as in `expected.npz`."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    if case["method"] == "coco":
        from support.coco_traces import replay_coco

        return replay_coco(folder, models)
    with np.load(folder / "batches.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    objective = objective_of(case, arrays, models)
    method, looks = METHODS[case["method"]](objective, case["settings"], arrays)
    objective.method = method
    return trained(objective, method, looks, recipe_of(case["optimiser"], case["steps"], case["clip"]))


def trained(
    objective: EncodedApart, method: Plain, looks: Callable[[], dict[str, Any]], recipe: Recipe
) -> dict[str, np.ndarray]:
    """Train, look at the method after every step, and give what was seen and the final weights."""
    seen: dict[str, list[Any]] = {}

    def look(*_: Any) -> None:
        for name, value in looks().items():
            seen.setdefault(name, []).append(np.asarray(value))

    with TemporaryDirectory() as folder:
        state = Path(folder) / "training.safetensors"
        objective.recipe = recipe
        run = train(objective, state, "trace", carried_state=method, progress=look)
    found = {name: np.stack(values) for name, values in seen.items()}
    found |= {"loss": np.array(run.losses), "gradient_norm": np.array(run.observed["gradient_norm"])}
    return found | {f"final/{name}": one.detach().numpy() for name, one in objective.weights.items()}


def recipe_of(optimiser: Mapping[str, Any], steps: int, clip: float) -> Recipe:
    adam = {"weight_decay": optimiser["weight_decay"]} if optimiser["name"] == "adamw" else {}
    if adam:
        adam |= {"betas": tuple(optimiser["betas"]), "eps": optimiser["eps"]}
    return Recipe(steps, optimiser["rate"], seed=0, clip=clip, optimizer=optimiser["name"], **adam)


def objective_of(case: Mapping[str, Any], arrays: Arrays, models: Path) -> EncodedApart:
    """Open the model of a case, with its head where it has one, and set up its ranking loss."""
    settings = case["settings"]
    ranker = Dense(read_dam(models / case["start"]), case["pooling"])
    if case["head"] == "ance":
        ranker.head = ProjectionHead(ranker.dim)
        start = {name: torch.from_numpy(one) for name, one in arrays.items() if "start/head." in name}
        ranker.head.load_state_dict({name.removeprefix("start/head."): one for name, one in start.items()})
    elif case["head"] is not None:
        raise ValueError(f"no head {case['head']}")
    backbone = {f"{case['architecture']}.{name}": one for name, one in ranker.backbone.named_parameters()}
    head = {f"head.{name}": one for name, one in ranker.head.named_parameters()}
    ranking = settings["ranking"]
    given = RemSettings(
        dam="trace",
        dropout=False,
        full=True,
        max_query_tokens=ranker.max_tokens,
        max_document_tokens=ranker.max_tokens,
        inv_temperature=1 / settings.get("temperature", 1.0) if ranking == "in_batch" else 1.0,
    )
    batches: Any = FixedBatches(arrays)
    return RANKINGS[ranking](ranker, unfreeze(backbone | head), batches, given, "fp32", Processes("cpu"))


def rows_of(arrays: Arrays, *names: str) -> Rows:
    """Give the rows of all steps, one array after the other, without padding."""
    return Rows.of(
        ids[mask > 0]
        for name in names
        for step_ids, step_mask in zip(arrays[f"{name}_ids"], arrays[f"{name}_mask"], strict=True)
        for ids, mask in zip(step_ids, step_mask, strict=True)
    )


class FixedBatches:
    """The batches of a case: positives come first among the documents, then negatives."""

    per_epoch = 1

    def __init__(self, arrays: Arrays) -> None:
        self.steps, self.size = arrays["query_ids"].shape[:2]
        self.negatives = arrays["negative_ids"].shape[1]
        queries = rows_of(arrays, "query")
        own = Rows.of([number] for number in range(len(queries)))
        self.examples = Examples(queries, rows_of(arrays, "positive", "negative"), own, own)

    def __call__(self, step: int) -> Batch:
        own = np.arange((step - 1) * self.size, step * self.size)
        first = self.steps * self.size + (step - 1) * self.negatives
        negatives = np.arange(first, first + self.negatives)
        shape = (self.size, -1) if self.negatives % self.size == 0 else (1, -1)
        return Batch(step, own, own, negatives.reshape(shape))


class FixedTarget(TargetBatches):
    """The target of a case: first documents, then second ones."""

    def __init__(self, arrays: Arrays) -> None:
        queries = rows_of(arrays, "target_query")
        documents = rows_of(arrays, "target_first", "target_second")
        super().__init__(
            TargetTexts(queries, documents, np.arange(len(queries))), arrays["query_ids"].shape[1], seed=0
        )

    def __call__(self, step: int) -> TargetBatch:
        own = np.arange((step - 1) * self.size, step * self.size)
        return TargetBatch(own, own, own + len(self.texts.queries))


Method = tuple[Plain, Callable[[], dict[str, Any]]]
"""The product's method, and what to look at after every step."""


def idro(objective: EncodedApart, settings: Mapping[str, Any], arrays: Arrays) -> Method:
    names = ("variant", "power", "rate", "decay", "floor")
    rule = IdroRule(**{name: settings[name] for name in names if settings.get(name) is not None})
    method = Idro(
        objective,
        arrays["groups"].ravel().astype(np.int64),
        settings["groups"],
        rule,
        layers=settings["gradient_layers"],
        used=settings["weights_used"],
    )
    return method, lambda: dict(method.last_values)


def groupdro(objective: EncodedApart, settings: Mapping[str, Any], arrays: Arrays) -> Method:
    rule = GreedyDro(settings["share"], settings["decay"], settings["floor"])
    groups = arrays["groups"].ravel().astype(np.int64)
    method = GroupDro(objective, groups, settings["groups"], rule, used=settings["weights_used"])
    return method, lambda: method.last_values | {"running_means": method.means, "running_sizes": method.sizes}


def modir(objective: EncodedApart, settings: Mapping[str, Any], arrays: Arrays) -> Method:
    game = Game(
        loss=settings["loss"],
        weight=settings["lambda"],
        half_life=settings["half_life"],
        queue=settings["queue"],
        entries=settings["entries_per_update"],
        traversal=settings["traversal"],
        bound=settings["clamp"],
        recipe=recipe_of(settings["classifier_optimiser"], 0, settings["classifier_clip"]),
    )
    start = torch.from_numpy(arrays["start/classifier"])
    method = Modir(objective, FixedTarget(arrays), game, classifier=start)

    def looks() -> dict[str, Any]:
        classifier = method.classifier
        found = {name: value for name, value in method.last_values.items() if name != "local_accuracy"}
        pushed = found.pop("pushed")
        names = ("source_query", "source_document", "target_query", "target_document")
        return found | {
            "loss_classifier": classifier.losses,
            "classifier_gradient_norms": classifier.norms,
            "classifier": classifier.weights.detach().clone(),
            "queue_length": len(classifier.queue),
            "queue_reads": classifier.reads,
            **{f"pushed/{name}": one for name, one in zip(names, pushed, strict=True)},
        }

    return method, looks


def berm(objective: EncodedApart, settings: Mapping[str, Any], arrays: Arrays) -> Method:
    method = Berm(
        objective,
        unit_scores(objective, settings, arrays),
        [settings["period"]],
        alpha=settings["alpha"],
        beta=settings["beta"],
        variant=settings["variant"],
    )
    if settings.get("unit_source", "states") != "states":
        raise ValueError(f"no unit source {settings['unit_source']}")

    def looks() -> dict[str, Any]:
        scores = [
            np.pad(one, (0, settings["most_units"] - len(one)), constant_values=np.nan)
            for one in method.last_values["unit_scores"]
        ]
        return method.last_values | {"unit_scores": np.stack(scores)}

    return method, looks


def unit_scores(objective: EncodedApart, settings: Mapping[str, Any], arrays: Arrays) -> Any:
    """Give the product's BM25, or the scores of the case."""
    if "unit_scores" in arrays:
        given = arrays["unit_scores"].reshape(-1, arrays["unit_scores"].shape[-1])
        return lambda query, document, spans: given[query][: len(spans)]
    bm25, examples = settings["bm25"], objective.batches.examples
    read = arrays.get("reader_scores")
    read = None if read is None else read.reshape(-1, read.shape[-1])
    return Bm25Units(
        examples.queries,
        examples.documents,
        arrays["document_frequencies"],
        bm25["documents"],
        bm25["average_length"],
        reader=lambda query, document: None if read is None else read[document],
        k1=bm25["k1"],
        b=bm25["b"],
        delta=bm25["delta"],
    )


METHODS: dict[str, Callable[[EncodedApart, Mapping[str, Any], Arrays], Method]] = {
    "idro": idro,
    "groupdro": groupdro,
    "modir": modir,
    "berm": berm,
}


def differences(found: Mapping[str, np.ndarray], folder: Path) -> dict[str, float]:
    """Give, of each array that was to be, the largest difference in units of its tolerance."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    tolerance = case["tolerance"]
    result = {}
    with np.load(folder / "expected.npz") as expected:
        for name in expected.files:
            if name in DIAGNOSTIC or name in tolerance["not_compared"]:
                continue
            allowed = tolerance["weights" if name.startswith("final/") else "records"]
            wanted, got = expected[name], found[name]
            assert got.shape == wanted.shape, (name, got.shape, wanted.shape)
            assert (np.isnan(got) == np.isnan(wanted)).all(), name
            gap = np.abs(got - wanted) / (allowed * np.maximum(1, np.abs(wanted)))
            result[name] = float(np.nanmax(gap, initial=0.0))
        assert {name for name in found if name.startswith("final/")} == {
            name for name in expected.files if name.startswith("final/")
        }
    return result


DIAGNOSTIC = {"group_gradient_norms", "group_gains"}
