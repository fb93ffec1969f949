"""The unpacked program: distribution, modules, plugins and repairs, shared by all nodes of the same kind.

The record of a home says what it was made of, and one whose record does not fit is made again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import NodeError
from ...files.atomic import require_space, write_json
from ...files.fetching import (
    DISTRIBUTIONS,
    MODULES,
    PLUGINS,
    WORD_BREAKING,
    Artifact,
    Module,
    fetch,
)
from ...files.folders import below, cache_folder
from ...files.foreign import regular, text_within
from ...files.manifest import fingerprint
from ...files.programs import ensure_program
from ...records import Progress, silent
from .java import Java
from .settings import NodeSettings

RECIPE = 3  # raise it when a home is laid out differently
RECORD = "hybridr.json"
UNPACK = "unpack"
PARTS_DONE = 2
GROWTH = 1.5  # size of a home in sizes of its artifacts, with some to spare
DESCRIPTOR = """\
name={name}
description=The module {name} of OpenSearch
version={version}
opensearch.version={version}
java.version=11
classname={classname}
custom.foldername=
extended.plugins={extends}
has.native.controller=false
"""
ENGINES = Path("plugins", "opensearch-knn", "lib")  # a whole distribution has its native code there

LEFT_OUT = "/modules/ingest-geoip/"  # 73 MB of places by address, which no node for trying needs


class Parts(NamedTuple):
    """What a home is made of; `libraries` repair a packaged Java."""

    distribution: Artifact
    modules: dict[str, Module]
    plugins: list[Artifact]
    libraries: tuple[Artifact, ...]

    def artifacts(self) -> list[Artifact]:
        """List every file, each once."""
        jars = [jar for module in self.modules.values() for jar in module.jars]
        return list(dict.fromkeys([self.distribution, *self.plugins, *jars, *self.libraries]))

    def recipe(self) -> dict[str, Any]:
        """Describe everything that decides what the home holds."""
        return {
            "recipe": RECIPE,
            "artifacts": {artifact.coordinates: artifact.sha256 for artifact in self.artifacts()},
            "modules": {name: [*module[:1], *module[2:]] for name, module in self.modules.items()},
        }


def choose_parts(settings: NodeSettings, java: Java) -> Parts:
    """Choose what a node needs; plugins stand after those that they extend."""
    names = [] if settings.is_core else ["opensearch-knn", "opensearch-neural-search"]
    if settings.with_ml or settings.release == "2.19.1":
        names.append("opensearch-job-scheduler")
    if settings.with_ml:
        names.append("opensearch-ml")
    if settings.secure:
        names.append("opensearch-security")
    return Parts(
        DISTRIBUTIONS[settings.release],
        MODULES[settings.release],
        [PLUGINS[settings.release][name] for name in names],
        WORD_BREAKING if java.packaged else (),
    )


def ensure_home(settings: NodeSettings, java: Java, *, progress: Progress = silent) -> Path:
    """Give the program folder for these settings, made when it is missing or was left unfinished."""
    parts = choose_parts(settings, java)
    mark = fingerprint(parts.recipe())
    home = below(cache_folder() / "node", f"{settings.product}-{settings.release}-{mark[:12]}")
    make = partial(make_home, parts, java, mark, progress)
    return ensure_program(home, lambda: finished(home, mark), make)


def finished(home: Path, mark: str) -> bool:
    """Tell whether `home` was laid out whole, by its fingerprint."""
    try:
        record = json.loads(text_within(home / RECORD))
        return bool(record["fingerprint"] == mark)
    except (OSError, ValueError, KeyError):
        return False


def make_home(parts: Parts, java: Java, mark: str, progress: Progress, folder: Path) -> Path:
    """Lay out a home in a folder."""
    require_space(folder, round(GROWTH * sum(artifact.size for artifact in parts.artifacts())))
    files = fetch(parts.artifacts(), progress=progress)
    progress(UNPACK, 0, PARTS_DONE, parts.distribution.name)
    unpacked = unpack(files[parts.distribution], folder)
    for name, module in parts.modules.items():
        lay_out_module(unpacked / "modules" / name, module, parts.distribution.version, files)
    copy_all((files[library] for library in parts.libraries), unpacked / "lib")
    progress(UNPACK, 1, PARTS_DONE, "plugins")
    if parts.plugins:
        install_plugins(unpacked, java, [files[plugin] for plugin in parts.plugins])
    write_json(unpacked / RECORD, {**parts.recipe(), "fingerprint": mark})
    progress(UNPACK, PARTS_DONE, PARTS_DONE)
    return unpacked


def unpack(archive: Path, folder: Path) -> Path:
    """Extract a distribution and give its single top folder, with scripts that can be run."""
    with zipfile.ZipFile(regular(archive)) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if LEFT_OUT not in name])
    (top,) = folder.iterdir()
    for script in (top / "bin").iterdir():
        script.chmod(0o755)
    return top


def lay_out_module(folder: Path, module: Module, version: str, files: dict[Artifact, Path]) -> None:
    """Make a module's folder: jars, descriptor and, where it needs one, its security policy."""
    folder.mkdir()
    copy_all((files[jar] for jar in module.jars), folder)
    descriptor = DESCRIPTOR.format(
        name=folder.name, version=version, classname=module.classname, extends=",".join(module.extends)
    )
    (folder / "plugin-descriptor.properties").write_text(descriptor, encoding="utf-8")
    if module.policy:
        (folder / "plugin-security.policy").write_text(module.policy, encoding="utf-8")


def copy_all(files: Iterable[Path], folder: Path) -> None:
    """Copy files into a folder."""
    for file in files:
        shutil.copyfile(file, folder / file.name)


def install_plugins(home: Path, java: Java, archives: Sequence[Path]) -> None:
    """Let the distribution's own tool install plugin archives, all in one go."""
    locations = [archive.absolute().as_uri() for archive in archives]
    run_tool(home / "bin" / "opensearch-plugin", home, java, "install", "--batch", *locations)


def run_tool(tool: Path, home: Path, java: Java, *arguments: str, **variables: str) -> str:
    """Run a shell script of the distribution and give what it printed; raises NodeError when it fails."""
    if shutil.which("bash") is None:
        raise NodeError("OpenSearch's own tools need bash, which was not found", hint="install bash")
    environment = {**clean_environment(), "OPENSEARCH_JAVA_HOME": str(java.home), **variables}
    done = subprocess.run(
        ["bash", str(tool), *arguments],
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise NodeError(f"{tool.name} ended with {done.returncode}: {said}", hint="run the command again")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Keep what a program needs: variables of the user's own OpenSearch or Java must not leak in."""
    names = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
    return {name: os.environ[name] for name in names if name in os.environ}


def has_engines(home: Path) -> bool:
    """Tell whether somebody gave the k-NN plugin its native libraries; the repository has none of them."""
    return any((home / ENGINES).glob("libopensearchknn_faiss*"))
