"""The core of Elasticsearch as a node of our own: what of its distribution can be had, without most modules.

Its own launcher starts the node and stays beside it; what it needs is told by files and its environment.
"""

from __future__ import annotations

from pathlib import Path

from .java import Java
from .settings import NodeSettings
from .state import data_argument

LICENCE = (
    "Elasticsearch {} is fetched from the public Maven repository, under its makers' licences: the Server "
    "Side Public License 1.0, and for x-pack the Elastic License 2.0. It is the core alone, for trying: no "
    "scripts, no analyser but the built-in ones, no security"
)
LAUNCHER = "org.elasticsearch.launcher.CliToolLauncher"
SMALL = ("-Xms4m", "-Xmx64m", "-XX:+UseSerialGC")  # the launcher's own heap
HEAP_FILE = Path("jvm.options.d", "heap.options")
UNSECURED = {"xpack.security.enabled": False}


def licence_of(settings: NodeSettings) -> str | None:
    """Say under which licence a product comes, where that is not ours; None for OpenSearch, which has it."""
    return LICENCE.format(settings.release) if settings.is_core else None


def write_heap(config: Path, heap: str) -> None:
    """Tell the launcher how much heap the node gets."""
    file = config / HEAP_FILE
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"-Xms{heap}\n-Xmx{heap}\n", encoding="utf-8")


def core_command(folder: Path, home: Path, java: Java) -> list[str]:
    """Give the command that `bin/elasticsearch` ends in."""
    return [
        str(java.home / "bin" / "java"),
        *SMALL,
        f"-Djava.io.tmpdir={folder / 'temporary'}",
        "-Dcli.name=server",
        f"-Dcli.script={home / 'bin' / 'elasticsearch'}",
        "-Dcli.libs=lib/tools/server-cli",
        f"-Des.path.home={home}",
        f"-Des.path.conf={folder / 'config'}",
        "-Des.distribution.type=zip",
        "-Des.java.type=JAVA_HOME",
        "-cp",
        f"{home / 'lib' / '*'}:{home / 'lib' / 'cli-launcher' / '*'}",
        LAUNCHER,
        data_argument(str(folder / "data")),
    ]
