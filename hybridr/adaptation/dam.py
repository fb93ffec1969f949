"""From documents to a DAM: token cache, masked-LM training from the source DAM, folder with its history."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ..assembly.assembly import located
from ..assembly.backbone import WEIGHT_FILES, Dam, read_dam, write_dam_files
from ..encoding.packaged import minilm
from ..errors import DataError, HybridrError, ModelError
from ..files.atomic import staged_folder
from ..files.manifest import fingerprint, read_manifest, sha256_of, write_manifest
from ..progress import Progress, silent
from ..records import Document
from .corpus import Source, bytes_of, read_source, record_of
from .loop import (
    LOSSES_FILE,
    STATE_FILE,
    STATE_FOLDER,
    Precision,
    Processes,
    Recipe,
    Training,
    choose_precision,
    require_disk,
    require_memory,
    train,
)
from .objectives.mlm import MaskedLm, frame_of
from .runs import CURVE_FILE, thinned, write_curve
from .settings import DamSettings
from .token_cache import Frame, TokenCache, build_cache, open_cache

VERSION = 1  # of the procedure; a change of its results makes finished runs start anew
TOKENS_FOLDER = "tokens"
LONGEST_WARM_UP = 1000
LEAST_TRAINED = 2  # documents
MOST_UNKNOWN = 0.5  # share of tokens
NOT_RECORDED = {"out", "device", "checkpoint_every"}
NOT_COMPARED = NOT_RECORDED | {"base"}  # its weights and tokenizer are
Through: TypeAlias = Callable[[Iterable[Document]], Iterable[Document]]
STAGE = "dam"


@dataclass(frozen=True)
class DamFit:
    """A DAM folder and how it was trained.

    `loss_start` and `loss_end` are means over the first and last tenth of the steps; the `unseen_loss`
    pair is the loss on fixed windows of the held-out documents before and after, None without any.
    """

    folder: Path
    steps: int
    documents: int
    """That were trained on: different texts, without the held-out ones."""
    tokens: int
    """Of all documents that were read."""
    precision: str
    fresh_head: bool
    """Whether the base had no masked-LM head, so that one tied to its embeddings was made."""
    losses: tuple[float, ...]
    """At most 400 of them, evenly spread."""
    loss_start: float
    loss_end: float
    unseen_loss_start: float | None
    unseen_loss_end: float | None
    seconds: float
    resumed_from: int
    reused: bool = False


@dataclass(frozen=True)
class Plan:
    """What a run works on, and the keys that tell whether it was done before."""

    settings: DamSettings
    dam: Dam
    base: dict[str, str]
    """Name of the base, and what its weights and tokenizer are known by."""
    frame: Frame
    precision: Precision
    processes: Processes
    snapshot_key: str
    """Of base, settings and source: an unfinished run with it goes on from its own tokens."""

    @property
    def state(self) -> Path:
        """Where an unfinished run lies."""
        return self.settings.out / STATE_FOLDER

    def run_key(self, cache: TokenCache) -> str:
        """Tell whether the result is there: base, settings and the texts, wherever they came from."""
        return key_of(self.settings, self.base, self.precision, cache.fingerprint)


def fit_dam(
    documents: Source, settings: DamSettings, *, through: Through = iter, progress: Progress = silent
) -> DamFit:
    """Train a DAM on documents by masked-LM, from the source DAM `settings.base`, into `settings.out`.

    `documents` are an iterable of Document, a CorpusFile, or (cluster, index). Each is one example; repeated
    and empty texts are left out (Zhan et al. 2022, methods.md A.8). A run that was finished with the same
    texts and settings is not done again. An unfinished one goes on bit for bit, and on its own tokens: the
    source is not read again, so a plain iterable must be the same one. What is read goes `through` a
    function that yields the same documents and may note them. Under `accelerate launch` all
    processes call this together; the main one prepares and writes.

    Raises ModelError (base, vocabulary, memory, loss), DataError (no usable text), DownloadError (base,
    disk) and SettingsError.
    """
    require_replaceable(settings.out)
    plan = prepare(settings, documents, progress)
    progress = progress if plan.processes.is_main else silent
    cache = tokenised(plan, documents, through, progress)
    key = plan.run_key(cache)
    finished = finished_manifest(settings.out, key)
    plan.processes.wait()
    if finished is None:
        finished = trained(plan, cache, key, progress)
        return result(settings.out, finished)
    if plan.processes.is_main:
        shutil.rmtree(plan.state, ignore_errors=True)
    return result(settings.out, finished, reused=True)


def prepare(settings: DamSettings, documents: Source, progress: Progress) -> Plan:
    """Open the base and check that this machine can train it."""
    processes = Processes(settings.device)
    with processes.main_first():
        folder = minilm(progress=progress) if settings.base == "minilm" else located(settings.base, progress)
    with torch.random.fork_rng():  # a fresh head is drawn
        torch.manual_seed(settings.seed)
        dam = read_dam(folder)
    frame = frame_of(dam)
    base = {
        "name": folder.name,
        "weights": weights_digest(folder),
        "tokenizer": fingerprint(dam.tokenizer),
    }
    precision = choose_precision(settings.precision, processes.device)
    source = record_of(documents)
    return Plan(settings, dam, base, frame, precision, processes, key_of(settings, base, precision, source))


def key_of(settings: DamSettings, base: Mapping[str, str], precision: str, corpus: Any) -> str:
    """Hash everything that the result depends on."""
    compared = {name: value for name, value in settings.record().items() if name not in NOT_COMPARED}
    return fingerprint([VERSION, compared, base["weights"], base["tokenizer"], precision, corpus])


def weights_digest(folder: Path) -> str:
    """Hash the file that the weights were read from."""
    return sha256_of(next(folder / name for name in WEIGHT_FILES if (folder / name).is_file()))


def tokenised(plan: Plan, documents: Source, through: Through, progress: Progress) -> TokenCache:
    """Open the tokens of an unfinished run, or let the main process read the documents. Raises DataError."""
    folder = plan.state / TOKENS_FOLDER
    with plan.processes.main_first():
        cache = open_cache(folder, plan.snapshot_key)
        if cache is None:
            require_disk(plan.settings.out, plan.dam.model, bytes_of(documents))
            found = read_source(documents, plan.settings.fields, progress)
            cache = build_cache(
                through(found),
                str(plan.dam.tokenizer),
                folder,
                seed=plan.settings.seed,
                key=plan.snapshot_key,
            )
    cache = cache.limited(plan.settings.max_documents)
    require_usable(cache, plan)
    return cache


def require_usable(cache: TokenCache, plan: Plan) -> None:
    """Raise DataError when there is too little text, or the tokenizer does not know its words."""
    if len(cache) < LEAST_TRAINED:
        raise DataError(
            f"{cache.read:,} documents hold {len(cache)} different texts; {LEAST_TRAINED} are needed"
        )
    if cache.unknown > MOST_UNKNOWN * cache.tokens:
        raise DataError(
            f"the tokenizer of {plan.base['name']} does not know {cache.unknown / cache.tokens:.0%} "
            "of the tokens",
            hint="give a --base of the language and script of the documents",
        )


def trained(plan: Plan, cache: TokenCache, key: str, progress: Progress) -> dict[str, Any]:
    """Train, measure the loss on unseen documents before and after, and write the folder."""
    settings = plan.settings
    objective = objective_of(plan, cache)
    require_memory(plan.dam.model, objective.budget, plan.processes.device)
    before = objective.unseen_loss()
    run = train(
        objective,
        recipe_of(settings, plan.precision),
        plan.state / STATE_FILE,
        key,
        processes=plan.processes,
        progress=progress,
    )
    unseen = (before, objective.unseen_loss())
    entry = record(plan, cache, run, unseen, key)
    if plan.processes.is_main:
        write_result(plan, cache, run, entry)
    plan.processes.wait()
    return {STAGE: entry}


def objective_of(plan: Plan, cache: TokenCache) -> MaskedLm:
    """Put model, tokens and settings together; at most a fifth of the documents is held out."""
    settings = plan.settings
    return MaskedLm(
        plan.dam.model,
        plan.frame,
        cache,
        batch_size=settings.batch_size,
        max_tokens=min(settings.max_tokens, plan.dam.max_positions),
        seed=settings.seed,
        held_out=min(settings.held_out, len(cache) // 5),
        dropout=settings.dropout,
        token_budget=settings.token_budget,
        precision=plan.precision,
        processes=plan.processes,
    )


def recipe_of(settings: DamSettings, precision: Precision) -> Recipe:
    """Give the recipe of methods.md A.8: constant learning rate after a linear warm-up, norm cut to 1.

    The warm-up is 1,000 steps, or a tenth of the steps where that is less.
    """
    warm_up = min(LONGEST_WARM_UP, settings.steps // 10) if settings.warm_up is None else settings.warm_up
    return Recipe(
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        warm_up=warm_up,
        weight_decay=settings.weight_decay,
        precision=precision,
        checkpoint_every=settings.checkpoint_every,
    )


def write_result(plan: Plan, cache: TokenCache, run: Training, entry: dict[str, Any]) -> None:
    """Write the folder, whole or not at all; it takes the place of the unfinished run."""
    write_curve(plan.state / CURVE_FILE, run.losses, label="masked-LM loss")
    values = plan.settings.record()
    with staged_folder(plan.settings.out) as folder:
        write_dam(
            plan.dam,
            folder,
            attachments={name: plan.state / name for name in (CURVE_FILE, LOSSES_FILE)},
            settings={name: value for name, value in values.items() if name not in NOT_RECORDED},
            inputs={"base": plan.base, "documents": cache.fingerprint},
            parents=[plan.base["weights"]],
            extra={STAGE: entry},
        )


def record(
    plan: Plan, cache: TokenCache, run: Training, unseen: tuple[float | None, float | None], key: str
) -> dict[str, Any]:
    """Give the `dam` entry of the manifest."""
    return {
        "key": key,
        "objective": "masked-lm",
        "precision": plan.precision,
        "processes": plan.processes.count,
        "fresh_head": not plan.dam.has_language_head,
        "read": cache.read,
        "documents": len(cache) - min(plan.settings.held_out, len(cache) // 5),
        "tokens": cache.tokens,
        "steps": len(run.losses),
        "loss_start": run.loss_start,
        "loss_end": run.loss_end,
        "unseen_loss": list(unseen),
        "losses": thinned(run.losses),
        "seconds": round(run.seconds, 1),
        "resumed_from": run.resumed_from,
    }


def result(folder: Path, manifest: Mapping[str, Any], *, reused: bool = False) -> DamFit:
    """Give the result that a manifest records."""
    entry = manifest[STAGE]
    names = (
        "steps",
        "documents",
        "tokens",
        "precision",
        "fresh_head",
        "loss_start",
        "loss_end",
        "seconds",
        "resumed_from",
    )
    return DamFit(
        folder=folder,
        losses=tuple(entry["losses"]),
        unseen_loss_start=entry["unseen_loss"][0],
        unseen_loss_end=entry["unseen_loss"][1],
        reused=reused,
        **{name: entry[name] for name in names},
    )


def write_dam(dam: Dam, folder: Path, *, attachments: Mapping[str, Path], **record: Any) -> dict[str, Any]:
    """Write weights, configuration, tokenizer and manifest (of `record`) into an empty folder."""
    files = write_dam_files(dam, folder)
    for name, path in attachments.items():
        shutil.copyfile(path, folder / name)
    outputs = [*files, *attachments]
    for name in outputs:
        (folder / name).chmod(0o644)
    return write_manifest(folder, stage=STAGE, outputs=outputs, **record)


def require_replaceable(folder: Path) -> None:
    """Raise ModelError when `folder` holds anything but a DAM of ours or the state of an unfinished run."""
    if not folder.exists() or (folder / STATE_FOLDER).is_dir():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and stage_of(folder) != STAGE):
        raise ModelError(
            f"{folder} exists and is not a DAM that hybridr trained, so it is not replaced",
            hint="choose another folder with --out, or remove it",
        )


def stage_of(folder: Path) -> str | None:
    """Say which stage wrote a folder; None when it has no manifest of ours."""
    try:
        return (read_manifest(folder) or {}).get("stage")
    except HybridrError:
        return None


def finished_manifest(folder: Path, key: str) -> dict[str, Any] | None:
    """Give the manifest of a DAM trained under `key`, if its files are still what was written."""
    if stage_of(folder) != STAGE:
        return None
    manifest = read_manifest(folder) or {}
    if manifest.get(STAGE, {}).get("key") != key:
        return None
    intact = all(
        (folder / name).is_file() and sha256_of(folder / name) == digest
        for name, digest in manifest["outputs"].items()
    )
    return manifest if intact else None
