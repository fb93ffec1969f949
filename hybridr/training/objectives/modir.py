"""MoDIR (Xin et al. 2022): makes vectors of source and target domain indistinguishable to a classifier."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from ...encoders.contract import Vectors
from ...errors import DataError, SettingsError
from ...relevance.corpus import MIN_QUERIES
from ...settings import Stage
from ..batches import Rows, TargetBatches, TargetTexts
from ..loop import make_optimizer
from ..runs import Training
from . import Recipe
from .labelled import ComparedBatch, EncodedApart, Plain

QUEUE_SAMPLE = 256  # texts of each kind in a diagnosis
DIAGNOSES = 4  # during training; one more follows at the end
CLASSIFIER_RATE = 5  # learning rate relative to the encoder's, as published
DOMAINS = (0, 0, 1, 1)  # of source queries, source documents, target queries, target documents
Traversal = Literal["all", "released", "repeat"]


def domain_logits(classifier: Tensor, vectors: Tensor, bound: float = 5.0) -> Tensor:
    """Return the domain logits `(n, 2)` of vectors `(n, dim)` by a classifier `(2, dim)`, cut to +-`bound`.

    Column 0 is the source domain, column 1 the target. MoDIR (Xin et al. 2022).
    """
    return (vectors @ classifier.T).clamp(-bound, bound)


def domain_loss(logits: Tensor, domain: int) -> Tensor:
    """Return the mean cross-entropy of logits `(n, 2)` with one domain, 0 or 1.

    On detached vectors it trains the classifier; on the target's with domain 0 it is the "GAN" loss of MoDIR.
    """
    return functional.cross_entropy(logits, torch.full((len(logits),), domain, device=logits.device))


def confusion_loss(logits: Tensor) -> Tensor:
    """Return MoDIR's default loss, which is least (log 2) if neither domain fits better."""
    return (domain_loss(logits, 0) + domain_loss(logits, 1)) / 2


def minimax_loss(source: Tensor, target: Tensor) -> Tensor:
    """Return minus the classifier's loss on the logits of both domains."""
    return -(domain_loss(source, 0) + domain_loss(target, 1))


def adversarial_loss(kind: str, logits: Sequence[Tensor]) -> Tensor:
    """Return the encoder's adversarial loss, summed over the four groups of texts of a step.

    `logits` are of source queries, source documents, target queries and target documents; `kind` is
    "confusion", "minimax" or "gan".
    """
    source, target = logits[:2], logits[2:]
    if kind == "confusion":
        return torch.stack([confusion_loss(part) for part in logits]).sum()
    if kind == "minimax":
        return torch.stack([minimax_loss(*pair) for pair in zip(source, target, strict=True)]).sum()
    return torch.stack([domain_loss(part, 0) for part in target]).sum()


@dataclass(frozen=True)
class Game:
    """The settings of the adversarial training; defaults are those of Xin et al. 2022."""

    loss: str = "confusion"
    """Loss of the encoder: "confusion", "minimax" or "gan"."""
    weight: float = 1.0
    """Weight of that loss (lambda) in the first step; it halves every `half_life` steps."""
    half_life: float = 10_000
    queue: int = 1000
    """Steps whose vectors train the classifier: the number of entries that every step reads."""
    entries: int = 50
    """Entries of one update of the classifier; `queue` is a multiple of it."""
    traversal: Traversal = "all"
    """"all" reads from the oldest entry, "released" from the second, "repeat" only the newest."""
    bound: float = 5.0
    """Largest absolute value of the logits; beyond it there is no gradient."""
    recipe: Recipe = Recipe(steps=0, learning_rate=5e-6, seed=0)
    """Optimisation of the classifier; its rate is constant."""

    def __post_init__(self) -> None:
        if self.queue % self.entries:
            raise SettingsError(
                f"a queue of {self.queue} is not a multiple of the {self.entries} entries of an update",
                hint=f"set queue = {max(1, self.queue // self.entries) * self.entries}",
            )

    def reads(self, length: int) -> list[int]:
        """Return numbers of the queue's entries that a step reads, 0 the oldest; the newest may repeat."""
        if self.traversal == "repeat":
            return [length - 1] * self.queue
        start = 1 if self.traversal == "released" else 0
        return [min(number, length - 1) for number in range(start, start + self.queue)]


