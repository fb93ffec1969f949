"""`hybridr serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..session import Session, verb


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "serve", cluster=True)
    def serve(
        session: Session,
        encoder: Annotated[
            Path | None, typer.Option(help="Encoder folder (default: packaged MiniLM).")
        ] = None,
        host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
        port: Annotated[int | None, typer.Option(help="Port (8080); 0 takes a free one.")] = None,
        index: Annotated[str | None, typer.Option(help="Index that /search asks; none: no /search.")] = None,
        log_queries: Annotated[
            bool | None, typer.Option("--log-queries", help="Write the text of requests into the log.")
        ] = None,
    ) -> None:
        """Serve vectors at /v1/embeddings as OpenAI's API does, and /search with --index.

        The model's name says the side: hybridr-query for queries, hybridr-passage for documents.
        HYBRIDR_SERVE_TOKEN makes every request but /healthz need that bearer token. /metrics is for
        Prometheus, /docs tells the API. The log goes to stderr as JSON; --quiet leaves errors only.
        """
        from hybridr.serving.application import open_server
        from hybridr.serving.settings import ServeSettings

        settings = session.settings(
            ServeSettings, encoder=encoder, host=host, port=port, index=index, log_queries=log_queries
        )
        cluster = session.connect() if settings.index else None
        server = open_server(settings, cluster=cluster, progress=session.output.progress)
        session.output.note(f"serving on {server.url}")
        session.output.result({"url": server.url})
        sys.stdout.flush()  # whoever started us in a pipe waits for the address
        server.run("warning" if session.output.quiet else "info")
