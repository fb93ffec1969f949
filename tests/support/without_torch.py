"""A command in a process that finds no torch, as on a machine where it is not installed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gone())
from hybridr_cli import main
sys.exit(main(sys.argv[1:]))
"""


def run_without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
