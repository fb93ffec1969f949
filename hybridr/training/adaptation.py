"""Fits an encoder to documents without labels (`hybridr adapt`), and exports it if it passes the gate.

The gate compares the old and new encoder. Only a DAM with a REM needs torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from ..encoders.contract import Encoder
from ..encoders.export.exporting import export, model_folder, require_replaceable, require_unused
from ..encoders.export.model_files import Exportable
from ..encoders.export.weights import open_without_torch
from ..encoders.model_usage import read_usage
from ..encoders.opening import load_encoder
from ..encoders.registry import MAX_TOKENS, is_default, published_checkpoint
from ..encoders.stored_models import require_intact
from ..errors import DataError, HybridrError, SettingsError, extra
from ..families import load_member, member_names
from ..files.formats import read_query_log
from ..files.local import fingerprint, read_manifest
from ..files.staging import claimed_folder
from ..records import Document, Progress, silent
from ..relevance.corpus import (
    MIN_DOCUMENTS,
    Source,
    draw_sample,
    held_out_count,
    main_language,
    read_source,
)
from ..relevance.gate import (
    GateReport,
    QueriesQrels,
    compare_encoders,
    compare_on_judged,
    read_evidence,
)
from .runs import STATE_FOLDER, Trained, intact_manifest, make_result, settings_record
from .settings import ADAPTERS, OBJECTIVES, AdaptSettings
from .token_cache import GateDocuments

if TYPE_CHECKING:
    from .loop import Processes

NOT_RECORDED = {"out", "queries", "device", "objective_settings"}
USUAL_ADAPTER, USUAL_OBJECTIVE = "ensemble", "mlm"
OF_TRAINING = ("steps", "batch_size", "learning_rate")
ADAPTERS_VERSION = 2  # version of the procedure; raise it when results change: finished runs are repeated
DAM_FOLDER = "dam"
GATE_FILE = "gate.jsonl"
MIN_HELD_OUT = 20  # documents, for the gate


@dataclass(frozen=True, kw_only=True)
class AdaptResult(Trained):
    """The exported encoder folder, whether it holds the adapted encoder, and the comparison that decided.

    The `unseen_loss` pair is the loss on held-out documents before and after training, with all of the learnt
    change.
    """

    promoted: bool
    gate: GateReport
    unseen_loss_start: float | None
    unseen_loss_end: float | None
    language: str
    objective: str


@dataclass(frozen=True)
class Start:
    """State of `adapt` before training: old encoder, documents for the gate, the function that fits."""

    member: Any
    """The class of the adapter or objective."""
    old: Exportable
    held_out: Sequence[Document]
    """Documents that are not trained on."""
    others: Sequence[Document]
    read: int
    """Documents read."""
    language: str
    identity: Mapping[str, Any]
    """Inputs that determine the result besides the gate's settings, as JSON-compatible values."""
    fit: Callable[[], Fitted]
    records: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of the encoder's manifest."""
    processes: Processes | None = None
    """The processes that train together; None for a single one."""


