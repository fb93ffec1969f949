"""Adaptation without training: a second retriever is joined to the base."""

from __future__ import annotations

from pathlib import Path

from ..encoders.export.exporting import opened_encoder, second_retriever
from ..encoders.export.weights import open_without_torch
from ..encoders.model_usage import read_usage
from ..encoders.packaged import MAX_TOKENS, minilm
from ..errors import SettingsError
from ..families import member_of, names_of
from ..records import Progress
from .corpus import Source
from .settings import OBJECTIVES, AdaptSettings
from .start import BASES_VERSION, USUAL, Fitted, Start, read_sample

OF_TRAINING = ("steps", "batch_size", "learning_rate")


def joins_two(settings: AdaptSettings) -> bool:
    """Tell whether a second retriever is asked for, or usual: with the packaged base and nothing to train."""
    if settings.objective is not None:
        return settings.objective in names_of(OBJECTIVES, fits="two")
    trains = any(getattr(settings, name) is not None for name in OF_TRAINING) or settings.objective_settings
    return settings.base == "minilm" and not trains


def start_from_two(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Read both retrievers and the documents. Raises DataError, ModelError, DownloadError, SettingsError."""
    names = [name for name in OF_TRAINING if getattr(settings, name) is not None]
    if names:
        raise SettingsError(
            f"an ensemble is not trained: it takes no {names[0]}", hint="--objective span does"
        )
    member = member_of(OBJECTIVES, settings.objective or USUAL["two"])
    own = member.Settings(**settings.own(member.Settings))
    folder = minilm(progress=progress) if settings.base == "minilm" else Path(settings.base)
    first = open_without_torch(folder, usage=read_usage(folder, settings.max_tokens or MAX_TOKENS))
    sample = read_sample(documents, own, settings, progress)
    joined = member(first, second_retriever(own.second, progress=progress), own)
    held_out, others = sample.parted(own.held_out)
    identity = {
        "version": BASES_VERSION,
        "objective": member.name,
        "documents": sample.fingerprint,
        "both": joined.side_by_side.fingerprint,
        member.name: own.record(),
    }

    def fit() -> Fitted:
        share = member.strength if settings.strength is None else settings.strength
        texts, unseen = ([document.contents for document in part] for part in (others, held_out))
        training = joined.fit(texts, unseen, share, progress)
        return Fitted(joined.candidate, share, training, encoder=joined.encoder())

    encoder = opened_encoder(first)
    return Start(first, encoder, held_out, others, sample.read, sample.language, identity, fit)
