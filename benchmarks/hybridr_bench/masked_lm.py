"""Masked-LM training against a plain transformers Trainer: tokens per second, and the loss that comes of it.

Both take turns step by step, so that whatever else the machine does slows both. The Trainer is as its own
documentation shows it: DataCollatorForLanguageModeling, batches padded to their longest text, fp32, the
model's own dropout.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

from hybridr.adaptation.dam import frame_of
from hybridr.adaptation.loop import Processes, choose_precision, make_optimizer, take_step
from hybridr.adaptation.objectives import Recipe, TrainingPrecision
from hybridr.adaptation.objectives.mlm import MaskedLm
from hybridr.adaptation.settings import DamSettings
from hybridr.adaptation.token_cache import AROUND, Frame, TokenCache, build_cache
from hybridr.assembly.backbone import Dam, read_dam
from hybridr.encoding.machine import read_cpu
from hybridr.encoding.packaged import minilm
from hybridr.progress import Progress, silent
from hybridr.records import Document

PLAIN = "Trainer fp32"
HELD_OUT = 64
SEED = 13
BATCH_SIZE, MAX_TOKENS = 16, 190  # documents a step, tokens of the longest window
LEARNING_RATE = 5e-4
WEIGHT_DECAY = 0.01
WARM_UP_ROUNDS = 1  # not counted: the first step allocates
LEAST_ROUNDS = 2


@dataclass
class Lane:
    """One way to train, with what it did in the rounds that count."""

    name: str
    tokens: int = 0
    """Real ones, without padding."""
    seconds: float = 0.0
    ratios: list[float] = field(default_factory=list)
    """Tokens per second over those of the Trainer, round by round."""
    unseen_loss: float | None = None
    """On the same windows of the same held-out documents, after the last round."""

    @property
    def tokens_per_second(self) -> float:
        """The speed over all counted rounds."""
        return self.tokens / self.seconds

    def record(self) -> dict[str, Any]:
        """Give the figures as JSON."""
        speed = {"tokens_per_second": round(self.tokens_per_second, 1)}
        times = {"times_by_round": [round(ratio, 3) for ratio in self.ratios]}
        told = {"name": self.name, "tokens": self.tokens, "seconds": round(self.seconds, 3)}
        return told | speed | times | {"unseen_loss": self.unseen_loss}


@dataclass(frozen=True)
class Race:
    """One model size: the lanes, the Trainer's first."""

    size: str
    parameters: int
    steps: int
    unseen_loss_start: float | None
    lanes: tuple[Lane, ...]

    def times(self, lane: Lane) -> float:
        """Give how many times the Trainer's speed a lane has, over all counted rounds."""
        return lane.tokens_per_second / self.lanes[0].tokens_per_second

    def record(self) -> dict[str, Any]:
        """Give the figures as JSON."""
        lanes = [lane.record() | {"times": round(self.times(lane), 3)} for lane in self.lanes]
        return vars(self) | {"lanes": lanes}


def race(
    documents: Iterable[Document],
    *,
    sizes: Sequence[str] = ("MiniLM", "bert-base"),
    batch_size: int = BATCH_SIZE,
    max_tokens: int = MAX_TOKENS,
    seconds: float = 120.0,
    dams: dict[str, Callable[[], Dam]] | None = None,
    progress: Progress = silent,
) -> list[Race]:
    """Train each size for about `seconds`, the Trainer and ours in fp32 and (where it works) bf16 in turns.

    `dams` makes the models by size; None takes the packaged MiniLM with a fresh head tied to its embeddings,
    and a random bert-base with MiniLM's tokenizer. The last documents, `HELD_OUT` at most, are for the loss.
    """
    makers = dams or {"MiniLM": packaged_dam, "bert-base": random_bert_base}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        texts = list(documents)
        for size in sizes:
            dam = makers[size]()
            cache = build_cache(texts, str(dam.tokenizer), Path(folder) / size, seed=SEED)
            track = Track(dam, cache, batch_size, min(max_tokens, dam.max_positions), HELD_OUT)
            found.append(run_race(track, size, seconds, Path(folder), progress))
    return found


def packaged_dam() -> Dam:
    """Open the packaged MiniLM with a fresh, seeded masked-LM head."""
    torch.manual_seed(SEED)
    return read_dam(minilm())


def random_bert_base() -> Dam:
    """Make a bert-base with random weights and MiniLM's tokenizer, which has the same vocabulary."""
    torch.manual_seed(SEED)
    model: Any = transformers.BertForMaskedLM(transformers.BertConfig())
    return replace(packaged_dam(), model=model.eval())


@dataclass(frozen=True)
class Track:
    """What all lanes of one size share."""

    dam: Dam
    cache: TokenCache
    batch_size: int
    max_tokens: int
    held_out: int

    @property
    def frame(self) -> Frame:
        """The special tokens."""
        return frame_of(self.dam)

    def objective(self, model: Any, precision: TrainingPrecision) -> MaskedLm:
        """Put our training around a model."""
        settings = DamSettings(
            batch_size=self.batch_size, max_tokens=self.max_tokens, seed=SEED, held_out=self.held_out
        )
        dam = replace(self.dam, model=model)
        return MaskedLm(dam, self.frame, self.cache, settings, precision, Processes("cpu"))


