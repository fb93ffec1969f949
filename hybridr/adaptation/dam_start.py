"""A DAM fitted by masked-LM training and joined with a REM (Zhan et al. 2022)."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import torch

from ..assembly import assemble
from ..errors import DataError, SettingsError
from ..manifest import read_manifest
from ..masked_lm import DamFit, fit_dam
from ..masked_lm.dam_folder import STAGE
from ..progress import Progress
from ..published import entry_of
from ..retriever import Retriever
from ..settings import AdaptSettings, DamSettings
from ..training import STATE_FOLDER
from .gate_documents import GateDocuments
from .sample import LEAST_DOCUMENTS, Source
from .start import Fitted, Start, language_of, require_language

DAM_FOLDER = "dam"
GATE_FILE = "gate.jsonl"
STRENGTH = 1.0


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
    strength = STRENGTH if settings.strength is None else settings.strength
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
