"""The `hybridr` command: parse, call one library function, render."""

from __future__ import annotations

import sys
from importlib import import_module

import typer

from .session import run

app = typer.Typer(
    name="hybridr",
    help="Make an existing OpenSearch index search better, without labels and without breaking anything.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

VERBS = (
    "demo",
    "doctor",
    "node",
    "load",
    "inspect",
    "adapt",
    "dam",
    "rem",
    "export",
    "reindex",
    "sync",
    "status",
    "rollback",
    "verify",
    "remove",
    "clean",
    "search",
    "tune",
    "evaluate",
    "serve",
    "deploy",
    "pipeline",
    "models",
    "bench",
    "settings",
)

for _name in VERBS:
    import_module(f".commands.{_name}", __name__).register(app)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
