"""The `hybridr` command: parse, call one library function, render."""

from __future__ import annotations

import sys
from importlib import import_module

from .session import run
from .verbs import app

VERBS = (
    "demo doctor load inspect adapt export reindex export-text encode import-vectors sync status "
    "rollback verify remove clean search tune clicks learn experiment rules evaluate serve mcp deploy "
    "models settings node dam rem"
).split()

for _name in VERBS:
    import_module(f".commands.{_name.replace('-', '_')}", __name__)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
