"""`hybridr pipeline show|put|delete`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ..arguments import DryRun
from ..options import Only
from ..session import Session
from ..verbs import group, verb

if TYPE_CHECKING:
    from hybridr.deploying.pipelines import Change
    from hybridr.search.settings import SearchSettings

pipeline = group("pipeline", "Search pipelines that fuse hybrid queries.")
TECHNIQUE = Only("normalization", "combination", "rank_constant")


@dataclass(frozen=True)
class Parts:
    """What a technique says of each sub-query."""

    weights: Annotated[
        str | None, typer.Option(help="One per sub-query, sum 1: 0.4,0.6.", show_default="half each")
    ] = None
    lower_bounds: Annotated[
        str | None,
        typer.Option(
            help="Of min_max, one per sub-query: apply, clip or ignore, and a score: apply:0,clip:0.5."
        ),
    ] = None


@verb(pipeline, "show", cluster=True)
def show(
    session: Session,
    settings: Annotated[SearchSettings, TECHNIQUE],
    parts: Parts,
    name: Annotated[str | None, typer.Argument(help="A stored one; without it no cluster is asked.")] = None,
) -> None:
    """Print the body of a technique, or of a stored pipeline; curl can PUT it as it stands."""
    from hybridr.cluster.default_pipeline import stored_pipeline
    from hybridr.deploying.pipelines import build_pipeline, technique_of

    if name is not None:
        body = stored_pipeline(session.connect(), name)
    else:
        body = build_pipeline(technique_of(settings, parts.weights, parts.lower_bounds))
    session.output.result(body)
    session.output.line(json.dumps(body, indent=2, ensure_ascii=False))


@verb(pipeline, "put", cluster=True)
def put(
    session: Session,
    name: Annotated[str, typer.Argument(help="What the cluster calls it.")],
    settings: Annotated[SearchSettings, TECHNIQUE],
    parts: Parts,
    replace: Annotated[bool, typer.Option("--replace", help="Also one that hybridr did not make.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Store a pipeline, to be named by searches or by an index as its default."""
    from hybridr.deploying.pipelines import put_pipeline, technique_of

    wanted = technique_of(settings, parts.weights, parts.lower_bounds)
    done = put_pipeline(session.connect(), name, wanted, replace=replace, dry_run=dry_run)
    report(session, done, dry_run)


@verb(pipeline, "delete", cluster=True)
def delete(
    session: Session,
    name: Annotated[str, typer.Argument(help="A pipeline that hybridr made.")],
    dry_run: DryRun = False,
) -> None:
    """Delete a stored pipeline; not one that an index has as its default."""
    from hybridr.deploying.pipelines import delete_pipeline

    report(session, delete_pipeline(session.connect(), name, dry_run=dry_run), dry_run)


def report(session: Session, done: Change, dry_run: bool) -> None:
    """Print what was or would be sent."""
    session.output.result({**done._asdict(), "dry_run": dry_run})
    session.output.requests(done.requests)
    if dry_run:
        session.output.line("nothing was sent")
    elif not done.changed:
        session.output.line("it was so already")
