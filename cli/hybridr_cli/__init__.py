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

# Imported objects live until the process ends. Searching them for garbage takes a twentieth of the CPU time
# of one search, which creates 135,000 objects. gc.freeze would save as much, but onnx then reports leaks.
gc.set_threshold(250_000, 50, 100)

for _file in iter_modules([str(Path(__file__).with_name("commands"))]):
    import_module(f".commands.{_file.name}", __name__)
app.commands = {name: app.commands[name] for name in VERBS}


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    return run(app, arguments)
