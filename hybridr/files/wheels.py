"""Wheels through pip: compared with their sha256 before they are opened, never built from sources."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def run_pip(
    verb: str, package: str, hashes: Sequence[str], folder: Path, target: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Let pip `verb` ("download" or "install") one package, without those it would pull in.

    A source package would run its own code, with the rights of this process, before its hash could be
    looked at: only wheels are taken, and only those of `hashes`. The requirement is written into `folder`;
    `target` are the options that say where the result goes.
    """
    wanted = folder / "requirements.txt"
    wanted.write_text(" ".join([package, *(f"--hash=sha256:{each}" for each in hashes)]) + "\n")
    quiet = ["--quiet", "--no-input", "--progress-bar", "off", "--disable-pip-version-check", "--no-deps"]
    strict = ["--only-binary", ":all:", "--require-hashes", "--requirement", str(wanted)]
    return subprocess.run(
        [sys.executable, "-m", "pip", verb, *quiet, *strict, *target],
        capture_output=True,
        text=True,
        check=False,
        env=without_secrets(),
    )


def without_secrets() -> dict[str, str]:
    """Give the environment without what hybridr is told by it: passwords, tokens, addresses."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDR_")}