class Ours:
    """Our training, step by step."""

    def __init__(self, track: Track, precision: TrainingPrecision) -> None:
        self.lane = Lane(f"hybridr {precision}")
        self.objective = track.objective(deepcopy(track.dam.model), precision)
        self.objective.recipe = Recipe(
            steps=1, learning_rate=LEARNING_RATE, seed=SEED, weight_decay=WEIGHT_DECAY, precision=precision
        )
        self.optimizer = make_optimizer(self.objective.weights, self.objective.recipe)

    def step(self, number: int) -> tuple[int, float]:
        """Take one step; give its tokens and seconds."""
        started = time.perf_counter()
        take_step(self.objective, self.optimizer, number)
        seconds = time.perf_counter() - started
        return self.objective.count_tokens(number), seconds


class Turns(transformers.TrainerCallback):
    """Lets the others take a step after each of the Trainer's, and keeps the time of all."""

    def __init__(self, others: Sequence[Ours], counts: list[int], seconds: float, progress: Progress) -> None:
        self.lane = Lane(PLAIN)
        self.others, self.counts, self.seconds, self.progress = others, counts, seconds, progress
        self.began = self.resumed = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock."""
        self.began = self.resumed = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Note the Trainer's step, let the others step, and stop when the time is over."""
        done = state.global_step
        took = time.perf_counter() - self.resumed
        rounds = [(self.lane, self.counts[done - 1], took)]
        rounds += [(other.lane, *other.step(done)) for other in self.others]
        if done > WARM_UP_ROUNDS:
            count(rounds)
        elapsed = time.perf_counter() - self.began
        self.progress("train in turns", min(int(elapsed), int(self.seconds)), int(self.seconds))
        if elapsed > self.seconds and done >= LEAST_ROUNDS + WARM_UP_ROUNDS:
            control.should_training_stop = True
        self.resumed = time.perf_counter()
        return control


def count(rounds: Sequence[tuple[Lane, int, float]]) -> None:
    """Add one round, the Trainer's first, to the lanes."""
    speed = rounds[0][1] / rounds[0][2]
    for lane, tokens, seconds in rounds:
        lane.tokens += tokens
        lane.seconds += seconds
        lane.ratios.append(tokens / seconds / speed)


def run_race(track: Track, size: str, seconds: float, scratch: Path, progress: Progress) -> Race:
    """Train one size in turns and measure the losses."""
    precisions: list[TrainingPrecision] = ["fp32"]
    if choose_precision("auto", torch.device("cpu")) == "bf16":
        precisions.append("bf16")
    others = [Ours(track, precision) for precision in precisions]
    start = others[0].objective.unseen_loss()
    plain = plain_model(track.dam.model)
    counts: list[int] = []
    turns = Turns(others, counts, seconds, progress)
    steps = run_trainer(plain, track, turns, counts, scratch)
    plain_loss = track.objective(plain, "fp32").unseen_loss()
    for lane, loss in [(turns.lane, plain_loss), *((o.lane, o.objective.unseen_loss()) for o in others)]:
        lane.unseen_loss = loss
    parameters = sum(weight.numel() for weight in track.dam.model.parameters())
    return Race(size, parameters, steps, start, (turns.lane, *(other.lane for other in others)))


def plain_model(model: Any) -> Any:
    """Make the same model as transformers does by default: its own dropout and attention."""
    config = deepcopy(model.config)
    config._attn_implementation = "sdpa"
    fresh = type(model)(config)
    fresh.load_state_dict(model.state_dict())
    return fresh


class Truncated(torch.utils.data.Dataset[dict[str, list[int]]]):
    """The training documents cut at the longest length, as a Trainer is usually given them."""

    def __init__(self, track: Track) -> None:
        self.track = track
        self.first = min(track.held_out, len(track.cache) // 5)
        self.frame = track.frame

    def __len__(self) -> int:
        return len(self.track.cache) - self.first

    def __getitem__(self, place: int) -> dict[str, list[int]]:
        starts, sizes = self.track.cache.spans(np.asarray([self.first + place]))
        size = min(int(sizes[0]), self.track.max_tokens - AROUND)
        text = self.track.cache.ids[starts[0] : starts[0] + size].tolist()
        return {"input_ids": [self.frame.before, *text, self.frame.after]}


def run_trainer(model: Any, track: Track, turns: Turns, counts: list[int], scratch: Path) -> int:
    """Let a Trainer train until `turns` stops it; `counts` receives the real tokens of each batch."""
    make: Any = transformers.PreTrainedTokenizerFast
    tokenizer = make(
        tokenizer_object=Tokenizer.from_str(str(track.dam.tokenizer)), **track.dam.special_tokens
    )
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def collate(rows: list[Any]) -> Any:
        counts.append(sum(len(row["input_ids"]) for row in rows))
        return collator(rows)

    arguments = transformers.TrainingArguments(
        output_dir=str(scratch / "trainer"),
        per_device_train_batch_size=track.batch_size,
        max_steps=100_000,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=WEIGHT_DECAY,
        seed=SEED,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_drop_last=True,
    )
    trainer = transformers.Trainer(
        model, arguments, data_collator=collate, train_dataset=Truncated(track), callbacks=[turns]
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return int(trainer.state.global_step)


def torch_record() -> dict[str, Any]:
    """Name what the figures depend on."""
    return {
        "cpu": read_cpu().model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
