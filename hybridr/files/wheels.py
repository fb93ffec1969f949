"""Wheels through pip: compared with their sha256 before they are opened, never built from sources."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST_BYTES, LONGEST_S = 500_000_000, 3_600.0
"""Of any file that pip writes, and of the whole call; the largest pinned wheel has 84 MB."""
BOUNDED_PIP = """
import runpy, sys
limit = int(sys.argv.pop(1))
try:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
except ImportError:  # Windows has no such limit
    pass
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def run_pip(
    verb: str, package: str, hashes: Sequence[str], folder: Path, target: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Let pip `verb` ("download" or "install") one package, without those it would pull in.

    A source package would run its own code, with the rights of this process, before its hash could be
    looked at: only wheels are taken, and only those of `hashes`. pip compares a hash when it has the whole
    file, so what it may write is bounded. The requirement is written into `folder`; `target` are the options
    that say where the result goes.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(" ".join([package, *(f"--hash=sha256:{each}" for each in hashes)]) + "\n")
    quiet = ["--quiet", "--no-input", "--progress-bar", "off", "--disable-pip-version-check", "--no-deps"]
    strict = ["--only-binary", ":all:", "--require-hashes", "--requirement", str(requirements)]
    command = [sys.executable, "-c", BOUNDED_PIP, str(MOST_BYTES), verb, *quiet, *strict, *target]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=without_secrets(), timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"pip was not done within {LONGEST_S:,.0f} s")


def without_secrets() -> dict[str, str]:
    """Give the environment without what hybridr is told by it: passwords, tokens, addresses."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDR_")}
