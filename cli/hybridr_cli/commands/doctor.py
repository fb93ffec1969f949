"""The verbs `hybridr doctor`, `inspect`, `models` and `settings`, which report a state and change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridr.errors import quantity

from ..options import PACKAGES, STAGES, FieldNames, split_names
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.doctor.inspection import FieldReport, Inspection
    from hybridr.encoders.registry import KnownEncoder


@verb(app, "doctor", cluster=True)
def doctor(session: Session) -> None:
    """Check node, cluster, rights and machine; one line per check, with its fix. Exit 1 if a check fails.

    It creates an index hybridr-doctor-… with one document on the cluster and deletes it again.
    """
    from hybridr.doctor.diagnosis import diagnose

    checks = diagnose(session.cluster_settings(), progress=session.output.progress)
    session.output.close()
    marks = {True: "ok", False: "FAIL", None: "note"}
    width = max(len(check.name) for check in checks)
    for check in checks:
        fix = f"   FIX: {check.fix}" if check.fix else ""
        session.output.line(f"{marks[check.ok]:<4}  {check.name:<{width}}  {check.found}{fix}")
    healthy = all(check.ok is not False for check in checks)
    session.output.result({"ok": healthy, "checks": [check._asdict() for check in checks]})
    if not healthy:
        raise typer.Exit(1)


@verb(app, "inspect", cluster=True)
def inspect(
    session: Session,
    index: Annotated[str, typer.Argument(help="Index or alias.")],
    fields: FieldNames = None,
    encoder: Annotated[
        Path | None, typer.Option(help="Encoder to count tokens with.", show_default="the packaged one")
    ] = None,
) -> None:
    """Show the fields, lengths, language and duplicates of an index. Changes nothing."""
    inspection = session.index(index).inspect(
        fields=split_names(fields), encoder=encoder, progress=session.output.progress
    )
    line = session.output.line
    line(
        f"{inspection.index}: {quantity(inspection.documents, 'document')} in "
        f"{quantity(inspection.shards, 'shard')}, {inspection.sampled:,} read"
    )
    unit = inspection.lengths.unit
    columns = ("field", "type", "filled", f"median {unit}", "p90", "not text", "used", "why")
    session.output.table(columns, [field_row(field) for field in inspection.fields])
    line()
    line(f"text        {' + '.join(inspection.text_fields)}: {describe_lengths(inspection)}")
    if inspection.lexical_fields and set(inspection.lexical_fields) != set(inspection.text_fields):
        line(f"words       searched in {' + '.join(inspection.lexical_fields)}")
    guess = inspection.language
    line(
        f"language    {guess.code}, {guess.share:.0%} of {guess.texts:,} texts; "
        f"analyser: {inspection.analyzer}"
    )
    line(
        f"duplicates  {inspection.duplicates:.1%} of the texts read; "
        f"{inspection.empty:.1%} of the documents have none"
    )
    for remark in inspection.advice:
        line(f"- {remark}")
    session.output.result(inspection.to_json())


def describe_lengths(inspection: Inspection) -> str:
    """Return a text about the lengths of texts, and how much the model's input limit cuts off."""
    lengths = inspection.lengths
    summary = f"median {lengths.median}, p90 {lengths.p90} {lengths.unit}"
    if lengths.cut is None:
        return summary
    over_limit = round(lengths.cut * (1 - inspection.empty) * inspection.documents)
    return (
        f"{summary}, {lengths.cut:.1%} (about {quantity(over_limit, 'document')}) over the limit of "
        f"{lengths.limit}, which cuts off {lengths.lost or 0:.1%} of all tokens"
    )


def field_row(field: FieldReport) -> tuple[Any, ...]:
    """Return the table row of a field for `inspect`."""
    filled = "-" if field.filled is None else f"{field.filled:.0%}"
    median, p90 = (field.lengths.median, field.lengths.p90) if field.lengths else ("", "")
    kind = "semantic" if field.semantic else field.type
    kind = f"{kind} ({field.analyzer})" if field.analyzer else kind
    uses = {(True, True): "yes", (True, False): "encoded", (False, True): "words"}
    use = uses.get((field.used, field.searched), "")
    return field.name, kind, filled, median, p90, field.not_text or "", use, field.why


@verb(app, "models")
def models(session: Session) -> None:
    """List models with a name: encoders by language, and published DAMs, REMs and baselines."""
    from dataclasses import asdict

    from hybridr.encoders.precisions import documents_per_second
    from hybridr.encoders.registry import ENCODERS, checkpoints

    speeds = {entry.name: documents_per_second(entry) for entry in ENCODERS}
    session.output.table(
        ("module", "kind", "ranker", "lang", "vectors", "goes with"),
        [
            (e.name, e.kind, e.ranker, e.language, f"{e.pooling}, {e.similarity}", e.partner)
            for e in checkpoints()
        ],
    )
    session.output.line("hybridr export --dam DAM --rem REM --out FOLDER   makes an encoder of the two")
    session.output.table(
        ("encoder", "languages", "size", "dim", "tokens", "speed", "licence", "from"),
        [
            (
                entry.name,
                ", ".join(entry.languages),
                f"{entry.millions} M",
                entry.dim,
                entry.max_tokens,
                f"{speed:.0f}/s" if (speed := speeds[entry.name]) else "-",
                entry.licence,
                origin(entry),
            )
            for entry in ENCODERS
        ],
    )
    session.output.line("speed: documents of 128 tokens, in fp32, if an index used the encoder here")
    session.output.line("hybridr reindex NAME --encoder ENCODER   fetches and exports it on first use")
    models = [asdict(module) | {"repository": module.repository} for module in checkpoints()]
    encoders = [
        asdict(entry) | {"repository": entry.repository, "documents_per_second": speeds[entry.name]}
        for entry in ENCODERS
    ]
    session.output.result({"models": models, "encoders": encoders})


def origin(entry: KnownEncoder) -> str:
    """Return where an encoder is fetched from, in the order in which the sources are tried."""
    from hybridr.encoders.registry import is_default

    if entry.package is None:
        return "hub"
    packaged = f"{entry.package.registry} {entry.package.size / 1e6:.0f} MB"
    return packaged if is_default(entry.name) else f"hub or {packaged}"


@verb(app, "settings")
def settings(session: Session) -> None:
    """List every setting with its value and where the value comes from."""
    from hybridr.settings import resolved_values

    rows = [row for stage in PACKAGES for row in resolved_values(STAGES[stage], config=session.config)]
    lines = [
        (name, f"{value:g}" if isinstance(value, float) else value, origin) for name, value, origin in rows
    ]
    session.output.table(("setting", "value", "from"), lines)
    session.output.result({name: {"value": value, "from": origin} for name, value, origin in rows})
