"""The verbs `hybridr serve` and `hybridr mcp`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import Only
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.index import Connection
    from hybridr.records import Progress
    from hybridr.search.settings import SearchSettings
    from hybridr.serving.settings import McpSettings, ServeSettings


@verb(app, "serve", cluster=True)
def serve(
    session: Session, settings: ServeSettings, search: Annotated[SearchSettings, Only("query_template")]
) -> None:
    """Serve embeddings as OpenAI's API does; with --index also /search and a web page.

    In the page you compare rankings side by side and judge documents; it tunes by the judgements.

    Embeddings of queries: model hybridr-query; of documents: hybridr-passage. HYBRIDR_SERVE_TOKEN is the
    bearer token of all requests except /healthz and the empty page. /metrics is for Prometheus, /docs
    describes the API. The log goes to stderr as JSON; with --quiet errors only.
    """
    from hybridr.serving.page.workbench import open_workbench

    if settings.index is None:
        session.refuse_options("needs --index", "query_template")
    index = session.index(settings.index) if settings.index else None
    cluster = index.cluster if index else None
    server = open_workbench(settings, cluster=cluster, search=search, progress=session.output.progress)
    session.output.note(f"serving on {server.url}")
    if index and (remark := index.unfinished()):
        session.output.note(remark)
    session.output.result({"url": server.url})
    sys.stdout.flush()  # a parent process may wait for the address on a pipe
    server.run("warning" if session.output.quiet else "info")


@verb(app, "mcp", cluster=True)
def mcp(
    session: Session,
    names: Annotated[list[str], typer.Argument(metavar="INDEX...", help="Indices that agents may search.")],
    settings: McpSettings,
    serving: Annotated[ServeSettings, Only("encoder")],
) -> None:
    """Let agents search: read-only tools of the Model Context Protocol, over stdio.

    The tools are search, get, fields, inspect, plan (what `reindex` would do) and, with --beir, evaluate.
    Filters are comparisons only. --http serves /mcp on this machine; clients send HYBRIDR_MCP_TOKEN as
    bearer token. [mcp] description in the settings file describes the indices to the model.
    """
    from hybridr.search.settings import SearchSettings
    from hybridr.serving.agents.agents import open_agents

    if not settings.http:
        session.refuse_options("needs --http", "port")
    connection = session.connect()
    agents = open_agents(
        connection,
        names,
        settings,
        search=session.settings(SearchSettings),
        serving=serving,
        reports=report_functions(session, connection, settings, serving.encoder),
        progress=session.output.progress,
    )
    if agents.web:
        session.output.note(f"serving on {agents.web.url}/mcp")
        session.output.result({"url": f"{agents.web.url}/mcp"})
        sys.stdout.flush()  # a parent process may wait for the address on a pipe
    agents.run("warning" if session.output.quiet else "info")


def report_functions(
    session: Session, connection: Connection, settings: McpSettings, encoder: Path | None
) -> dict[str, Callable[..., dict[str, Any]]]:
    """Return name -> function of the reports for agents: inspect, plan, and evaluate with judgements."""
    from hybridr import Compared, JudgedQueries
    from hybridr.indexing.settings import ReindexSettings
    from hybridr.search.settings import SearchSettings

    search, reindexing = session.settings(SearchSettings), session.settings(ReindexSettings)

    def inspect(name: str, progress: Progress) -> dict[str, Any]:
        """Return the report of `Index.inspect` as JSON."""
        return connection.index(name).inspect(encoder=encoder, progress=progress).to_json()

    def plan(name: str, progress: Progress) -> dict[str, Any]:
        """Return the plan of a reindex as JSON."""
        index = connection.index(name)
        options: dict[str, Any] = {"encoder": encoder, "settings": reindexing, "search": search}
        return index.plan_reindex(**options, progress=progress).to_json()

    def evaluate(name: str, systems: tuple[str, ...], progress: Progress) -> dict[str, Any]:
        """Return the evaluation of systems as JSON."""
        comparison, index = Compared(systems), connection.index(name)
        options: dict[str, Any] = {"encoder": encoder, "settings": search, "progress": progress}
        return index.evaluate(judged_queries, comparison, **options).to_json()

    if settings.beir is None:
        return {"inspect": inspect, "plan": plan}
    judged_queries = JudgedQueries(settings.beir, settings.split)
    judged_queries.read(with_texts=True)
    return {"inspect": inspect, "plan": plan, "evaluate": evaluate}
