"""The verbs `hybridr deploy` and `hybridr undeploy`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridr.errors import quantity

from ..options import DryRun, Only, SearchedName
from ..output import first_few
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.search.settings import SearchSettings
    from hybridr.serving.deploy.deploying import DeployResult
    from hybridr.serving.deploy.ingesting import Ingesting
    from hybridr.serving.rewriting.explaining import Explained
    from hybridr.serving.settings import DeploySettings


@verb(app, "deploy", cluster=True)
def deploy(
    session: Session,
    name: SearchedName,
    settings: DeploySettings,
    search: Annotated[SearchSettings, Only("fusion", "boost", "query_template")],
    ingest: Annotated[
        bool, typer.Option("--ingest", help="Add vectors when documents are written, by an ingest pipeline.")
    ] = False,
    dry_run: DryRun = False,
    explain: Annotated[
        Path | None, typer.Option(help="File of requests of an application: show what would happen to each.")
    ] = None,
) -> None:
    """Make an index answer plain REST searches with hybrid results; undo: hybridr undeploy.

    client: `hybrid` queries with vectors are fused by default. neural: the same with text instead of vectors.
    transparent: ordinary full-text searches are ranked as by hybridr search, or by --fusion pipeline;
    --boost adds to that. HYBRIDR_DEPLOY_TOKEN is the server's bearer token. --explain FILE shows which
    requests the transparent way ranks, and why not the others: one per line, a search body or {"path":
    "/docs/_search?from=10", "body": {...}}.
    """
    if explain is not None:
        changing = ("ingest", "way", "server", "set_cluster_settings", "force")
        session.refuse_options("does not go with --explain, which changes nothing", *changing)
    elif settings.way != "transparent":
        session.refuse_options("needs --way transparent", "recall")
    index = session.index(name)
    if explain is not None:
        return show_verdicts(session, explain, index.explain_requests(explain, settings, search=search))
    deploy_or_plan = index.plan_deploy if dry_run else index.deploy
    show_deployment(session, *deploy_or_plan(settings, search=search, ingest=ingest), dry_run)


def show_verdicts(session: Session, file: Path, explained: Explained) -> None:
    """Print a table of a file's requests (whether each would be ranked, or why not), and one that counts
    them by the fields they search.
    """
    out, log = session.output, explained.log
    out.result({"file": str(file), **explained.to_json()})
    rows = [
        (request.line, "ranked" if verdict.ranked else verdict.reason, verdict.why)
        for request, verdict in zip(log.requests, explained.verdicts, strict=True)
    ]
    out.table(["line", "what becomes of it", "why"], rows)
    fields = [(name, counts["asked"], counts["ranked"]) for name, counts in explained.by_field.items()]
    out.table(["words asked of", "requests", "ranked"], fields)
    if log.unreadable:
        lines = first_few(map(str, log.unreadable))
        out.line(f"{quantity(len(log.unreadable), 'line')} NOT READ, not a request: {lines}")
    out.line(f"{explained.ranked} of {len(explained.verdicts)} are ranked; the others pass unchanged")


@verb(app, "undeploy", cluster=True)
def undeploy(
    session: Session,
    name: Annotated[str, typer.Argument(help="Index, alias or source that was deployed.")],
    dry_run: DryRun = False,
) -> None:
    """Remove what `hybridr deploy` created; the vectors stay."""
    requests = session.index(name).undeploy(dry_run=dry_run)
    session.output.result({"name": name, "requests": requests, "undeployed": not dry_run})
    session.output.requests(requests)
    session.output.line("nothing was sent" if dry_run else f"'{name}' is as it was before `deploy`")


def show_deployment(session: Session, result: DeployResult, ingest: Ingesting | None, dry_run: bool) -> None:
    """Print which requests were or would be sent, which limits apply, and how to search."""
    session.output.result(asdict(result) | {"ingest": asdict(ingest) if ingest else None, "dry_run": dry_run})
    for limit in result.limits:
        session.output.note(limit)
    if dry_run:
        session.output.requests([*result.requests, *(ingest.requests if ingest else ())])
        return session.output.line("nothing was sent")
    change = "deployed" if result.changed else "was deployed already"
    session.output.line(f"{result.index} {change}: --way {result.way}, pipeline {result.pipeline}")
    if ingest:
        session.output.line(f"documents get their vectors as they are written: pipeline {ingest.pipeline}")
    session.output.line(f"ask: POST /{result.alias or result.index}/_search {result.example}")
