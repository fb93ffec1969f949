"""From documents to an encoder folder: start, fit, gate, export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..encoders.contract import Encoder
from ..encoders.export.exporting import export, require_replaceable
from ..encoders.opening import load_encoder
from ..encoders.published import entry_of
from ..errors import HybridrError, SettingsError, extra
from ..evaluation.label_free import BeforeAfter
from ..families import member_of
from ..files.formats import read_query_log
from ..files.manifest import fingerprint, read_manifest
from ..records import Progress, silent
from .corpus import Source
from .gate import GateReport, compare_encoders
from .proof import Proof, QueriesWithQrels, prove, read_proof
from .runs import Trained, manifest_of, recorded, result_of
from .settings import OBJECTIVES, AdaptSettings
from .start import Fitted, Start
from .two_retrievers import joins_two, start_from_two

NOT_RECORDED = {"out", "queries", "device", "objective_settings"}


class GateQueries(NamedTuple):
    """Queries that the encoders are compared on, besides those made from documents."""

    log: Sequence[str] = ()
    proof: Proof | None = None


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
    queries = GateQueries(
        read_query_log(settings.queries),
        read_proof(documents, judgements, settings.fields, settings.seed) if judgements else None,
    )
    start = start_of(documents, settings, progress)
    key = run_key(start, settings, queries)
    finished = finished_result(settings.out, key)
    if finished is not None:
        return finished
    fitted = start.fit()
    if start.processes.is_main:
        conclude(start, fitted, settings, queries, key, progress)
    start.processes.wait()
    return read_result(settings.out, read_manifest(settings.out) or {}, reused=False)


def conclude(
    start: Start,
    fitted: Fitted,
    settings: AdaptSettings,
    queries: GateQueries,
    key: str,
    progress: Progress,
) -> None:
    """Compare the candidate with what it came from, and export the one that is chosen."""
    gate = compare(start, fitted.encoder or fitted.candidate, queries, settings.seed, progress)
    promoted = gate.passed or settings.force
    entry = adaptation_entry(start, fitted, settings) | {
        "key": key,
        "promoted": promoted,
        "forced": promoted and not gate.passed,
        "gate": {**gate.record(), "query_log": len(queries.log)},
    }
    export(
        fitted.candidate if promoted else start.old,
        settings.out,
        texts=[document.contents for document in start.held_out],
        records={"adaptation": entry, **start.records},
        attachments=fitted.attachments,
        progress=progress,
    )


def compare(
    start: Start, candidate: Encoder, queries: GateQueries, seed: int, progress: Progress
) -> GateReport:
    """Let judged queries decide where there are enough; else the gate, which needs none, may say no."""
    if queries.proof is not None and queries.proof.decides:
        return prove(start.old_encoder, candidate, queries.proof, [*start.held_out, *start.others], progress)
    return compare_encoders(
        start.old_encoder,
        candidate,
        start.held_out,
        start.others,
        queries=queries.log,
        seed=seed,
        progress=progress,
    )


def start_of(documents: Source, settings: AdaptSettings, progress: Progress) -> Start:
    """Choose by the settings what is fitted: the DAM beside a REM, two retrievers, or one."""
    if settings.rem is None:
        require_retriever(settings)
        if joins_two(settings):
            return start_from_two(documents, settings, progress)
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


def run_key(start: Start, settings: AdaptSettings, queries: GateQueries) -> str:
    """Give the fingerprint of all that the result follows from."""
    parts = {} if queries.proof is None else {"judged": queries.proof}
    values = {"settings": recorded_values(settings), "queries": list(queries.log)}
    return fingerprint({**start.identity, **values, **parts})


def recorded_values(settings: AdaptSettings) -> dict[str, Any]:
    """Return the settings that the result follows from, those of the objective beside the others."""
    return recorded(settings, without=NOT_RECORDED) | settings.objective_settings


def adaptation_entry(start: Start, fitted: Fitted, settings: AdaptSettings) -> dict[str, Any]:
    """Give the `adaptation` entry of the manifest, but for the gate's decision."""
    objective = start.identity["objective"]
    member = member_of(OBJECTIVES, objective)
    values = recorded_values(settings)
    return {
        "language": start.language,
        "objective": objective,
        "method": f"{member.title}, {source}" if (source := getattr(member, "source", "")) else member.title,
        "settings": values | {"objective": objective, "strength": fitted.strength},
        "training": {"read": start.read, **fitted.training},
    }


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
