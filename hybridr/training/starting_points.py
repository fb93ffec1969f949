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
from .assembly import assemble
from .corpus import LEAST_DOCUMENTS, Source, held_out_of, language_of_most
from .dam import STAGE, DamFit, fit_dam
from .gate import GateDocuments
from .loop import Processes, train
from .ranker import origins_of
from .runs import LOSSES_FILE, STATE_FILE, STATE_FOLDER, thinned
from .settings import OBJECTIVES, AdaptSettings, DamSettings
from .start import BASES_VERSION, USUAL, Fitted, Start, read_sample, require_language
from .torch_models import BiEncoder, read_retriever

DAM_FOLDER = "dam"
GATE_FILE = "gate.jsonl"
LEAST_HELD_OUT = 20  # documents, for the gate


def member_that_fits(kind: str, settings: AdaptSettings) -> Any:
    """Load the objective's class: the one asked for, or the usual one for a retriever or a DAM.

    Raises SettingsError when it fits the other, or does not say.
    """
    name = settings.objective or USUAL[kind]
    fitting = names_of(OBJECTIVES, on="documents", fits=kind)
    if name in fitting:
        return member_of(OBJECTIVES, name)
    choice = f"--objective {' or '.join(fitting)}"
    if name not in {*names_of(OBJECTIVES, fits="retriever"), *names_of(OBJECTIVES, fits="dam")}:
        raise SettingsError(f'the objective {name} states no `fits`: "retriever" or "dam"')
    if kind == "dam":
        raise SettingsError(f"a DAM beside a REM is fitted with {choice}, not {name}")
    raise SettingsError(
        f"{name} training would undo what {settings.base} has learnt of relevance",
        hint=f"a retriever is fitted with {choice}; {name} needs a DAM as --base and a --rem",
    )


def start_from_retriever(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Read base model and documents. Raises DataError, ModelError, DownloadError, SettingsError."""
    member = member_that_fits("retriever", settings)
    own = member.Settings(**settings.own(member.Settings))
    base = read_base(settings, progress)
    sample = read_sample(documents, own, settings, progress)
    identity = {
        "version": BASES_VERSION,
        "objective": member.name,
        "documents": sample.fingerprint,
        "base": base.fingerprint,
        member.name: own.record(),
    }
    held_out, others = sample.parted(own.held_out)

    processes = Processes(settings.device)

    def fit() -> Fitted:
        objective = member(base, others, held_out, own, processes)
        return fit_retriever(objective, settings, fingerprint(identity), len(others), progress)

    return Start(
        base, base, held_out, others, sample.read, sample.language, identity, fit, processes=processes
    )


def read_base(settings: AdaptSettings, progress: Progress) -> BiEncoder:
    """Open the retriever that is adapted. Raises ModelError, DownloadError."""
    folder = minilm(progress=progress) if settings.base == "minilm" else Path(settings.base)
    return read_retriever(folder, max_tokens=settings.max_tokens or MAX_TOKENS)


def fit_retriever(
    objective: Any, settings: AdaptSettings, key: str, documents: int, progress: Progress
) -> Fitted:
    """Train from the last checkpoint, where there is one, and keep a share of what was learnt."""
    state = known_state(settings.out)
    before = objective.unseen_loss()
    run = train(objective, state, key, progress=progress)
    unseen = [before, objective.unseen_loss()]
    strength = objective.strength if settings.strength is None else settings.strength
    return Fitted(
        candidate=objective.candidate(strength),
        strength=strength,
        training={"documents": documents, **run.record(), "unseen_loss": unseen},
        attachments={name: state.parent / name for name in (STATE_FILE, LOSSES_FILE)},
    )


def known_state(out: Path) -> Path:
    """Name the checkpoint file; a finished run's is taken, so that another strength needs no training."""
    state, finished = out / STATE_FOLDER / STATE_FILE, out / STATE_FILE
    if finished.is_file() and not state.is_file():
        state.parent.mkdir(exist_ok=True)
        shutil.copyfile(finished, state)
    return state


def start_from_dam(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Fit the DAM, which goes on where it was stopped, and prepare its join with the REM.

    Raises SettingsError, DataError, ModelError, DownloadError.
    """
    member = member_that_fits("dam", settings)
    old = join(settings.base, settings, progress)  # before the long part: they may not fit
    gate = GateDocuments(settings.out / STATE_FOLDER / GATE_FILE, settings.seed)
    used = {"objective": member.name, "pooling": old.usage.pooling}  # what is trained is what will rank
    own = dam_settings(settings, member.Settings, used)
    fit = fit_dam(documents, own, through=gate.passing, progress=progress)
    chosen = gate.read()
    if len(chosen) < LEAST_DOCUMENTS:
        raise DataError(f"there are {len(chosen)} different texts; {LEAST_DOCUMENTS} are needed")
    language, published = language_of_most(chosen), entry_of(settings.base)
    if published and not settings.any_language:
        require_language(language, published.language, published.name)
    entry = (read_manifest(fit.folder) or {})[STAGE]
    held_out = held_out_of(len(chosen), max(own.held_out, LEAST_HELD_OUT))
    strength = member.strength if settings.strength is None else settings.strength
    return Start(
        old=old,
        old_encoder=old,
        held_out=chosen[:held_out],
        others=chosen[held_out:],
        read=entry["read"],
        language=language,
        identity={"objective": member.name, "dam": entry["key"], "old": old.fingerprint},
        fit=lambda: rejoin(fit, old, settings, strength, progress),
        records={"assembly": origins_of(Path(settings.base), Path(str(settings.rem)))},
        processes=Processes(settings.device),
    )


def dam_settings(settings: AdaptSettings, kind: type[DamSettings], used: dict[str, str]) -> DamSettings:
    """Give the settings of the DAM's training, `used` among them; the DAM is kept beside the encoder."""
    own = settings.own(kind) | used | {"out": settings.out / DAM_FOLDER}
    return kind(**{name: value for name, value in own.items() if name != "max_tokens"})


def join(dam: Path | str, settings: AdaptSettings, progress: Progress) -> BiEncoder:
    """Join a DAM with the REM to the encoder that can be exported; LoRA is folded in."""
    ranker = assemble(
        dam, settings.rem, pooling=settings.pooling, similarity=settings.similarity, progress=progress
    )
    encoder = ranker.retriever()
    limit = min(settings.max_tokens or encoder.max_tokens, encoder.max_tokens)
    encoder.usage = replace(encoder.usage, max_tokens=limit)
    return encoder


def rejoin(
    fit: DamFit, old: BiEncoder, settings: AdaptSettings, strength: float, progress: Progress
) -> Fitted:
    """Join the fitted DAM with the REM, and keep the asked share of what it learnt."""
    new = join(fit.folder, settings, progress)
    new.usage = old.usage  # a fitted DAM's folder no longer says what a published name does
    names = ("documents", "steps", "loss_start", "loss_end", "seconds", "resumed_from")
    training = {name: getattr(fit, name) for name in names} | {
        "unseen_loss": [fit.unseen_loss_start, fit.unseen_loss_end],
        "losses": thinned(fit.losses),
    }
    return Fitted(between(old, new, strength), strength, training, {DAM_FOLDER: fit.folder})


def between(old: BiEncoder, new: BiEncoder, strength: float) -> BiEncoder:
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
