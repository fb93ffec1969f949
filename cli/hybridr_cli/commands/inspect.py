"""`hybridr inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.cluster.connection import Cluster
    from hybridr.encoding.contract import Encoder
    from hybridr.encoding.folder import FolderTokens
    from hybridr.inspection import FieldReport, Inspection
    from hybridr.shift import Shift


@dataclass(frozen=True)
class Sampling:
    """What is read of the index."""

    fields: Annotated[
        str | None, typer.Option(help="Text fields, comma-separated.", show_default="chosen, with reasons")
    ] = None
    encoder: Annotated[
        Path | None,
        typer.Option(help="Model folder whose tokens are counted.", show_default="the packaged one"),
    ] = None
    sample: Annotated[
        int, typer.Option(min=1, help="Documents to read at random; at most 10,000 of a larger index.")
    ] = 1000

    def names(self) -> list[str]:
        """Name the given fields."""
        return [name.strip() for name in (self.fields or "").split(",") if name.strip()]


@dataclass(frozen=True)
class Against:
    """What the index is compared with."""

    against: Annotated[
        str | None,
        typer.Option(help="How far it is from this: a BEIR folder or an index, best the training data."),
    ] = None
    queries: Annotated[
        Path | None, typer.Option(help="Queries to the index: BEIR folder, JSONL, or one per line.")
    ] = None
    source_queries: Annotated[
        Path | None, typer.Option(help="Queries to the source (a BEIR folder has its own).")
    ] = None
    run: Annotated[Path | None, typer.Option(help="TREC run on the index, for Hole@10.")] = None
    qrels: Annotated[Path | None, typer.Option(help="Its qrels, of TREC or BEIR.")] = None
    vectors: Annotated[int, typer.Option(min=0, help="Texts of each side to encode; 0: none.")] = 300
    plot: Annotated[Path | None, typer.Option(help="SVG file for both on two components.")] = None


@verb(app, "inspect", cluster=True)
def inspect(
    session: Session,
    index: Annotated[str, typer.Argument(help="Index or alias.")],
    sampling: Sampling,
    source: Against,
) -> None:
    """Show the fields, lengths, language and duplicates of an index, and its shift. Changes nothing."""
    from hybridr.inspection import inspect_index

    cluster, progress = session.connect(), session.output.progress
    if source.against is not None:
        return compare(session, cluster, index, sampling, source)
    counter, fields = token_counter(session, sampling.encoder), sampling.names()
    found = inspect_index(
        cluster, index, fields=fields, token_counter=counter, sample=sampling.sample, progress=progress
    )
    render(session, found)
    session.output.result(found.to_json())


def compare(session: Session, cluster: Cluster, index: str, sampling: Sampling, source: Against) -> None:
    """Measure how far the index is from the source, and draw both."""
    from hybridr.shift import ShiftSettings, draw_plane, measure_shift

    shift = measure_shift(
        cluster,
        index,
        str(source.against),
        ShiftSettings(
            fields=sampling.names(),
            queries=source.queries,
            source_queries=source.source_queries,
            run=source.run,
            qrels=source.qrels,
            sample=sampling.sample,
            vectors=source.vectors,
        ),
        encoder=shift_encoder(session, cluster, index, sampling.encoder, source.vectors),
        progress=session.output.progress,
    )
    if source.plot is not None:
        draw_plane(shift, source.plot)
    render_shift(session, shift)
    session.output.result(shift.to_json() | {"plot": source.plot and str(source.plot)})


def token_counter(session: Session, folder: Path | None) -> FolderTokens | None:
    """Open the tokenizer of the given model, else of the packaged one; None when that cannot be had."""
    from hybridr.encoding.folder import FolderTokens
    from hybridr.encoding.packaged import minilm
    from hybridr.errors import DownloadError

    try:
        return FolderTokens(folder or minilm(progress=session.output.progress))
    except DownloadError as error:
        session.output.note(f"lengths are in words, not in tokens: {error.message}")
        return None


def shift_encoder(
    session: Session, cluster: Cluster, index: str, folder: Path | None, vectors: int
) -> Encoder | None:
    """Open the given encoder, else that of the index or the packaged one; None when it cannot be had."""
    from hybridr.encoding.opening import load_encoder
    from hybridr.errors import DownloadError, MissingExtra
    from hybridr.search.encoders import encoder_for

    if not vectors:
        return None
    if folder is not None:
        return load_encoder(folder)
    try:
        return encoder_for(cluster, cluster.index_info(index), None, progress=session.output.progress)
    except (DownloadError, MissingExtra) as error:
        session.output.note(f"statistics of vectors are left out: {error.message}")
        return None


def render_shift(session: Session, shift: Shift) -> None:
    """Print the statistics of domain shift for people."""
    documents, encoded = shift.documents, shift.encoded
    session.output.line(
        f"{shift.target} against {shift.source}: {documents[1]:,} and {documents[0]:,} documents read, "
        f"{shift.queries[1]:,} and {shift.queries[0]:,} queries, {encoded[1]:,} and {encoded[0]:,} encoded"
    )
    rows = [
        (one.name, "-" if one.value is None else f"{one.value:.4f}", one.note, one.paper)
        for one in shift.findings
    ]
    session.output.table(("statistic", "value", "what it means", "paper"), rows)


def render(session: Session, found: Inspection) -> None:
    """Print the report for people."""
    say = session.output.line
    say(f"{found.index}: {found.documents:,} documents in {found.shards} shard(s), {found.sampled:,} read")
    unit = found.lengths.unit
    columns = ("field", "type", "filled", f"median {unit}", "p90", "not text", "used", "why")
    session.output.table(columns, [row(field) for field in found.fields])
    say()
    say(f"text        {' + '.join(found.text_fields)}: {described(found)}")
    guess = found.language
    say(f"language    {guess.code}, {guess.share:.0%} of {guess.texts:,} texts; analyser: {found.analyzer}")
    say(f"duplicates  {found.duplicates:.1%} of the texts read; {found.empty:.1%} of the documents have none")
    for remark in found.advice:
        say(f"- {remark}")


def described(found: Inspection) -> str:
    """Say how long texts are, and what the model's limit cuts off."""
    lengths = found.lengths
    said = f"median {lengths.median}, p90 {lengths.p90} {lengths.unit}"
    if lengths.cut is None:
        return said
    over = round(lengths.cut * (1 - found.empty) * found.documents)
    return (
        f"{said}, {lengths.cut:.1%} (about {over:,} documents) over the limit of {lengths.limit}, "
        f"which cuts off {lengths.lost or 0:.1%} of all tokens"
    )


def row(field: FieldReport) -> tuple[Any, ...]:
    """Give a field's line of the table."""
    filled = "-" if field.filled is None else f"{field.filled:.0%}"
    median, p90 = (field.lengths.median, field.lengths.p90) if field.lengths else ("", "")
    kind = f"{field.type} ({field.analyzer})" if field.analyzer else field.type
    return field.name, kind, filled, median, p90, field.not_text or "", "yes" if field.used else "", field.why
