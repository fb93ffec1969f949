"""What adaptation starts from, and what comes of it; an adapter's start stands here: it needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..encoders.contract import Encoder
from ..encoders.export.exporting import opened_encoder
from ..encoders.export.model_files import Exportable
from ..encoders.export.weights import open_without_torch
from ..encoders.model_usage import read_usage
from ..encoders.packaged import MAX_TOKENS, minilm
from ..errors import DataError, SettingsError
from ..families import member_of, names_of
from ..records import Document, Progress
from ..relevance.corpus import DrawnSample, Source, draw_sample, language_of_most
from .settings import ADAPTERS, AdaptSettings

if TYPE_CHECKING:
    from .loop import Processes

USUAL_ADAPTER = "ensemble"
OF_TRAINING = ("steps", "batch_size", "learning_rate")
BASES_VERSION = 2  # of the procedure; a change of its results makes finished runs start anew


@dataclass(frozen=True)
class Start:
    """The encoder as it is, the documents for the gate, and what is still to be done."""

    member: Any
    """The class of the adapter or objective."""
    old: Exportable
    old_encoder: Encoder
    """What encodes as `old` does, where that itself is slow."""
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
    processes: Processes | None = None
    """Those that train together; None where this one is alone."""


@dataclass(frozen=True)
class Fitted:
    """The candidate, and how its training went."""

    candidate: Exportable
    strength: float
    """The share of the change that the candidate keeps."""
    training: Mapping[str, Any]
    """What the manifest says of the run; its losses are thinned."""
    attachments: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders that are kept beside the encoder, by name."""
    encoder: Encoder | None = None
    """What encodes as the candidate does, where that itself is slow."""


def read_sample(documents: Source, own: Any, settings: AdaptSettings, progress: Progress) -> DrawnSample:
    """Draw the documents of a retriever's adaptation, by the member's `own` settings.

    Raise DataError, also for another language than the packaged one reads.
    """
    sample = draw_sample(documents, own.max_documents, seed=own.seed, fields=own.fields, progress=progress)
    if settings.base == "minilm" and not settings.any_language:
        require_language(language_of_most(sample.documents), "en", "the packaged model")
    return sample


def require_language(language: str, needed: str, model: str) -> None:
    """Raise DataError when the documents are in another language than the model reads."""
    if language not in (needed, "und"):
        raise DataError(
            f"most documents look like language '{language}'; {model} reads '{needed}'",
            hint="give a model of that language with --base, or --yes to go on all the same",
        )


def adapter_of(settings: AdaptSettings) -> str | None:
    """Name the adapter that is asked for, or usual: with the packaged base and nothing to train."""
    if settings.objective is not None:
        return settings.objective if settings.objective in names_of(ADAPTERS, on="documents") else None
    trains = any(getattr(settings, name) is not None for name in OF_TRAINING) or settings.objective_settings
    return USUAL_ADAPTER if settings.base == "minilm" and not trains else None


def start_from_adapter(name: str, documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Read the base and the documents. Raise DataError, ModelError, DownloadError, SettingsError."""
    for setting in OF_TRAINING:
        if getattr(settings, setting) is not None:
            raise SettingsError(f"{name} is not trained: it takes no {setting}", hint="--objective span does")
    member = member_of(ADAPTERS, name)
    own = member.Settings(**settings.own(member.Settings))
    folder = minilm(progress=progress) if settings.base == "minilm" else Path(settings.base)
    base = open_without_torch(folder, usage=read_usage(folder, settings.max_tokens or MAX_TOKENS))
    sample = read_sample(documents, own, settings, progress)
    adapter = member(base, own, progress)
    held_out, others = sample.parted(own.held_out)
    identity = {
        "version": BASES_VERSION,
        "objective": name,
        "documents": sample.fingerprint,
        "base": adapter.fingerprint,
        name: own.record(),
    }

    def fit() -> Fitted:
        share = member.strength if settings.strength is None else settings.strength
        texts, unseen = ([document.contents for document in part] for part in (others, held_out))
        training = adapter.fit(texts, unseen, share, progress)
        return Fitted(adapter.candidate, share, training, encoder=adapter.encoder)

    language = language_of_most(sample.documents)
    return Start(member, base, opened_encoder(base), held_out, others, sample.read, language, identity, fit)
