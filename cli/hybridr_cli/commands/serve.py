"""`hybridr serve` and `hybridr mcp`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Only
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.search.settings import SearchSettings
    from hybridr.serving.settings import McpSettings, ServeSettings


@verb(app, "serve", cluster=True)
def serve(
    session: Session, settings: ServeSettings, search: Annotated[SearchSettings, Only("query_template")]
) -> None:
    """Serve vectors at /v1/embeddings as OpenAI's API does; with --index /search, and a page at /.

    The page compares rankings side by side, and people judge documents there, from which it tunes.

    The model's name says the side: hybridr-query for queries, hybridr-passage for documents.
    HYBRIDR_SERVE_TOKEN makes every request but /healthz need that bearer token. /metrics is for
    Prometheus, /docs tells the API. The log goes to stderr as JSON; --quiet leaves errors only.
    """
    from hybridr.serving.page.workbench import open_workbench

    index = session.index(settings.index) if settings.index else None
    cluster = index.cluster if index else None
    server = open_workbench(settings, cluster=cluster, search=search, progress=session.output.progress)
    session.output.note(f"serving on {server.url}")
    if index and (remark := index.unfinished()):
        session.output.note(remark)
    session.output.result({"url": server.url})
    sys.stdout.flush()  # whoever started us in a pipe waits for the address
    server.run("warning" if session.output.quiet else "info")


@verb(app, "mcp", cluster=True)
def mcp(
    session: Session,
    names: Annotated[list[str], typer.Argument(metavar="INDEX...", help="Indices that agents may ask.")],
    settings: McpSettings,
    serving: Annotated[ServeSettings, Only("encoder")],
) -> None:
    """Let agents search: three read-only tools of the Model Context Protocol, by stdio.

    They are search, get and fields; filters only compare. --http answers at /mcp on this machine, to clients
    that bear HYBRIDR_MCP_TOKEN. [mcp] description in the settings file tells a model what the indices hold.
    """
    from hybridr.search.settings import SearchSettings
    from hybridr.serving.agents.agents import open_agents

    agents = open_agents(
        session.connect(),
        names,
        settings,
        search=session.settings(SearchSettings),
        serving=serving,
        progress=session.output.progress,
    )
    if agents.web:
        session.output.note(f"serving on {agents.web.url}/mcp")
        session.output.result({"url": f"{agents.web.url}/mcp"})
        sys.stdout.flush()  # whoever started us in a pipe waits for the address
    agents.run("warning" if session.output.quiet else "info")
