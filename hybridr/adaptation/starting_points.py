"""What adaptation starts from: a retriever, or a DAM beside a REM."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..assembly.assembly import assemble
from ..assembly.published import entry_of
from ..encoding.packaged import MAX_TOKENS, minilm
from ..encoding.retriever import Retriever
from ..encoding.sentence_transformers import read_retriever
from ..errors import DataError, SettingsError
from ..files.manifest import fingerprint, read_manifest
from ..languages import guess_language
from ..progress import Progress
from ..records import Document
from .corpus import LEAST_DOCUMENTS, Sample, Source, draw_sample
from .dam import STAGE, DamFit, fit_dam
from .gate import GateDocuments
from .loop import LOSSES_FILE, STATE_FILE, STATE_FOLDER, Processes, train
from .objectives.span import SpanContrast, SpanCorpus, attach, contrast, merge, recipe_of
from .runs import thinned
from .settings import AdaptSettings, DamSettings, SpanSettings

LANGUAGE_SAMPLE = 500  # documents
DAM_FOLDER = "dam"
GATE_FILE = "gate.jsonl"
DAM_STRENGTH = 1.0
VERSION = 2  # of the procedure; a change of its results makes finished runs start anew
SPAN_STRENGTH = 0.3  # measured: full strength hurts (findings.md)
LEAST_TRAINED = 32  # documents that must be long enough for two spans


@dataclass(frozen=True)
class Fitted:
    """The candidate, and how its training went."""

    candidate: Retriever
    steps: int
    losses: Sequence[float]
    """One per step, or evenly spread ones of them."""
    loss_start: float
    """Mean of the first tenth of the steps."""
    loss_end: float
    unseen: tuple[float | None, float | None]
    """The loss on documents that were not trained on, before and after, at full strength."""
    documents: int
    """How many were trained on."""
    seconds: float
    resumed_from: int
    strength: float
    """The share of the change that the candidate keeps."""
    attachments: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders that are kept beside the encoder, by name."""

    def record(self) -> dict[str, Any]:
        """Describe the training as JSON for a manifest."""
        return {
            "documents": self.documents,
            "steps": self.steps,
            "loss_start": self.loss_start,
            "loss_end": self.loss_end,
            "unseen_loss": list(self.unseen),
            "losses": thinned(self.losses),
            "seconds": round(self.seconds, 1),
            "resumed_from": self.resumed_from,
        }


