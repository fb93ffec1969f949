"""The session that every verb gets (output, settings, connection), and how a command exits."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from .output import Output, report_write_error

if TYPE_CHECKING:
    from hybridr.cluster.settings import ClusterSettings
    from hybridr.index import Connection, Index
    from hybridr.settings import Stage

S = TypeVar("S", bound="Stage")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Session:
    """The output, settings and connection of one call of the command."""

    def __init__(
        self,
        values: Mapping[str, Any],
        connection: Mapping[str, Any] = NOTHING,
        verb: str = "",
        flags: Mapping[str, str] = NOTHING,
    ) -> None:
        from hybridr.settings import foreign_config_warning

        process_rank = os.environ.get("RANK", "0")  # set by launchers such as `accelerate launch`
        self.output = Output(as_json=values["json"], quiet=values["quiet"], muted=process_rank != "0")
        self.config: Path | None = values["config"]
        self._connection, self.verb, self.flags = connection, verb, flags
        if self.config is None and (reason := foreign_config_warning()):
            self.output.warning(f"warning: {reason}")

    def refuse_options(self, reason: str, *names: str) -> None:
        """Raise SettingsError, with the reason, if one of these options was given: the verb ignores it."""
        from hybridr.errors import SettingsError

        for name in names:
            if name in self.flags:
                raise SettingsError(f"{self.flags[name]} {reason}")

    def settings(self, stage: type[S], **flags: Any) -> S:
        """Return a stage's settings, resolved from flags, environment and file."""
        from hybridr.settings import resolve_stage

        return resolve_stage(stage, flags, config=self.config)[0]

    def cluster_settings(self) -> ClusterSettings:
        """Return the settings of the cluster, resolved from options, environment and file."""
        from hybridr.cluster.settings import ClusterSettings

        return self.settings(ClusterSettings, **self._connection)

    def index(self, name: str) -> Index:
        """Connect to the cluster and return the index of this name."""
        return self.connect().index(name)

    def connect(self) -> Connection:
        """Connect to the cluster and return the connection."""
        from hybridr.cluster.embedded.state import with_address
        from hybridr.index import Connection

        settings = with_address(self.cluster_settings())
        if not settings.verify_certs:
            self.output.warning("warning: the cluster's certificate is not checked (verify_certs is false)")
        if (settings.user or settings.api_key) and "http://" in str(settings.url):
            secret = "password" if settings.user else "API key"
            self.output.warning(f"warning: the {secret} goes to {settings.url} in clear, not by https")
        return Connection.connect(settings, asked_by=f"hybridr/{self.verb}")

    def confirm(self, question: str, yes: bool) -> None:
        """Ask the user before something is deleted; with `yes` do not ask.

        Raises SettingsError with --json or without a terminal, and typer.Abort if the user says no.
        """
        from hybridr.errors import SettingsError

        if yes:
            return
        if self.output.as_json or not sys.stdin.isatty():
            as_json = self.output.as_json
            reason = "with --json no question is asked" if as_json else "there is no terminal to ask on"
            raise SettingsError(
                f"nothing was deleted: {reason}", hint="pass --yes, or look first with --dry-run"
            )
        typer.confirm(question, abort=True)


def run(app: Callable[..., Any], arguments: list[str] | None) -> int:
    """Run the command line app and return its exit code.

    Errors of the library and of files are printed as one line and a hint.
    """
    from hybridr.errors import HybridrError

    prepare_streams()
    # The client logs every status other than 2xx, but a 404 may be expected.
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    try:
        try:
            app(args=arguments, prog_name="hybridr")
        finally:
            with report_write_error():
                sys.stdout.flush()
    except HybridrError as error:
        Output().error(error.message, error.hint)
        return error.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:  # a full disk, or a path without access
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        Output().error(message, "free some space, or choose a place that you may read and write")
        return 1
    return 0


def prepare_streams() -> None:
    """Make stdout and stderr accept every character; if one is closed, discard its output."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif callable(reconfigure := getattr(getattr(sys, name), "reconfigure", None)):
            reconfigure(errors="backslashreplace")
