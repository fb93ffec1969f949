"""The unpacked program: distribution, plugins and repairs, shared by all nodes of the same kind.

A home is made in a temporary folder and renamed when it is whole; its manifest names what it was made
of, and a home whose manifest does not fit is made again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import NodeError
from ..folders import cache_folder
from ..manifest import fingerprint, write_json
from ..progress import Progress, silent
from ..settings import NodeSettings
from .artifacts import DISTRIBUTIONS, PLUGINS, Artifact
from .fetching import explaining_storage, fetch
from .java import Java
from .locking import locked
from .ownership import require_reachable

RECIPE = 1  # raise it when a home is laid out differently
RECORD = "hybridr.json"
STAGE = "unpack"
STEPS = 3
NOT_FOR_US = ("-Xms", "-Xmx", "file=logs/gc.log", "-XX:ErrorFile", "-XX:HeapDumpPath")


def chosen_plugins(settings: NodeSettings) -> list[str]:
    """Name the plugins of a node, in the order in which they need each other."""
    return ["opensearch-knn", "opensearch-neural-search"]


def ensure_home(settings: NodeSettings, java: Java, *, progress: Progress = silent) -> Path:
    """Give the program folder for these settings, made when it is missing or was left unfinished."""
    plugins = chosen_plugins(settings)
    artifacts = [DISTRIBUTIONS[settings.version], *(PLUGINS[settings.version][name] for name in plugins)]
    recipe = {
        "recipe": RECIPE, "java": [java.major, java.packaged], "plugins": plugins,
        "artifacts": {artifact.coordinates: artifact.sha256 for artifact in artifacts},
    }  # fmt: skip
    print_ = fingerprint(recipe)
    home = cache_folder() / "node" / f"opensearch-{settings.version}-{print_[:12]}"
    with explaining_storage(home.parent), locked(home.parent / f".{home.name}.lock"):
        require_reachable(home.parent)
        if not finished(home, print_):
            make_home(home, artifacts, java, {**recipe, "fingerprint": print_}, progress)
    return home


def finished(home: Path, expected: str) -> bool:
    """Tell whether `home` was laid out whole, by its fingerprint."""
    try:
        return bool(read_record(home)["fingerprint"] == expected)
    except (OSError, ValueError, KeyError):
        return False


def read_record(home: Path) -> dict[str, Any]:
    """Read what a home was made of."""
    record: dict[str, Any] = json.loads((home / RECORD).read_text(encoding="utf-8"))
    return record


def make_home(
    home: Path, artifacts: Sequence[Artifact], java: Java, recipe: Mapping[str, Any], progress: Progress
) -> None:
    """Lay out a home in a temporary folder, then rename it."""
    distribution, *plugins = fetch(artifacts, progress=progress)
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as temporary:
        progress(STAGE, 0, STEPS, "OpenSearch")
        made = unpack(distribution, Path(temporary))
        trim_options(made / "config" / "jvm.options")
        progress(STAGE, 1, STEPS, "plugins")
        run_tool(made, java, "opensearch-plugin", "install", "--batch", *(f"file:{path}" for path in plugins))
        progress(STAGE, 2, STEPS, "options")
        run_tool(made, java, "opensearch-keystore", "create")
        open_to_all(made)
        write_json(made / RECORD, {**recipe, "jvm": jvm_arguments(made, java)})
        shutil.rmtree(home, ignore_errors=True)
        made.rename(home)
    progress(STAGE, STEPS, STEPS)


def unpack(archive: Path, folder: Path) -> Path:
    """Extract a distribution with its file modes and give its single top folder."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
        for entry in packed.infolist():
            mode = entry.external_attr >> 16 & 0o777
            if mode:
                (folder / entry.filename).chmod(mode | 0o600)
    (top,) = folder.iterdir()
    for script in (top / "bin").iterdir():
        script.chmod(0o755)
    return top


def trim_options(path: Path) -> None:
    """Drop the JVM options that name folders inside the home, which nodes share and cannot write."""
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.startswith("#") or not any(part in line for part in NOT_FOR_US)]
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")


def run_tool(home: Path, java: Java, tool: str, *arguments: str) -> None:
    """Run one of the distribution's own tools; raises NodeError with what it said."""
    command = ["bash", str(home / "bin" / tool), *arguments]
    done = subprocess.run(
        command, env=tool_environment(home, java), capture_output=True, text=True, check=False, cwd=home
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise NodeError(f"{tool} ended with {done.returncode}: {said}", hint="run the command again")


def tool_environment(home: Path, java: Java) -> dict[str, str]:
    """Give a clean environment: variables of the user's own OpenSearch or Java must not leak in."""
    kept = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
    values = {name: os.environ[name] for name in kept if name in os.environ}
    return {**values, "OPENSEARCH_JAVA_HOME": str(java.home), "OPENSEARCH_PATH_CONF": str(home / "config")}


def jvm_arguments(home: Path, java: Java) -> list[str]:
    """Ask the distribution's own launcher, once per home, for the JVM options it would start with."""
    command = [
        str(java.home / "bin" / "java"), "-cp", str(home / "lib" / "*"),
        "org.opensearch.tools.launchers.JvmOptionsParser", str(home / "config"),
    ]  # fmt: skip
    environment = {**tool_environment(home, java), "OPENSEARCH_TMPDIR": "TEMPORARY"}
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NodeError(f"the JVM refused the options of this OpenSearch: {done.stderr.strip()[-500:]}")
    ours = ("-Xms", "-Xmx", "-XX:MaxDirectMemorySize", "-XX:+AlwaysPreTouch", "-Djava.io.tmpdir")
    return [option for option in done.stdout.split() if not option.startswith(ours)]


def open_to_all(folder: Path) -> None:
    """Let every user read the program: nodes may run under another account than the one that unpacked."""
    for entry in (folder, *folder.rglob("*")):
        mode = entry.stat().st_mode
        entry.chmod(mode | (0o755 if entry.is_dir() or mode & 0o100 else 0o644))