@dataclass(frozen=True)
class Start:
    """The encoder as it is, the documents for the gate, and what is still to be done."""

    old: Retriever
    held_out: Sequence[Document]
    """Not trained on."""
    others: Sequence[Document]
    read: int
    """Documents read."""
    language: str
    identity: Mapping[str, Any]
    """What the result follows from, as JSON, beside the gate's settings."""
    fit: Callable[[], Fitted]
    records: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest of the encoder says besides."""


def language_of(documents: Sequence[Document]) -> str:
    """Guess the language of most documents; "und" where it cannot be told."""
    return guess_language(document.contents for document in documents[:LANGUAGE_SAMPLE]).code


def require_language(language: str, needed: str, model: str) -> None:
    """Raise DataError when the documents are in another language than the model reads."""
    if language not in (needed, "und"):
        raise DataError(
            f"most documents look like language '{language}'; {model} reads '{needed}'",
            hint="give a model of that language with --base, or --yes to go on all the same",
        )


def start_from_dam(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Fit the DAM, which goes on where it was stopped, and prepare its join with the REM.

    Raises SettingsError, DataError, ModelError, DownloadError.
    """
    if settings.objective == "span":
        raise SettingsError("a DAM beside a REM is fitted with --objective mlm, not span")
    old = joined(settings.base, settings, progress)  # before the long part: they may not fit
    gate = GateDocuments(settings.out / STATE_FOLDER / GATE_FILE, settings.seed)
    fit = fit_dam(documents, dam_settings(settings), through=gate.passing, progress=progress)
    chosen = gate.read()
    if len(chosen) < LEAST_DOCUMENTS:
        raise DataError(f"there are {len(chosen)} different texts; {LEAST_DOCUMENTS} are needed")
    language, published = language_of(chosen), entry_of(settings.base)
    if published and not settings.any_language:
        require_language(language, published.language, published.name)
    manifest = read_manifest(fit.folder) or {}
    held_out = min(settings.held_out, len(chosen) // 5)
    return Start(
        old=old,
        held_out=chosen[:held_out],
        others=chosen[held_out:],
        read=manifest[STAGE]["read"],
        language=language,
        identity={"objective": "mlm", "dam": manifest[STAGE]["key"], "old": old.fingerprint},
        fit=lambda: fitted(fit, old, settings, progress),
        records={"assembly": {"dam": Path(settings.base).name, "rem": Path(str(settings.rem)).name}},
    )


def dam_settings(settings: AdaptSettings) -> DamSettings:
    """Give the settings of masked-LM training; the DAM is kept beside the encoder."""
    own = settings.own(DamSettings) | {"out": settings.out / DAM_FOLDER}
    return DamSettings(**{name: value for name, value in own.items() if name != "max_tokens"})


def joined(dam: Path | str, settings: AdaptSettings, progress: Progress) -> Retriever:
    """Join a DAM with the REM to the encoder that can be exported; LoRA is folded in."""
    ranker = assemble(
        dam, settings.rem, pooling=settings.pooling, similarity=settings.similarity, progress=progress
    )
    encoder = ranker.retriever()
    limit = min(settings.max_tokens or encoder.max_tokens, encoder.max_tokens)
    encoder.usage = replace(encoder.usage, max_tokens=limit)
    return encoder


def fitted(fit: DamFit, old: Retriever, settings: AdaptSettings, progress: Progress) -> Fitted:
    """Join the fitted DAM with the REM, and keep the asked share of what it learnt."""
    new = joined(fit.folder, settings, progress)
    new.usage = old.usage  # a fitted DAM's folder no longer says what a published name does
    strength = DAM_STRENGTH if settings.strength is None else settings.strength
    return Fitted(
        candidate=between(old, new, strength),
        steps=fit.steps,
        losses=fit.losses,
        loss_start=fit.loss_start,
        loss_end=fit.loss_end,
        unseen=(fit.unseen_loss_start, fit.unseen_loss_end),
        documents=fit.documents,
        seconds=fit.seconds,
        resumed_from=fit.resumed_from,
        strength=strength,
        attachments={DAM_FOLDER: fit.folder},
    )


def between(old: Retriever, new: Retriever, strength: float) -> Retriever:
    """Give `old + strength * (new - old)`, weight by weight; 1 is `new`, 0 is `old`.

    What both share, the REM's part, stays.
    """
    if strength == 1:
        return new
    result = copy.deepcopy(new)
    before = dict(old.backbone.named_parameters())
    with torch.no_grad():
        for name, weight in result.backbone.named_parameters():
            weight.copy_(before[name].lerp(weight, strength))
    return result


def start_from_retriever(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Read base model and documents. Raises DataError, ModelError, DownloadError, SettingsError."""
    if settings.objective == "mlm":
        raise SettingsError(
            f"masked-LM training would undo what {settings.base} has learnt of relevance",
            hint="a retriever is fitted with --objective span; mlm needs a DAM as --base and a --rem",
        )
    span = SpanSettings(**settings.own(SpanSettings))
    folder = minilm(progress=progress) if settings.base == "minilm" else Path(settings.base)
    base = read_retriever(folder, max_tokens=settings.max_tokens or MAX_TOKENS)
    sample = draw_sample(documents, span, progress)
    language = language_of(sample.documents)
    if settings.base == "minilm" and not settings.any_language:
        require_language(language, "en", "the packaged model")
    parts = {
        "version": VERSION,
        "objective": "span",
        "documents": sample.fingerprint,
        "base": base.fingerprint,
        "span": span.record(),
    }
    held_out = min(span.held_out, len(sample.documents) // 5)
    return Start(
        old=base,
        held_out=sample.documents[:held_out],
        others=sample.documents[held_out:],
        read=sample.read,
        language=language,
        identity=parts,
        fit=lambda: fit(base, sample, held_out, settings, span, fingerprint(parts), progress),
    )


def fit(
    base: Retriever,
    sample: Sample,
    held_out: int,
    settings: AdaptSettings,
    span: SpanSettings,
    key: str,
    progress: Progress,
) -> Fitted:
    """Train the low-rank change, from the last checkpoint where there is one, and keep a share of it."""
    corpus = SpanCorpus(sample.documents[held_out:], base)
    unseen = SpanCorpus(sample.documents[:held_out], base)
    if len(corpus) < LEAST_TRAINED:
        raise DataError(
            f"only {len(corpus)} documents have 16 tokens, enough for two spans; {LEAST_TRAINED} are needed",
            hint="use the unadapted encoder: hybridr reindex NAME without --encoder",
        )
    processes = Processes(settings.device)
    trained = attach(base, span.rank, span.seed).to(processes.device)
    state = known_state(settings.out)
    before = contrast(base, unseen, span)
    objective = SpanContrast(trained, corpus, span, processes)
    run = train(objective, recipe_of(span), state, key, processes=processes, progress=progress)
    trained = trained.to("cpu")
    strength = SPAN_STRENGTH if settings.strength is None else settings.strength
    return Fitted(
        candidate=merge(trained, strength),
        steps=len(run.losses),
        losses=run.losses,
        loss_start=run.loss_start,
        loss_end=run.loss_end,
        unseen=(before, contrast(trained, unseen, span)),
        documents=len(sample.documents) - held_out,
        seconds=run.seconds,
        resumed_from=run.resumed_from,
        strength=strength,
        attachments={name: state.parent / name for name in (STATE_FILE, LOSSES_FILE)},
    )


def known_state(out: Path) -> Path:
    """Name the checkpoint file; a finished run's is taken, so that another strength needs no training."""
    state, finished = out / STATE_FOLDER / STATE_FILE, out / STATE_FILE
    if finished.is_file() and not state.is_file():
        state.parent.mkdir(exist_ok=True)
        shutil.copyfile(finished, state)
    return state
