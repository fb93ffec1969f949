"""From documents to an encoder folder: sample, train, merge, gate, export."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..encoder import load_encoder
from ..errors import DataError, HybridrError
from ..exporting import export, require_replaceable
from ..languages import guess_language
from ..manifest import fingerprint, read_manifest
from ..packaged import minilm
from ..progress import Progress, silent
from ..records import Document
from ..retriever import Retriever, read_retriever
from ..settings import AdaptSettings
from ..training import LOSSES_FILE, STATE_FILE, Processes, Training, train
from .gate import Comparison, GateReport, compare
from .low_rank import attach, merge
from .sample import Sample, Source, draw_sample
from .spans import SpanCorpus
from .training import SpanContrast, contrast, recipe_of

VERSION = 2  # of the procedure; a change of its results makes finished runs start anew
STATE_FOLDER = ".training"
LEAST_TRAINED = 32  # documents that must be long enough for two spans
CURVE_POINTS = 200
TRAINING_SETTINGS = {"objective", "max_documents", "steps", "batch_size", "learning_rate", "temperature",
                     "span_tokens", "rank", "held_out", "seed", "device"}  # fmt: skip
NOT_RECORDED = {"out", "queries", "device"}


@dataclass(frozen=True)
class Adaptation:
    """An encoder folder, whether it holds the adapted encoder, and how that was decided.

    `loss_start` and `loss_end` are means over the first and last tenth of the steps; the `unseen_loss`
    pair is the loss on fixed spans of the held-out documents before and after training, at full strength.
    """

    folder: Path
    promoted: bool
    gate: GateReport
    losses: tuple[float, ...]
    loss_start: float
    loss_end: float
    unseen_loss_start: float | None
    unseen_loss_end: float | None
    steps: int
    documents: int
    seconds: float
    resumed_from: int
    language: str
    reused: bool = False


@dataclass(frozen=True)
class Plan:
    """What a run works on, and the keys that tell whether it was done before."""

    settings: AdaptSettings
    base: Retriever
    sample: Sample
    held_out: list[Document]
    queries: list[str]
    language: str
    training_key: str
    run_key: str


class Fit(NamedTuple):
    """A finished training, and the loss on unseen documents before and after it."""

    training: Training
    unseen: tuple[float | None, float | None]


def adapt(documents: Source, settings: AdaptSettings, *, progress: Progress = silent) -> Adaptation:
    """Fit a retriever to documents without labels and export it, or the unadapted one if the gate says no.

    `documents` are an iterable of Document, or (cluster, index). The result lies in `settings.out`. A run
    that was finished with the same documents and settings returns at once, a killed one goes on. Raises
    DataError (too few documents, another language), ModelError (base, loss), DownloadError (base, disk).
    """
    require_replaceable(settings.out)
    plan = prepare(documents, settings, progress)
    finished = read_finished(settings.out, plan.run_key)
    if finished is not None:
        return finished
    trained, fitted = fit(plan, progress)
    candidate = merge(trained, settings.strength)
    gate = compare(
        plan.base, candidate, plan.held_out, plan.sample.documents[len(plan.held_out) :],
        queries=plan.queries, seed=settings.seed, progress=progress,
    )  # fmt: skip
    promoted = gate.passed or settings.force
    chosen = candidate if promoted else plan.base
    attachments = {name: settings.out / STATE_FOLDER / name for name in (STATE_FILE, LOSSES_FILE)}
    export(
        chosen, settings.out, texts=[document.contents for document in plan.held_out],
        records={"adaptation": record(plan, fitted, gate, promoted)},
        attachments=attachments, progress=progress,
    )  # fmt: skip
    return result(settings.out, read_manifest(settings.out) or {})


def prepare(documents: Source, settings: AdaptSettings, progress: Progress) -> Plan:
    """Read base model, documents and query log, and check that they go together."""
    queries = read_queries(settings.queries)
    folder = minilm(progress=progress) if settings.base == "minilm" else Path(settings.base)
    base = read_retriever(folder, max_tokens=settings.max_tokens)
    sample = draw_sample(documents, settings, progress)
    language = guess_language(document.contents for document in sample.documents[:500]).code
    require_language(language, settings)
    held_out = sample.documents[: min(settings.held_out, len(sample.documents) // 5)]
    parts = {"version": VERSION, "documents": sample.fingerprint, "base": base.fingerprint}
    values = settings.record()
    training_key = fingerprint(parts | {name: values[name] for name in TRAINING_SETTINGS})
    recorded = {name: value for name, value in values.items() if name not in NOT_RECORDED}
    run_key = fingerprint(parts | {"settings": recorded, "queries": queries})
    return Plan(settings, base, sample, held_out, queries, language, training_key, run_key)


def read_queries(path: Path | None) -> list[str]:
    """Read a query log, one query per line; blank and repeated lines are left out. Raises DataError."""
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"the query log {path} cannot be read: {error}", hint="one query per line, UTF-8"
        ) from error
    queries = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not queries:
        raise DataError(f"the query log {path} holds no queries", hint="one query per line, UTF-8")
    return queries


def require_language(language: str, settings: AdaptSettings) -> None:
    """Raise DataError when the English packaged model would be fitted to documents of another language."""
    if settings.base == "minilm" and not settings.any_language and language not in ("en", "und"):
        raise DataError(
            f"most documents look like language '{language}'; the packaged model reads English",
            hint="give a model of that language with --base FOLDER, or --yes to go on all the same",
        )


def fit(plan: Plan, progress: Progress) -> tuple[Retriever, Fit]:
    """Train the low-rank change, from the last checkpoint where there is one."""
    settings = plan.settings
    corpus = SpanCorpus(plan.sample.documents[len(plan.held_out) :], plan.base)
    if len(corpus) < LEAST_TRAINED:
        raise DataError(
            f"only {len(corpus)} documents have 16 tokens, enough for two spans; {LEAST_TRAINED} are needed",
            hint="use the unadapted encoder: hybridr reindex NAME without --encoder",
        )
    processes = Processes(settings.device)
    trained = attach(plan.base, settings.rank, settings.seed).to(processes.device)
    state = settings.out / STATE_FOLDER / STATE_FILE
    finished = settings.out / STATE_FILE
    if finished.is_file() and not state.is_file():  # another strength or --force needs no new training
        state.parent.mkdir(exist_ok=True)
        shutil.copyfile(finished, state)
    unseen = SpanCorpus(plan.held_out, plan.base)
    before = contrast(plan.base, unseen, settings)
    objective = SpanContrast(trained, corpus, settings, processes)
    run = train(
        objective, recipe_of(settings), state, plan.training_key, processes=processes, progress=progress
    )
    return trained.to("cpu"), Fit(run, (before, contrast(trained, unseen, settings)))


def record(plan: Plan, fitted: Fit, gate: GateReport, promoted: bool) -> dict[str, Any]:
    """Give the `adaptation` entry of the manifest."""
    values, run = plan.settings.record(), fitted.training
    every = max(1, len(run.losses) // CURVE_POINTS)
    return {
        "key": plan.run_key,
        "promoted": promoted,
        "forced": promoted and not gate.passed,
        "language": plan.language,
        "settings": {name: value for name, value in values.items() if name not in NOT_RECORDED},
        "training": {
            "documents": len(plan.sample.documents) - len(plan.held_out),
            "read": plan.sample.read,
            "steps": len(run.losses),
            "loss_start": run.loss_start,
            "loss_end": run.loss_end,
            "unseen_loss": fitted.unseen,
            "losses": run.losses[::every],
            "seconds": round(run.seconds, 1),
            "resumed_from": run.resumed_from,
        },
        "gate": {**gate.record(), "query_log": len(plan.queries)},
    }


def read_finished(folder: Path, key: str) -> Adaptation | None:
    """Give the result of a finished run with this key, if its encoder is intact."""
    try:
        manifest = read_manifest(folder) or {}
        if manifest.get("adaptation", {}).get("key") != key:
            return None
        load_encoder(folder)
    except HybridrError:
        return None
    return result(folder, manifest, reused=True)


def result(folder: Path, manifest: Mapping[str, Any], *, reused: bool = False) -> Adaptation:
    """Give the result that a manifest records."""
    entry = manifest["adaptation"]
    training, gate = entry["training"], entry["gate"]
    report = GateReport(
        rows=tuple(Comparison(**row) for row in gate["rows"]),
        reasons=tuple(gate["reasons"]),
        held_out=gate["held_out"],
        documents=gate["documents"],
    )
    return Adaptation(
        folder=folder,
        promoted=entry["promoted"],
        gate=report,
        losses=tuple(training["losses"]),
        loss_start=training["loss_start"],
        loss_end=training["loss_end"],
        unseen_loss_start=training["unseen_loss"][0],
        unseen_loss_end=training["unseen_loss"][1],
        steps=training["steps"],
        documents=training["documents"],
        seconds=training["seconds"],
        resumed_from=training["resumed_from"],
        language=entry["language"],
        reused=reused,
    )