@dataclass(frozen=True)
class Fitted:
    """The adapted encoder (the candidate), and how its training went."""

    candidate: Exportable
    strength: float
    """Share (0..1) of the learnt change in the candidate."""
    training: Mapping[str, Any]
    """Entry of the manifest about the run; its losses are thinned."""
    encoder: Encoder
    """A faster encoder with the vectors of the candidate."""
    old_encoder: Encoder
    """A faster encoder with the vectors of the old encoder."""
    attachments: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders to store with the encoder, by name."""


def adapt(
    documents: Source,
    settings: AdaptSettings,
    *,
    judgements: QueriesQrels | None = None,
    progress: Progress = silent,
) -> AdaptResult:
    """Export an encoder fitted to documents without labels, or the old one if the gate rejects the new.

    A retriever is joined with a second one. A DAM is fitted by masked-LM training and joined with the REM
    that `settings.rem` names. `settings.objective` may name another way.

    documents: an iterable of Document, or (cluster, index)
    settings: `out` is the folder of the result
    judgements: with 30 or more judged queries, the adapted encoder must be shown to rank them better

    A finished run with the same documents and settings is reused, an interrupted one resumes. Under
    `accelerate launch` all processes call this together. Raises DataError (too few documents, another
    language), ModelError (base, REM, loss, an `out` that an index needs), SettingsError, DownloadError (base,
    disk).
    """
    with claimed_folder(settings.out):
        require_replaceable(settings.out)
        log = read_query_log(settings.queries)
        proof = read_evidence(documents, judgements, settings.fields, settings.seed) if judgements else None
        prepare = start_from_adapter if settings.rem is None else start_from_dam
        start = prepare(documents, settings, progress)
        values = settings_record(settings, without=NOT_RECORDED) | settings.objective_settings
        parts = {} if proof is None else {"judged": proof}
        key = fingerprint({**start.identity, "settings": values, "queries": list(log), **parts})
        manifest = intact_manifest(settings.out) or {}
        if manifest.get("adaptation", {}).get("key") == key:
            try:
                load_encoder(settings.out)
                return read_result(settings.out, manifest, reused=True)
            except HybridrError:  # damaged: repeat the run
                pass
        else:
            require_unused(settings.out)
        fitted = start.fit()
        if start.processes is None or start.processes.is_main:
            if proof is not None and proof.decides:
                others = [*start.held_out, *start.others]
                gate = compare_on_judged(fitted.old_encoder, fitted.encoder, proof, others, progress)
            else:
                gate = compare_encoders(
                    fitted.old_encoder,
                    fitted.encoder,
                    start.held_out,
                    start.others,
                    queries=log,
                    seed=settings.seed,
                    progress=progress,
                )
            entry = {"key": key, "gate": {**gate.record(), "query_log": len(log)}}
            export_chosen(start, fitted, settings, gate, entry, progress)
        if start.processes is not None:
            start.processes.wait()
        return read_result(settings.out, read_manifest(settings.out) or {}, reused=False)


def start_from_adapter(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Read the base retriever and documents, and prepare an adapter, which joins encoders without torch
    training.

    Raise SettingsError (also for a DAM alone), DataError, ModelError, DownloadError.
    """
    published, folder = published_checkpoint(settings.base), Path(settings.base)
    if published is not None and published.kind == "full":
        raise SettingsError(
            f"{settings.base} is a published encoder without the files of a retriever",
            hint=f"hybridr export --dam {quote(settings.base)} --out FOLDER, then --base FOLDER",
        )
    is_backbone = (folder / "config.json").is_file() and not (folder / "modules.json").is_file()
    if is_backbone or (published is not None and not folder.exists()):
        raise SettingsError(
            f"{settings.base} is not a retriever: a masked-LM backbone (DAM) alone cannot rank",
            hint="name the relevance module to join it with: --rem FOLDER or a published name "
            "(`hybridr models`)",
        )
    name, choices = settings.objective or USUAL_ADAPTER, member_names(ADAPTERS, on="documents")
    if name not in choices:
        raise SettingsError(
            f"{name} training would undo what {settings.base} has learnt of relevance",
            hint=f"a retriever is fitted with --objective {' or '.join(choices)}; {name} needs a DAM as "
            "--base and a --rem",
        )
    for setting in OF_TRAINING:
        if getattr(settings, setting) is not None:
            raise SettingsError(
                f"{name} is not trained: it takes no {setting}", hint="a DAM as --base and a --rem are"
            )
    member = load_member(ADAPTERS, name)
    options = member.Settings(**settings.objective_values(member.Settings))
    base_folder = model_folder(settings.base, progress=progress)
    require_intact(base_folder)
    base = open_without_torch(base_folder, usage=read_usage(base_folder, settings.max_tokens or MAX_TOKENS))
    sample = draw_sample(
        documents, options.max_documents, seed=options.seed, fields=options.fields, progress=progress
    )
    language = main_language(sample.documents)
    if is_default(settings.base) and not settings.any_language:
        require_language(language, "en", "the packaged model")
    adapter = member(base, options, progress)
    held_out, others = sample.split(options.held_out)
    identity = {
        "version": ADAPTERS_VERSION,
        "objective": name,
        "documents": sample.fingerprint,
        "base": adapter.fingerprint,
        name: options.record(),
    }

    def fit() -> Fitted:
        """Fit the adapter to the documents and return the candidate."""
        share = member.strength if settings.strength is None else settings.strength
        texts, unseen = ([document.contents for document in part] for part in (others, held_out))
        training = adapter.fit(texts, unseen, share, progress)
        return Fitted(adapter.candidate, share, training, adapter.encoder, adapter.old_encoder)

    return Start(member, base, held_out, others, sample.read, language, identity, fit)