class Classifier:
    """A linear classifier of domains, trained on a queue of the last steps' vectors."""

    def __init__(self, game: Game, weights: Tensor) -> None:
        """Take the initial weights `(2, dim)`."""
        self.game = game
        self.weights = torch.nn.Parameter(weights.clone())
        self.optimizer = make_optimizer({"classifier": self.weights}, game.recipe)
        self.queue: deque[Tensor] = deque(maxlen=game.queue)
        """Vectors `(4, n, dim)` of a step each, the oldest first."""
        self.reads: list[int] = []
        self.losses: list[float] = []
        self.norms: list[float] = []
        """Losses and norms of the gradient before each update of the last step."""

    def logits(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return the domain logits of the four groups of vectors; no gradient reaches the classifier."""
        return [domain_logits(self.weights.detach(), part, self.game.bound) for part in vectors]

    def learn(self, vectors: Tensor) -> None:
        """Add a step's vectors `(4, n, dim)` to the queue; train the classifier on it, oldest first."""
        self.queue.append(vectors)
        self.reads = self.game.reads(len(self.queue))
        size = self.game.entries
        parts = [self.reads[start : start + size] for start in range(0, len(self.reads), size)]
        self.losses, self.norms = [], []
        for part in parts:  # the factor `entries` undoes their averaging
            entries = torch.cat([self.queue[number] for number in part], dim=1)  # (4, n * entries, dim)
            with torch.enable_grad():
                logits = [domain_logits(self.weights, vector, self.game.bound) for vector in entries]
                losses = [domain_loss(*pair) for pair in zip(logits, DOMAINS, strict=True)]
                loss = size * torch.stack(losses).sum()
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_([self.weights], self.game.recipe.clip or torch.inf)
            self.optimizer.step()
            self.losses.append(loss.item())
            self.norms.append(float(norm))

    def tensors(self) -> dict[str, Any]:
        """Return weights, the state of the optimiser and the queue for a checkpoint."""
        weights, queue = self.weights.detach(), torch.stack(list(self.queue))
        return {"classifier": weights, "optimizer": self.optimizer.state_dict(), "queue": queue}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Restore weights, optimiser and queue from those of a checkpoint."""
        with torch.no_grad():
            self.weights.copy_(tensors["classifier"])
        self.queue.extend(tensors["queue"].to(self.weights.device))
        self.optimizer.load_state_dict(tensors["optimizer"])


class ModirSettings(Stage):
    """Settings of MoDIR; defaults are those of Xin et al. 2022."""

    table: ClassVar[str] = "rem.method_settings"

    invariance: float = Field(1.0, ge=0, le=1000, description="its weight; it halves every 10,000 steps")
    adversary: Literal["confusion", "minimax", "gan"] = Field(
        "confusion", description="how vectors confuse the classifier of domains"
    )
    queue: int = Field(1000, ge=1, le=100_000, description="steps whose vectors the classifier reads")
    queue_entries: int = Field(50, ge=1, description="of the queue, in one of its updates")

    def model_post_init(self, _: Any) -> None:
        """Raise SettingsError early for a queue that is not a multiple of its entries."""
        Game(queue=self.queue, entries=self.queue_entries)


class Modir(Plain):
    """MoDIR as a method: an extra loss makes source and target vectors alike (Xin et al. 2022)."""

    name = "modir"
    help = "vectors that do not tell the source's from the target's"
    on = "method"
    needs_negatives = True
    needs_target = True
    source = "Xin et al. 2022 (MoDIR)"
    own_settings = ModirSettings

    def __init__(
        self,
        objective: EncodedApart,
        target: TargetBatches,
        game: Game,
        *,
        classifier: Tensor | None = None,
        diagnosis: Diagnosis | None = None,
    ) -> None:
        """Take the target's batches; without `classifier`, its weights are drawn by the recipe's seed."""
        self.objective, self.target, self.game = objective, target, game
        device = objective.processes.device
        if classifier is None:
            dim, generator = int(objective.module.config.hidden_size), torch.Generator()
            uniform = torch.rand(2, dim, generator=generator.manual_seed(game.recipe.seed))
            classifier = (2 * uniform - 1) / sqrt(dim)  # uniform within 1 / sqrt(dim)
        self.classifier = Classifier(game, classifier.to(device))
        self.diagnosis = diagnosis
        self.last_values: dict[str, Any] = {}
        """Values of the last step, by name."""

    @staticmethod
    def kept_vectors(method_settings: Any) -> int:
        """Return the number of vectors per query in all entries of the queue."""
        return len(DOMAINS) * int(method_settings.queue)

    @classmethod
    def create(cls, objective: EncodedApart, settings: Any, seed: int, target: TargetTexts | None) -> Modir:
        """Return the method for the target, with a diagnosis before the first step and three more."""
        assert target is not None  # a target selects this method
        rate = CLASSIFIER_RATE * objective.recipe.learning_rate
        game = Game(
            loss=settings.adversary,
            weight=settings.invariance,
            queue=settings.queue,
            entries=settings.queue_entries,
            recipe=Recipe(steps=0, learning_rate=rate, seed=seed),
        )
        batches = TargetBatches(target, objective.batches.size, seed)
        interval = max(1, -(-objective.recipe.steps // DIAGNOSES))
        return cls(objective, batches, game, diagnosis=Diagnosis(objective, batches, interval, seed))

    def extra_vectors(self, step: int) -> tuple[Tensor, ...]:
        """Return vectors of target queries and a document each: in odd steps the second, else the first."""
        objective = self.objective
        if self.diagnosis is not None and (step - 1) % self.diagnosis.every == 0:
            self.diagnosis.measure()
        batch = self.target(step).share(objective.processes.rank, objective.processes.count)
        texts, limits = self.target.texts, objective.limits
        queries = objective.encode(texts.queries, batch.queries, limits.query)
        numbers = batch.second if step % 2 else batch.first
        documents = objective.encode(texts.documents, numbers, limits.document)
        return tuple(objective.processes.gathered(passages.vectors) for passages in (queries, documents))

    def loss(self, compared: ComparedBatch) -> Tensor:
        """Train the classifier on the queue; return the ranking loss plus the weighted adversarial one."""
        step, ranking = compared.batch.step, compared.losses.mean()
        documents = compared.positives
        if step % 2:  # in odd steps the first negative of each source query
            documents = compared.negatives.view(len(documents), -1, documents.shape[1])[:, 0]
        vectors = (compared.queries, documents, *compared.extra_vectors)
        guesses = zip(self.classifier.logits(vectors), DOMAINS, strict=True)
        hits = torch.cat([part.argmax(1) == domain for part, domain in guesses])
        pushed = torch.stack([part.detach() for part in vectors])
        self.classifier.learn(pushed)
        logits = self.classifier.logits(vectors)
        term = adversarial_loss(self.game.loss, logits)
        weight = float(self.game.weight * 2 ** (-(step - 1) / self.game.half_life))  # lambda of the step
        self.last_values = {
            "loss_ranking": ranking.item(),
            "loss_adversarial": term.item(),
            "lambda": weight,
            "local_accuracy": float(hits.float().mean()),
            "classifier_logits": torch.stack(logits).detach(),
            "pushed": pushed,
        }
        return ranking + weight * term

    def tensors(self) -> dict[str, Any]:
        """Return classifier, queue and last diagnosis for a checkpoint."""
        return self.classifier.tensors() | {"diagnosis": self.diagnosis and self.diagnosis.last}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Restore classifier, queue and last diagnosis from those of a checkpoint."""
        self.classifier.restore(tensors)
        if self.diagnosis is not None:
            self.diagnosis.last = tensors["diagnosis"]

    def observed(self) -> dict[str, Any]:
        """Return the terms of the loss, lambda, and the classifier's accuracy on the last batch."""
        names = ("loss_ranking", "loss_adversarial", "lambda", "local_accuracy")
        values = {name: self.last_values[name] for name in names} | {
            "loss_classifier": self.classifier.losses[-1]
        }
        if self.diagnosis is not None:
            values |= {f"accuracy_{side}": value for side, value in self.diagnosis.last.items()}
        return values

    def record(self, run: Training) -> dict[str, Any]:
        """Return the classifier's accuracy at start and end of a run, and the target's sizes."""
        observed, tenth = run.observed, max(1, len(run.losses) // 10)
        local = observed["local_accuracy"]
        assert self.diagnosis is not None  # set by `create`
        return {
            "target_queries": len(self.target.texts.queries),
            "target_documents": len(self.target.texts.documents),
            "local_accuracy": [float(np.mean(local[:tenth])), float(np.mean(local[-tenth:]))],
            **{
                f"accuracy_{side}": [observed[f"accuracy_{side}"][0], value]
                for side, value in self.diagnosis.measure().items()
            },
        }


class Diagnosis:
    """Measures how well a new classifier tells the domains apart, on samples encoded every `every` steps."""

    def __init__(self, objective: EncodedApart, target: TargetBatches, every: int, seed: int) -> None:
        """Draw the samples, at most `QUEUE_SAMPLE` queries and documents of each domain."""
        examples, limits = objective.batches.examples, objective.limits
        random = default_rng([seed, 12])
        relevant = Rows.of([row[:1] for row in examples.positives]).values
        self.samples = [
            (rows, random.permutation(numbers)[:QUEUE_SAMPLE].tolist(), limit)
            for rows, numbers, limit in (
                (examples.queries, np.arange(len(examples.queries)), limits.query),
                (examples.documents, relevant, limits.document),
                (target.texts.queries, np.arange(len(target.texts.queries)), limits.query),
                (target.texts.documents, np.arange(len(target.texts.documents)), limits.document),
            )
        ]
        self.objective, self.every, self.seed = objective, every, seed
        self.last = dict.fromkeys(("queries", "documents"), 0.0)
        """The last measurement; 0.0 before any."""

    def measure(self) -> dict[str, float]:
        """Encode the samples, train a classifier, and return its accuracy for queries and documents."""
        module = self.objective.module
        was_training = module.training
        queries, documents, target_queries, target_documents = (
            module.encode_documents([rows[number].tolist() for number in numbers], max_tokens=limit)
            for rows, numbers, limit in self.samples
        )
        module.train(was_training)
        groups = [(queries, target_queries), (documents, target_documents)]
        self.last = dict(zip(("queries", "documents"), domain_accuracy(groups, self.seed), strict=True))
        return self.last


Doubles: TypeAlias = NDArray[np.float64]
Marked: TypeAlias = tuple[Doubles, NDArray[np.int64]]

TRAIN_SHARE, FITTED_STEPS, BATCH, LEARNING_RATE, CLAMP = 0.7, 500, 48, 5e-4, 5.0


def domain_accuracy(groups: Sequence[tuple[Vectors, Vectors]], seed: int) -> list[float]:
    """Return the accuracy on unseen pairs of a linear classifier of source against target, for each group.

    A group is (source, target), vectors `(n, dim)` of documents, or of queries. Global Domain-Acc of MoDIR:
    equal numbers, 70/30 split, softmax(W e) without bias, logits clamped to [-5, 5], Adam 5e-4, 500 steps of
    48 of each group. .5 means indistinguishable. Raises DataError for fewer than 10 vectors of a side.
    """
    random = np.random.default_rng(seed)
    splits: list[list[Marked]] = []
    for source, target in groups:
        size = min(len(source), len(target))
        if size < MIN_QUERIES:
            raise DataError(f"needed at least {MIN_QUERIES} vectors of source and target, found {size}")
        order, train_size = random.permutation(size), int(TRAIN_SHARE * size)
        parts = order[:train_size], order[train_size:]
        splits.append(
            [
                (
                    np.concatenate([source[rows], target[rows]]).astype(np.float64),
                    np.repeat([0, 1], len(rows)),
                )
                for rows in parts
            ]
        )
    dim = groups[0][0].shape[1]
    weights = torch.nn.Parameter(torch.from_numpy(random.uniform(-1, 1, (2, dim)) / np.sqrt(dim)))
    optimiser = torch.optim.Adam([weights], lr=LEARNING_RATE)
    for _ in range(FITTED_STEPS):
        optimiser.zero_grad()
        for (vectors, labels), _ in splits:
            batch = random.integers(0, len(labels), BATCH)
            logits = (torch.from_numpy(vectors[batch]) @ weights.T).clamp(-CLAMP, CLAMP)
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[batch]))
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    array = weights.detach().numpy()
    return [float(((vectors @ array.T).argmax(axis=1) == labels).mean()) for _, (vectors, labels) in splits]
