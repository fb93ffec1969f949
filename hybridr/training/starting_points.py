"""Adaptation by training: of a retriever, or of the DAM beside a REM."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..encoders.packaged import MAX_TOKENS, minilm
from ..encoders.published import entry_of
from ..errors import DataError, SettingsError
from ..families import member_of, names_of
from ..files.manifest import fingerprint, read_manifest
from ..records import Progress
from ..relevance.corpus import LEAST_DOCUMENTS, Source, held_out_of, language_of_most
from .assembly import assemble
from .dam import STAGE, fit_dam
from .loop import Processes, train
from .ranker import origins_of
from .runs import LOSSES_FILE, STATE_FILE, STATE_FOLDER, thinned
from .settings import OBJECTIVES, AdaptSettings
from .start import BASES_VERSION, Fitted, Start, read_sample, require_language
from .token_cache import GateDocuments
from .torch_models import BiEncoder, read_retriever

DAM_FOLDER = "dam"
GATE_FILE = "gate.jsonl"
LEAST_HELD_OUT = 20  # documents, for the gate
USUAL = {"retriever": "span", "dam": "mlm"}
"""The objective that is taken where none is asked for, by what is fitted."""


def member_that_fits(kind: str, settings: AdaptSettings) -> Any:
    """Load the objective's class: the one asked for, or the usual one for a retriever or a DAM.

    Raise SettingsError when it fits the other, or does not say.
    """
    name = settings.objective or USUAL[kind]
    fitting = names_of(OBJECTIVES, on="documents", fits=kind)
    if name in fitting:
        return member_of(OBJECTIVES, name)
    choice = f"--objective {' or '.join(fitting)}"
    if kind == "dam":
        raise SettingsError(f"a DAM beside a REM is fitted with {choice}, not {name}")
    if name not in names_of(OBJECTIVES, fits="dam"):
        raise SettingsError(f'the objective {name} states no `fits`: "retriever" or "dam"')
    raise SettingsError(
        f"{name} training would undo what {settings.base} has learnt of relevance",
        hint=f"a retriever is fitted with {choice}; {name} needs a DAM as --base and a --rem",
    )


def start_from_retriever(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Read base model and documents. Raise DataError, ModelError, DownloadError, SettingsError."""
    member = member_that_fits("retriever", settings)
    own = member.Settings(**settings.own(member.Settings))
    folder = minilm(progress=progress) if settings.base == "minilm" else Path(settings.base)
    base = read_retriever(folder, max_tokens=settings.max_tokens or MAX_TOKENS)
    sample = read_sample(documents, own, settings, progress)
    held_out, others = sample.parted(own.held_out)
    processes = Processes(settings.device)
    identity = {
        "version": BASES_VERSION,
        "objective": member.name,
        "documents": sample.fingerprint,
        "base": base.fingerprint,
        member.name: own.record(),
    }

    def fit() -> Fitted:
        objective = member(base, others, held_out, own, processes)
        state, finished = settings.out / STATE_FOLDER / STATE_FILE, settings.out / STATE_FILE
        if finished.is_file() and not state.is_file():  # another strength needs no training
            state.parent.mkdir(exist_ok=True)
            shutil.copyfile(finished, state)
        before = objective.unseen_loss()
        run = train(objective, state, fingerprint(identity), progress=progress)
        strength = objective.strength if settings.strength is None else settings.strength
        losses = {"unseen_loss": [before, objective.unseen_loss()]}
        return Fitted(
            candidate=objective.candidate(strength),
            strength=strength,
            training={"documents": len(others), **run.record(), **losses},
            attachments={name: state.parent / name for name in (STATE_FILE, LOSSES_FILE)},
        )

    language = language_of_most(sample.documents)
    return Start(
        member, base, base, held_out, others, sample.read, language, identity, fit, processes=processes
    )


def start_from_dam(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Fit the DAM, which goes on where it was stopped, and prepare its join with the REM.

    Raise SettingsError, DataError, ModelError, DownloadError.
    """
    member = member_that_fits("dam", settings)
    old = join(settings.base, settings, progress)  # before the long part: they may not fit
    gate = GateDocuments(settings.out / STATE_FOLDER / GATE_FILE, settings.seed)
    values = settings.own(member.Settings) | {
        "objective": member.name,
        "pooling": old.usage.pooling,  # what is trained is what will rank
        "out": settings.out / DAM_FOLDER,  # kept beside the encoder
    }
    values.pop("max_tokens", None)
    own = member.Settings(**values)
    dam = fit_dam(documents, own, through=gate.passing, progress=progress)
    chosen = gate.read()
    if len(chosen) < LEAST_DOCUMENTS:
        raise DataError(f"there are {len(chosen)} different texts; {LEAST_DOCUMENTS} are needed")
    language, published = language_of_most(chosen), entry_of(settings.base)
    if published and not settings.any_language:
        require_language(language, published.language, published.name)
    entry = (read_manifest(dam.folder) or {})[STAGE]
    held_out = held_out_of(len(chosen), max(own.held_out, LEAST_HELD_OUT))

    def fit() -> Fitted:
        strength = member.strength if settings.strength is None else settings.strength
        new = join(dam.folder, settings, progress)
        new.usage = old.usage  # a fitted DAM's folder no longer says what a published name does
        names = ("documents", "steps", "loss_start", "loss_end", "seconds", "resumed_from")
        training = {name: getattr(dam, name) for name in names} | {
            "unseen_loss": [dam.unseen_loss_start, dam.unseen_loss_end],
            "losses": thinned(dam.losses),
        }
        return Fitted(between(old, new, strength), strength, training, {DAM_FOLDER: dam.folder})

    return Start(
        member=member,
        old=old,
        old_encoder=old,
        held_out=chosen[:held_out],
        others=chosen[held_out:],
        read=entry["read"],
        language=language,
        identity={"objective": member.name, "dam": entry["key"], "old": old.fingerprint},
        fit=fit,
        records={"assembly": origins_of(Path(settings.base), Path(str(settings.rem)))},
        processes=Processes(settings.device),
    )


def join(dam: Path | str, settings: AdaptSettings, progress: Progress) -> BiEncoder:
    """Join a DAM with the REM to the encoder that can be exported; LoRA is folded in."""
    ranker = assemble(
        dam, settings.rem, pooling=settings.pooling, similarity=settings.similarity, progress=progress
    )
    encoder = ranker.retriever()
    limit = min(settings.max_tokens or encoder.max_tokens, encoder.max_tokens)
    encoder.usage = replace(encoder.usage, max_tokens=limit)
    return encoder


def between(old: BiEncoder, new: BiEncoder, strength: float) -> BiEncoder:
    """Return `old + strength * (new - old)`, weight by weight; 1 is `new`, 0 is `old`.

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
