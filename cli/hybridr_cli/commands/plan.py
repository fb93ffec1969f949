"""`hybridr plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..arguments import NamedEncoder
from ..options import Only
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.forecasting.forecasting import Forecast
    from hybridr.forecasting.settings import ForecastSettings
    from hybridr.reindexing.settings import ReindexSettings

OPTIONS = Only("max_tokens", "passages", "engine", "vectors", "compression", "precision")


@verb(app, "plan", cluster=True)
def plan(
    session: Session,
    name: Annotated[str, typer.Argument(help="Index whose documents shall get vectors; it is only read.")],
    settings: ForecastSettings,
    wanted: Annotated[ReindexSettings, OPTIONS],
    encoder: NamedEncoder = None,
) -> None:
    """Tell hours, memory, disk, shards and price of vectors for an index, before anything is written."""
    from hybridr.forecasting.forecasting import forecast, require_measurable
    from hybridr.index import reindex_settings
    from hybridr.reindexing.planning import source_of
    from hybridr.search.encoders import encoder_for
    from hybridr.search.settings import SearchSettings

    require_measurable(settings)
    wanted = reindex_settings(wanted, session.settings(SearchSettings))
    gpu = settings.gpu and settings.documents_per_second is None  # else there is nothing to measure
    cluster, progress = session.connect(), session.output.progress
    precision, backend = wanted.told_precision or "fp32", "torch" if gpu else wanted.backend
    source = source_of(cluster, name)
    model = encoder_for(cluster, source, encoder, precision=precision, backend=backend, progress=progress)
    found = forecast(cluster, name, model, wanted, settings)
    session.output.result(found.to_json())
    show(session, found)


def show(session: Session, found: Forecast) -> None:
    """Print the plan for people."""
    out, quantity, volume, housing = session.output, found.quantity, found.volume, found.housing
    tokens = "" if found.tokens is None else f", {found.tokens:,.1f} tokens of each encoded"
    out.line(
        f"{found.index}: {quantity.documents:,} documents{tokens}; {quantity.vectors:,} vectors of "
        f"{quantity.dim} dimensions, {quantity.form}"
    )
    show_time(session, found)
    copies = "copy" if housing.copies == 1 else "copies"
    out.line(
        f"disk     {size(volume.disk)} for {housing.copies} {copies}, up to {size(volume.peak_disk)} while "
        "it is filled, beside the source"
    )
    out.line(
        f"         a copy: vectors {size(volume.vectors)}, graph {size(volume.graph)}, documents "
        f"{size(volume.text)}; until merges drop it, vectors as text {size(volume.recovery)}"
    )
    out.line(
        f"memory   {size(volume.memory)} on each of {housing.nodes} data node(s), of that heap "
        f"{size(volume.heap)}; vectors and graphs that searches walk: {size(volume.hot)} on all nodes"
    )
    out.line(f"shards   {volume.shards:,}, each with its copies")
    out.line("how each number is computed, and how far it was right: docs/scale.md")


def show_time(session: Session, found: Forecast) -> None:
    """Print how long it takes, what the longest part is, and the price."""
    workforce, took = found.workforce, found.duration
    parts = {"reading": took.reading, "encoding": took.encoding, "writing": took.writing}
    whence = "measured here" if found.measured else "as told"
    session.output.line(
        f"time     {hours(took.total)}: {', '.join(f'{name} {hours(s)}' for name, s in parts.items())} at "
        f"the same time, then verifying {hours(took.verifying)}"
    )
    session.output.line(
        f"workers  {workforce.workers:,}, each {workforce.documents_per_second:,.1f} documents a second, "
        f"{whence}; {max(parts, key=lambda name: parts[name])} takes longest"
    )
    if found.price is not None:
        session.output.line(
            f"price    {found.price:,.2f} for the workers, {found.price_per_million:,.2f} a million documents"
        )


def hours(seconds: float) -> str:
    """Write a time as people say it."""
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds:,.0f} s"


def size(count: int) -> str:
    """Write bytes as people say them."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
