"""`hybridr tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..arguments import EncoderFolder, JudgedQueries, Searched
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.cluster.connection import Cluster
    from hybridr.tuning.judgement import Choice
    from hybridr.tuning.settings import TuneSettings
    from hybridr.tuning.tuning import Bm25Choice, Tuning


@verb(app, "tune", cluster=True)
def tune(
    session: Session,
    name: Searched,
    judged: JudgedQueries,
    settings: TuneSettings,
    encoder: EncoderFolder = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the measure by weight, as SVG.")] = None,
) -> None:
    """Choose how the legs are joined: with judged queries, or what is safe without any."""
    from hybridr.tuning.settings import MapSettings
    from hybridr.tuning.tuning import draw_curve, read_judged, tune

    maps, progress = session.settings(MapSettings), session.output.progress
    cluster, queries = session.connect(), read_judged(**vars(judged))
    found = tune(
        cluster, name, queries, encoder=encoder, settings=settings, map_settings=maps, progress=progress
    )
    if plot is not None:
        draw_curve(found, plot)
    session.output.result(found.to_json())
    show(session, found)
    warn_of_deployment(session, cluster, name)


def warn_of_deployment(session: Session, cluster: Cluster, name: str) -> None:
    """Say what of a deployment does not fit what was found."""
    from hybridr.cluster.destinations import resolve
    from hybridr.serving.deploying import deployment_of

    deployed = deployment_of(cluster, resolve(cluster, name))
    if deployed is None:
        return
    for problem in deployed.missing:
        session.output.note(f"deployed, but {problem}: hybridr deploy {name} --way {deployed.way}")


def show_choice(session: Session, name: str, choice: Choice) -> None:
    """Print what judged queries choose."""
    bounds = f"[{choice.low:+.4f}, {choice.high:+.4f}]"
    other = "" if choice.chosen.is_default else f", not {choice.chosen}"
    said = str(choice.chosen) if choice.applied else f"{choice.best} is kept{other}"
    session.output.line(f"{name}: {said}; gain on unseen queries {choice.gain:+.4f} {bounds}")


def show_bm25(session: Session, found: Bm25Choice) -> None:
    """Print what judged queries say about k1 and b, and what changes them."""
    out = session.output
    if found.choice is None:
        return out.line(f"bm25: not tuned, {found.obstacle}")
    show_choice(session, "bm25", found.choice)
    if found.closed_s is not None:
        return out.line(f"bm25: changed from {found.before}, the index was closed for {found.closed_s:.1f} s")
    for request in found.requests:
        body = f" {json.dumps(request['body'])}" if "body" in request else ""
        out.line(f"  {request['method']} {request['path']}{body}")
    if found.requests:
        out.line("bm25: not applied; --bm25 apply sends these, and nobody can search or write meanwhile")


def show(session: Session, found: Tuning) -> None:
    """Print what was found."""
    out, choice = session.output, found.choice
    if choice is None:
        out.line("fusion: the default is kept, no rule without judged queries was found to be safe")
    else:
        out.line(f"{choice.queries} judged queries, {choice.measure} {choice.default:.4f} by default")
        show_choice(session, "search", choice)
    if found.pipeline is not None:
        show_choice(session, "deployed pipeline", found.pipeline)
    if found.bm25 is not None:
        show_bm25(session, found.bm25)
    if found.term_table is not None:
        out.line(f"term table: {found.term_table.described}")
    if found.map is None:
        return out.line(f"query map: none, {found.skipped_map}")
    for row in found.map.rows:
        out.line(f"{row.name}: {row.old:.3f} -> {row.new:.3f} (p {row.p:.2g})")
    for reason in found.map.reasons:
        out.line(f"query map: not applied, {reason}")
    if found.map.folder:
        out.line(f"query map: strength {found.map.strength:g}, {found.map.folder}")
