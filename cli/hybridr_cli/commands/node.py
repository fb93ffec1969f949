"""The verbs `hybridr node start`, `stop`, `status` and `logs`, for embedded nodes on this machine."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Only
from ..session import Session
from ..verbs import group, verb

if TYPE_CHECKING:
    from hybridr.cluster.settings import NodeSettings

node = group("node", "Start and stop a local OpenSearch node, for trials and tests.")


@verb(node, "start")
def start(session: Session, settings: NodeSettings) -> None:
    """Start a node in the background; the first start installs it."""
    from hybridr.cluster.embedded.configuration import licence_of
    from hybridr.cluster.embedded.process import start as start_node

    if licence := licence_of(settings):
        session.output.note(licence)
    state = start_node(settings, progress=session.output.progress)
    session.output.line(f"node '{state.name}': {settings.title} at {state.url}")
    if state.secure:
        session.output.line(f"user {state.user}, password in {state.password_file}, CA in {state.ca_certs}")
    session.output.result(state.to_json())


@verb(node, "stop")
def stop(
    session: Session,
    settings: Annotated[NodeSettings, Only("name")],
    every: Annotated[bool, typer.Option("--all", help="Stop every node.")] = False,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Also delete its data.")] = False,
) -> None:
    """Stop a node; its data is kept."""
    from hybridr.cluster.embedded.process import stop as stop_node
    from hybridr.cluster.embedded.state import node_states

    if every:
        session.refuse_options("does not go with --all", "name")
    names = [state.name for state in node_states()] if every else [settings.name]
    was_running = {name: stop_node(name, delete_data=delete_data) for name in names}
    for name, running in was_running.items():
        session.output.line(f"node '{name}' {'stopped' if running else 'was not running'}")
    session.output.result({"stopped": [name for name, running in was_running.items() if running]})


@verb(node, "status")
def status(
    session: Session,
    name: Annotated[str | None, typer.Option(help="Name of the node.", show_default="all of them")] = None,
) -> None:
    """List the nodes."""
    from hybridr.cluster.embedded.state import damaged_states, node_states
    from hybridr.errors import NotFound

    states = [state for state in node_states() if name in (None, state.name)]
    if name is not None and not states:
        others = ", ".join(state.name for state in node_states()) or "none"
        hint = f"hybridr node start --name {quote(name)}"
        raise NotFound(f"there is no node '{name}'; nodes: {others}", hint=hint)
    for error in damaged_states():
        session.output.warning(f"{error.message}; {error.hint}")
    rows = []
    for state in states:
        process = ("running", state.url, state.pid) if state.running else ("stopped", "-", "-")
        rows.append([state.name, state.product, state.version, *process, state.heap, state.data])
    session.output.table(("node", "product", "version", "state", "url", "pid", "heap", "data"), rows)
    session.output.result({"nodes": [state.to_json() for state in states]})


@verb(node, "logs")
def logs(session: Session, settings: Annotated[NodeSettings, Only("name")]) -> None:
    """Show the last 200 log lines of a node."""
    from hybridr.cluster.embedded.process import read_logs

    lines = read_logs(settings.name)
    for line in lines:
        session.output.line(line)
    session.output.result({"lines": lines})
