"""`hybridr node`: an OpenSearch of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.node.state import NodeState

Name = Annotated[str | None, typer.Option(help="Name of the node (default: default).")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the app."""
    node = typer.Typer(
        name="node",
        no_args_is_help=True,
        help="Start and stop an OpenSearch of our own, for trying and tests.",
    )
    app.add_typer(node)
    register_start(node)
    register_stop(node)
    register_views(node)


def register_start(node: typer.Typer) -> None:
    """Add `hybridr node start`."""

    @verb(node, "start")
    def start(
        session: Session,
        name: Name = None,
        version: Annotated[str | None, typer.Option(help="3.6.0 or 2.19.1.")] = None,
        secure: Annotated[bool | None, typer.Option("--secure", help="TLS and a password; 2.19.1.")] = None,
        with_ml: Annotated[bool | None, typer.Option("--with-ml", help="Add ml-commons; 3.6.0.")] = None,
        with_natives: Annotated[
            bool | None,
            typer.Option("--with-natives", help="And what it needs to run a model itself (115 MB)."),
        ] = None,
        heap: Annotated[str | None, typer.Option(help="Java heap, such as 512m or 2g.")] = None,
        port: Annotated[int | None, typer.Option(help="HTTP port (default: a free one).")] = None,
        java: Annotated[str | None, typer.Option(help="auto, system or packaged.")] = None,
    ) -> None:
        """Start a node, installed on first use, and leave it running."""
        from hybridr.node.process import start
        from hybridr.node.settings import NodeSettings

        settings = session.settings(
            NodeSettings,
            name=name,
            version=version,
            secure=secure,
            with_ml=with_ml,
            with_natives=with_natives,
            heap=heap,
            port=port,
            java=java,
        )
        state = start(settings, progress=session.output.progress)
        session.output.line(f"node '{state.name}': OpenSearch {state.version} at {state.url}")
        if state.secure:
            session.output.line(
                f"user {state.user}, password in {state.password_file}, CA in {state.ca_certs}"
            )
        session.output.result(state.record())


def register_stop(node: typer.Typer) -> None:
    """Add `hybridr node stop`."""

    @verb(node, "stop")
    def stop(
        session: Session,
        name: Name = None,
        every: Annotated[bool, typer.Option("--all", help="Stop every node.")] = False,
        delete_data: Annotated[bool, typer.Option("--delete-data", help="Delete its data as well.")] = False,
    ) -> None:
        """Stop a node; its data stay."""
        from hybridr.node.process import status, stop

        names = [state.name for state in status()] if every else [chosen(session, name)]
        stopped = {each: stop(each, delete_data=delete_data) for each in names}
        for each, was_running in stopped.items():
            session.output.line(f"node '{each}' {'stopped' if was_running else 'was not running'}")
        session.output.result({"stopped": [each for each, was_running in stopped.items() if was_running]})


def register_views(node: typer.Typer) -> None:
    """Add `hybridr node status` and `hybridr node logs`."""

    @verb(node, "status")
    def status(session: Session) -> None:
        """List the nodes."""
        from hybridr.node.process import status

        states = status()
        session.output.table(
            ("node", "version", "state", "url", "pid", "heap", "data"), [row(state) for state in states]
        )
        session.output.result({"nodes": [state.record() for state in states]})

    @verb(node, "logs")
    def logs(
        session: Session,
        name: Name = None,
        lines: Annotated[int, typer.Option(min=1, help="How many of the last lines.")] = 50,
    ) -> None:
        """Show the last lines that a node logged."""
        from hybridr.node.process import logs

        shown = logs(chosen(session, name), lines)
        for line in shown:
            session.output.line(line)
        session.output.result({"lines": shown})


def chosen(session: Session, name: str | None) -> str:
    """Resolve the node's name as `start` does."""
    from hybridr.node.settings import NodeSettings

    return session.settings(NodeSettings, name=name).name


def row(state: NodeState) -> list[Any]:
    """Give the cells of one node."""
    running = state.running
    return [
        state.name,
        state.version,
        "running" if running else "stopped",
        state.url if running else "-",
        state.pid if running else "-",
        state.heap,
        state.data,
    ]
