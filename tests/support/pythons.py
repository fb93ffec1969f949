"""Python in a process of its own: in another folder and environment, or where no torch is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "peft", "accelerate"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gone())
from hybridr_cli import main
"""
ONE = "sys.exit(main(sys.argv[1:]))"
SEVERAL = "for command in sys.argv[1:]: print(main(command.split()))"


def run_python(
    code: str, *arguments: str, folder: Path | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def run_without_torch(*arguments: str, several: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the arguments of a command, or one after another `several` commands, whose codes are printed."""
    return run_python(PROGRAM + (SEVERAL if several else ONE), *arguments)
