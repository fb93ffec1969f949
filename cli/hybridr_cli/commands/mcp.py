"""`hybridr mcp`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Only
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.serving.agents.settings import McpSettings
    from hybridr.serving.settings import ServeSettings


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
