"""The wheel of this checkout, built as who packages hybridr does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.places import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def built_wheel(folder: Path) -> Path:
    """Build the source distribution of this checkout in a folder, and of it the wheel."""
    source = folder / "source"
    source.mkdir()
    # What a wheel is made of, without what earlier builds left beside it.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("cli", "hybridr", "opensearch"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    needs = tomllib.loads((source / "pyproject.toml").read_text())["build-system"]["requires"]
    tools = folder / "tools"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(tools), *needs], check=True)
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": str(tools)}
    command = [sys.executable, "-c", build, str(folder)]
    subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
    archive = next(folder.glob("hybridr-*.tar.gz"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
    ]  # with the same tools
    subprocess.run([*pip, "-w", str(folder), str(archive)], env=environment, check=True)
    return next(folder.glob("*.whl"))
