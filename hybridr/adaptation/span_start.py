"""A retriever fitted by span contrast: a low-rank change, of which a share is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..errors import DataError, SettingsError
from ..manifest import fingerprint
from ..packaged import MAX_TOKENS, minilm
from ..progress import Progress
from ..retriever import Retriever, read_retriever
from ..settings import AdaptSettings, SpanSettings
from ..training import LOSSES_FILE, STATE_FILE, STATE_FOLDER, Processes, train
from .low_rank import attach, merge
from .sample import Sample, Source, draw_sample
from .spans import SpanCorpus
from .start import Fitted, Start, language_of, require_language
from .training import SpanContrast, contrast, recipe_of

VERSION = 2  # of the procedure; a change of its results makes finished runs start anew
STRENGTH = 0.3  # measured: full strength hurts (findings.md)
LEAST_TRAINED = 32  # documents that must be long enough for two spans


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
    parts = {"version": VERSION, "objective": "span", "documents": sample.fingerprint,
             "base": base.fingerprint, "span": span.record()}  # fmt: skip
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
    strength = STRENGTH if settings.strength is None else settings.strength
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
