"""From documents to an encoder folder: start, fit, gate, export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..encoders.export.exporting import export, require_replaceable
from ..encoders.opening import load_encoder
from ..encoders.published import entry_of
from ..errors import HybridrError, SettingsError, extra
from ..evaluation.label_free import BeforeAfter
from ..files.formats import read_query_log
from ..files.manifest import fingerprint, read_manifest
from ..records import Progress, silent
from ..relevance.corpus import Source
from ..relevance.gate import GateReport, QueriesWithQrels, compare_encoders, prove, read_proof
from .runs import Trained, manifest_of, recorded, result_of
from .settings import AdaptSettings
from .start import Fitted, Start, adapter_of, start_from_adapter

NOT_RECORDED = {"out", "queries", "device", "objective_settings"}


@dataclass(frozen=True, kw_only=True)
class AdaptResult(Trained):
    """An encoder folder, whether it holds the adapted encoder, and how that was decided.

    The `unseen_loss` pair is the loss on held-out documents before and after training, at full strength.
    """

    promoted: bool
    gate: GateReport
    unseen_loss_start: float | None
    unseen_loss_end: float | None
    language: str
    objective: str


def adapt(
    documents: Source,
    settings: AdaptSettings,
    *,
    judgements: QueriesWithQrels | None = None,
    progress: Progress = silent,
) -> AdaptResult:
    """Fit an encoder to documents without labels and export it, or the unadapted one if the gate says no.

    `documents` are an iterable of Document, or (cluster, index). The packaged retriever is joined with a
    second one, another is fitted by span contrast, a DAM by masked-LM training and joined with the REM that
    `settings.rem` names, unless `settings.objective` names another of `objectives`. With 30 or more
    `judged` queries, which are queries and qrels, the adapted encoder is kept only if it is shown to rank
    them better. The result lies in `settings.out`. A run that was finished with the same documents and
    settings returns at once, a killed one goes on. Raises DataError (too few documents, another
    language), ModelError (base, REM, loss), SettingsError, DownloadError (base, disk). Under `accelerate
    launch` all processes call this together.
    """
    require_replaceable(settings.out)
    log = read_query_log(settings.queries)
    proof = read_proof(documents, judgements, settings.fields, settings.seed) if judgements else None
    start = start_of(documents, settings, progress)
    values = recorded(settings, without=NOT_RECORDED) | settings.objective_settings
    parts = {} if proof is None else {"judged": proof}
    key = fingerprint({**start.identity, "settings": values, "queries": list(log), **parts})
    if (finished := finished_result(settings.out, key)) is not None:
        return finished
    fitted = start.fit()
    if start.processes is None or start.processes.is_main:
        candidate = fitted.encoder or fitted.candidate
        if proof is not None and proof.decides:
            others = [*start.held_out, *start.others]
            gate = prove(start.old_encoder, candidate, proof, others, progress)
        else:
            gate = compare_encoders(
                start.old_encoder,
                candidate,
                start.held_out,
                start.others,
                queries=log,
                seed=settings.seed,
                progress=progress,
            )
        entry = {"key": key, "gate": {**gate.record(), "query_log": len(log)}}
        conclude(start, fitted, settings, gate, entry, progress)
    if start.processes is not None:
        start.processes.wait()
    return read_result(settings.out, read_manifest(settings.out) or {}, reused=False)


def start_of(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Choose by the settings what is fitted: the DAM beside a REM, an adapter, or a retriever."""
    if settings.rem is None:
        require_retriever(settings)
        if (name := adapter_of(settings)) is not None:
            return start_from_adapter(name, documents, settings, progress)
    with extra("train", "training an encoder"):
        from .starting_points import start_from_dam, start_from_retriever

    start = start_from_dam if settings.rem is not None else start_from_retriever
    return start(documents, settings, progress)


def require_retriever(settings: AdaptSettings) -> None:
    """Raise SettingsError when the base is a DAM, which ranks nothing without a REM."""
    published, folder = entry_of(settings.base), Path(settings.base)
    bare = (folder / "config.json").is_file() and not (folder / "modules.json").is_file()
    if published is not None and published.kind == "full":
        raise SettingsError(
            f"{settings.base} is a published encoder without the files of a retriever",
            hint=f"hybridr export --dam {settings.base} --out FOLDER, then --base FOLDER",
        )
    if bare or (published is not None and not folder.exists()):
        raise SettingsError(
            f"{settings.base} is no retriever: alone, a masked-LM backbone (DAM) ranks nothing",
            hint="name the relevance module to join it with: --rem FOLDER or a published name "
            "(`hybridr models`)",
        )


def conclude(
    start: Start,
    fitted: Fitted,
    settings: AdaptSettings,
    gate: GateReport,
    entry: Mapping[str, Any],
    progress: Progress,
) -> None:
    """Export the encoder that the gate or `force` chooses, with the `adaptation` entry of its manifest."""
    member, promoted = start.member, gate.passed or settings.force
    source = getattr(member, "source", "")
    values = recorded(settings, without=NOT_RECORDED) | settings.objective_settings
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


def finished_result(folder: Path, key: str) -> AdaptResult | None:
    """Give the result of a finished run with this key, if its encoder is intact."""
    manifest = manifest_of(folder) or {}
    if manifest.get("adaptation", {}).get("key") != key:
        return None
    try:
        load_encoder(folder)
    except HybridrError:
        return None
    return read_result(folder, manifest, reused=True)


def read_result(folder: Path, manifest: Mapping[str, Any], *, reused: bool) -> AdaptResult:
    """Give the result that a manifest records."""
    entry = manifest["adaptation"]
    gate = entry["gate"]
    report = GateReport(
        rows=tuple(BeforeAfter(**row) for row in gate["rows"]),
        reasons=tuple(gate["reasons"]),
        held_out=gate["held_out"],
        documents=gate["documents"],
        judged=gate.get("judged", 0),
    )
    values = {name: entry[name] for name in ("promoted", "language", "objective")}
    return result_of(AdaptResult, folder, entry["training"], reused=reused, gate=report, **values)
