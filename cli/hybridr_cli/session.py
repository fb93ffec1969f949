"""What every verb shares: the options `--json --quiet --config`, the connection, and how errors end.

A verb is a plain function whose first parameter is a `Session`; `verb` adds the shared options to its
signature, so that no command repeats them.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from .output import Output

if TYPE_CHECKING:
    from hybridr.cluster.connection import Cluster
    from hybridr.cluster.settings import ClusterSettings
    from hybridr.settings import Stage

S = TypeVar("S", bound="Stage")
F = TypeVar("F", bound=Callable[..., None])

OUTPUT_OPTIONS: dict[str, Any] = {
    "json": Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no remarks.")],
    "config": Annotated[Path | None, typer.Option(help="Settings file (default: ./hybridr.toml).")],
}
CLUSTER_OPTIONS: dict[str, Any] = {
    "url": Annotated[str | None, typer.Option(help="Cluster address (default: the running embedded node).")],
    "user": Annotated[
        str | None, typer.Option(help="User name; the password comes from HYBRIDR_PASSWORD or a file.")
    ],
    "password_file": Annotated[Path | None, typer.Option(help="File that holds the password.")],
    "ca_certs": Annotated[Path | None, typer.Option(help="CA bundle that signed the cluster's certificate.")],
    "verify_certs": Annotated[
        bool | None, typer.Option("--verify-certs/--no-verify-certs", help="Check the certificate.")
    ],
}


class Session:
    """The shared options of one call."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        launched = os.environ.get("RANK", "0")  # set by `accelerate launch` and its like
        self.output = Output(as_json=given["json"], quiet=given["quiet"], muted=launched != "0")
        self.config: Path | None = given["config"]
        self._connection = {name: given[name] for name in CLUSTER_OPTIONS if name in given}

    def settings(self, stage: type[S], **flags: Any) -> S:
        """Resolve a stage's settings from flags, environment and file."""
        from hybridr.settings import resolve

        return resolve(stage, flags, config=self.config)[0]

    def cluster_settings(self) -> ClusterSettings:
        """Resolve how to reach the cluster that the options, the environment or the file name."""
        from hybridr.cluster.settings import ClusterSettings

        return self.settings(ClusterSettings, **self._connection)

    def connect(self) -> Cluster:
        """Connect to that cluster."""
        from hybridr.cluster.connection import Cluster

        settings = self.cluster_settings()
        if not settings.verify_certs:
            self.output.note("warning: the cluster's certificate is not checked (--no-verify-certs)")
        return Cluster.connect(settings)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before something is deleted; without somebody to ask, only `--yes` will do."""
        from hybridr.errors import SettingsError

        if yes:
            return
        if self.output.as_json or not sys.stdin.isatty():
            raise SettingsError("nothing was deleted: there is nobody to ask", hint="--yes, or --dry-run")
        typer.confirm(question, abort=True)


def verb(app: typer.Typer, name: str, *, cluster: bool = False, **options: Any) -> Callable[[F], F]:
    """Register a function as a command, with the shared options (and the connection's)."""
    shared = OUTPUT_OPTIONS | (CLUSTER_OPTIONS if cluster else {})

    def register(function: F) -> F:
        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1:]

        def call(**given: Any) -> None:
            session = Session(given)
            try:
                function(session, **{parameter.name: given[parameter.name] for parameter in own})
            except KeyboardInterrupt:
                session.output.error("interrupted", "run the same command again to continue")
                raise typer.Exit(130) from None
            finally:
                session.output.close()

        extra = [
            inspect.Parameter(
                option,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if option in ("json", "quiet") else None,
                annotation=annotation,
            )
            for option, annotation in shared.items()
        ]
        positional = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        call.__signature__ = signature.replace(parameters=positional + extra)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in positional + extra}
        call.__doc__ = function.__doc__
        app.command(name, **options)(call)
        return function

    return register


def run(app: typer.Typer, arguments: list[str] | None) -> int:
    """Run the app and give the exit code; library errors become one line and a hint."""
    from hybridr.errors import HybridrError

    # The client logs every answer that is not 2xx; a 404 can be what we wanted to know.
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    try:
        app(args=arguments, prog_name="hybridr")
    except HybridrError as error:
        Output().error(error.message, error.hint)
        return error.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BrokenPipeError:
        sys.stderr.close()
    return 0
