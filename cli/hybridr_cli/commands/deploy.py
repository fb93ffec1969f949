"""`hybridr deploy` and `hybridr undeploy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.serving.deploying import Deploying


def register(app: typer.Typer) -> None:
    """Add the verbs to the app."""
    register_deploy(app)
    register_undeploy(app)


def register_deploy(app: typer.Typer) -> None:
    """Add `hybridr deploy`."""

    @verb(app, "deploy", cluster=True)
    def deploy(
        session: Session,
        name: Annotated[str, typer.Argument(help="Index, alias or source with vectors.")],
        way: Annotated[
            str | None, typer.Option(help="client (default), neural, transparent or local.")
        ] = None,
        server: Annotated[
            str | None,
            typer.Option(help="`hybridr serve` as the cluster reaches it (http://127.0.0.1:8080)."),
        ] = None,
        encoder: Annotated[
            Path | None, typer.Option(help="Encoder folder for local (default: the one of the vectors).")
        ] = None,
        set_cluster_settings: Annotated[
            bool | None,
            typer.Option("--set-cluster-settings", help="Set what ml-commons needs for the way."),
        ] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the requests, send none.")] = False,
    ) -> None:
        """Let an index be asked for hybrid results through plain REST; undo: hybridr undeploy.

        client: `hybrid` queries are fused by default. neural: and hold text instead of vectors. local:
        so too, but the model runs inside the cluster. transparent: ordinary queries for a text become hybrid.
        HYBRIDR_DEPLOY_TOKEN is the server's bearer token.
        """
        from hybridr.search.settings import SearchSettings
        from hybridr.serving.deploying import deploy, plan_deployment
        from hybridr.serving.settings import DeploySettings

        settings = session.settings(
            DeploySettings, way=way, server=server, encoder=encoder, set_cluster_settings=set_cluster_settings
        )
        search, cluster = session.settings(SearchSettings), session.connect()
        if dry_run:
            return show(session, plan_deployment(cluster, name, settings, search), dry_run=True)
        show(session, deploy(cluster, name, settings, search), dry_run=False)


def register_undeploy(app: typer.Typer) -> None:
    """Add `hybridr undeploy`."""

    @verb(app, "undeploy", cluster=True)
    def undeploy(
        session: Session,
        name: Annotated[str, typer.Argument(help="Index, alias or source that was deployed.")],
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the requests, send none.")] = False,
    ) -> None:
        """Take away what `hybridr deploy` made; the vectors stay."""
        from hybridr.serving.deploying import undeploy

        requests = undeploy(session.connect(), name, dry_run=dry_run)
        session.output.result({"name": name, "requests": requests, "undeployed": not dry_run})
        show_requests(session, requests)
        session.output.line("nothing was sent" if dry_run else f"'{name}' is as it was before `deploy`")


def show(session: Session, done: Deploying, *, dry_run: bool) -> None:
    """Print what was or would be sent, and how to ask."""
    from dataclasses import asdict

    session.output.result(asdict(done) | {"dry_run": dry_run})
    if dry_run:
        show_requests(session, done.requests)
        return session.output.line("nothing was sent")
    said = "deployed" if done.changed else "was deployed already"
    session.output.line(f"{done.index} {said}: --way {done.way}, pipeline {done.pipeline}")
    session.output.line(f"ask: POST /{done.index}/_search {done.example}")


def show_requests(session: Session, requests: list[dict[str, Any]]) -> None:
    """Print requests as they can be sent by hand."""
    import json

    for request in requests:
        session.output.line(f"{request['method']} {request['path']}")
        if request.get("body") is not None:
            session.output.line(json.dumps(request["body"], indent=2))
