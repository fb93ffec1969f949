"""The `hybridr` command: each verb parses its options, calls one library function, and prints the result."""

from __future__ import annotations

import gc
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from .session import run
from .verbs import app

VERBS = (
    "demo doctor load inspect compare adapt export reindex export-text encode import-vectors sync status "
    "rollback verify remove clean search tune clicks learn experiment rules evaluate shadow serve mcp deploy "
    "undeploy models settings node dam rem"
).split()
"""Commands in the order of `hybridr --help`."""

# What is imported stays until the end: to look for garbage in it is a twentieth of the processor time of one
# search, which makes 135,000 objects. To freeze it would save as much, but onnx then reports leaks.
gc.set_threshold(250_000, 50, 100)

for _file in iter_modules([str(Path(__file__).with_name("commands"))]):
    import_module(f".commands.{_file.name}", __name__)
app.commands = {name: app.commands[name] for name in VERBS}


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    return run(app, arguments)