def start_from_dam(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Train the DAM on the documents (resuming a stopped run) and prepare joining it with the REM.

    Raise SettingsError, DataError, ModelError, DownloadError.
    """
    with extra("train", "training an encoder"):
        from .dam import STAGE, fit_dam
        from .loop import Processes
        from .ranker import read_origins
        from .rankers import interpolated_encoder, joined_encoder

    name, choices = settings.objective or USUAL_OBJECTIVE, member_names(OBJECTIVES, on="documents")
    if name not in choices:
        raise SettingsError(
            f"a DAM beside a REM is fitted with --objective {' or '.join(choices)}, not {name}"
        )
    member = load_member(OBJECTIVES, name)
    old = joined_encoder(settings.base, settings, progress)  # before the training: they may not match
    gate = GateDocuments(settings.out / STATE_FOLDER / GATE_FILE, settings.seed)
    values = settings.objective_values(member.Settings) | {
        "objective": name,
        "pooling": old.usage.pooling,  # training uses the pooling that ranks
        "out": settings.out / DAM_FOLDER,  # stored with the encoder
    }
    values.pop("max_tokens", None)
    dam_settings = member.Settings(**values)
    dam = fit_dam(documents, dam_settings, through=gate.passing, progress=progress)
    gate_documents = gate.read()
    if not gate_documents:  # an interrupted run left tokens, but no documents for the gate
        deque(gate.passing(read_source(documents, dam_settings.fields, progress)), maxlen=0)
        gate_documents = gate.read()
    if len(gate_documents) < MIN_DOCUMENTS:
        raise DataError(f"there are {len(gate_documents)} different texts; {MIN_DOCUMENTS} are needed")
    language, published = main_language(gate_documents), published_checkpoint(settings.base)
    if published and not settings.any_language:
        require_language(language, published.language, published.name)
    entry = (read_manifest(dam.folder) or {})[STAGE]
    held_out = held_out_count(len(gate_documents), max(dam_settings.held_out, MIN_HELD_OUT))

    def fit() -> Fitted:
        """Join the trained DAM with the REM and return the candidate."""
        strength = member.strength if settings.strength is None else settings.strength
        new_encoder = joined_encoder(dam.folder, settings, progress)
        new_encoder.usage = old.usage  # a fitted DAM's folder lacks the usage of the published name
        names = ("documents", "steps", "loss_start", "loss_end", "seconds", "resumed_from")
        training = {name: getattr(dam, name) for name in names} | {
            "unseen_loss": [dam.unseen_loss_start, dam.unseen_loss_end],
            "losses": list(dam.losses),
        }
        candidate = interpolated_encoder(old, new_encoder, strength)
        return Fitted(candidate, strength, training, candidate, old, {DAM_FOLDER: dam.folder})

    identity = {"objective": name, "dam": entry["key"], "old": old.fingerprint}
    records = {"assembly": read_origins(Path(settings.base), Path(str(settings.rem)))}
    parts = gate_documents[:held_out], gate_documents[held_out:]
    processes = Processes(settings.device)
    return Start(member, old, *parts, entry["read"], language, identity, fit, records, processes)


def require_language(language: str, needed: str, model: str) -> None:
    """Raise DataError if the documents are in another language than the model reads."""
    if language not in (needed, "und"):
        raise DataError(
            f"most documents look like language '{language}'; {model} reads '{needed}'",
            hint="give a model of that language with --base, or --yes to go on all the same",
        )


def export_chosen(
    start: Start,
    fitted: Fitted,
    settings: AdaptSettings,
    gate: GateReport,
    entry: Mapping[str, Any],
    progress: Progress,
) -> None:
    """Export the new encoder if the gate passed or `force` is set, else the old one."""
    member, promoted = start.member, gate.passed or settings.force
    source = getattr(member, "source", "")
    values = settings_record(settings, without=NOT_RECORDED) | settings.objective_settings
    record = {
        "language": start.language,
        "objective": member.name,
        "method": f"{member.title}, {source}" if source else member.title,
        "settings": values | {"objective": member.name, "strength": fitted.strength},
        "training": {"read": start.read, **fitted.training},
        "promoted": promoted,
        "forced": promoted and not gate.passed,
        **entry,
    }
    export(
        fitted.candidate if promoted else start.old,
        settings.out,
        texts=[document.contents for document in start.held_out],
        records={"adaptation": record, **start.records},
        attachments=fitted.attachments,
        progress=progress,
    )


def read_result(folder: Path, manifest: Mapping[str, Any], *, reused: bool) -> AdaptResult:
    """Return the result that a manifest records."""
    entry = manifest["adaptation"]
    report = TypeAdapter(GateReport).validate_python(entry["gate"])
    values = {name: entry[name] for name in ("promoted", "language", "objective")}
    return make_result(AdaptResult, folder, entry["training"], reused=reused, gate=report, **values)
