"""What one node is given: its own configuration folder, and the command that starts it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from ...errors import NodeError
from ...files.folders import below
from ...files.foreign import text_within
from ...files.programs import account, give
from .java import Java
from .layout import clean_environment
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


LOOPBACK = "127.0.0.1"
ENOUGH_MAPS = 65530  # the Linux default; with fewer, memory-mapped segments can fail
SHARED_OR_OURS = ("-Xms", "-Xmx", "file=logs/gc.log", "-XX:ErrorFile", "HeapDump", "java.io.tmpdir")
TOUCH_ALL_MEMORY = "-XX:+AlwaysPreTouch"  # for servers: it takes the whole heap at once
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
# Java 17's security manager must let the word breaking of ICU register itself (WORD_BREAKING).
LOCALE_POLICY = 'grant { permission java.lang.RuntimePermission "localeServiceProvider"; };\n'
LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}][%node_name]%marker %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
logger.deprecation.name = org.{product}.deprecation
logger.deprecation.level = error
"""


def configure(settings: NodeSettings, folder: Path, home: Path, java: Java, values: dict[str, Any]) -> None:
    """Write a node's configuration into `folder/config`, keeping what the node added there.

    The account of the node owns it: the node makes its keystore there.
    """
    config = folder / "config"
    for part in ("config", "data", "logs", "temporary"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    options = text_within(home / "config" / "jvm.options")
    (config / "jvm.options").write_text(trimmed(options, java), encoding="utf-8")
    (config / "java.policy").write_text(LOCALE_POLICY if java.packaged else "", encoding="utf-8")
    (config / "log4j2.properties").write_text(
        LOGGING.replace("{product}", settings.product), encoding="utf-8"
    )
    lines = [f"{name}: {json.dumps(value)}" for name, value in values.items()]  # JSON is valid YAML
    below(config, f"{settings.product}.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if settings.is_core:
        write_heap(config, settings.heap)
    make_private(folder)


def make_private(folder: Path) -> None:
    """Close to others what holds documents, keys and requests, and give it to the node's account.

    The log stays with the user, who opens it before the node starts.
    """
    for path in (folder / "config").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    for part in ("config", "data", "logs", "temporary"):
        (folder / part).chmod(0o700)
        if part != "logs":
            give(folder / part)


def trimmed(options: str, java: Java) -> str:
    """Drop the JVM options that name folders inside the shared home, or modules that the Java lacks."""
    unwanted = (*SHARED_OR_OURS, VECTOR_MODULE) if java.packaged else SHARED_OR_OURS
    lines = [line for line in options.splitlines() if not any(part in line for part in unwanted)]
    return "\n".join(lines) + "\n"


def node_values(settings: NodeSettings, folder: Path, port: int) -> dict[str, Any]:
    """Give the settings of opensearch.yml, or elasticsearch.yml."""
    values: dict[str, Any] = {
        "cluster.name": f"hybridr-{settings.name}",
        "node.name": settings.name,
        "node.attr.hybridr_embedded": "true",
        "discovery.type": "single-node",
        "network.host": LOOPBACK,
        "http.port": port,
        "transport.port": 0,
        "path.logs": str(folder / "temporary"),
        "path.repo": str(folder / "data" / "snapshots"),
        "cluster.routing.allocation.disk.threshold_enabled": False,
    }
    values |= UNSECURED if settings.is_core else {}
    return values if maps_suffice() else {**values, "node.store.allow_mmap": False}


def maps_suffice(limit: Path = Path("/proc/sys/vm/max_map_count")) -> bool:
    """Tell whether the system allows enough memory maps; only Linux limits them."""
    try:
        return int(limit.read_text()) >= ENOUGH_MAPS
    except (OSError, ValueError):
        return True


def launch_command(settings: NodeSettings, folder: Path, home: Path, java: Java) -> list[str]:
    """Give the command that `bin/opensearch` ends in, without the JVMs that it starts before."""
    if settings.is_core:
        return core_command(folder, home, java)
    temporary = folder / "temporary"
    return [
        str(java.home / "bin" / "java"),
        "-Xshare:auto",
        *jvm_arguments(folder / "config", home, java, settings.heap),
        f"-Djava.io.tmpdir={temporary}",
        f"-XX:ErrorFile={temporary / 'hs_err.log'}",
        f"-Dopensearch.path.home={home}",
        f"-Dopensearch.path.conf={folder / 'config'}",
        f"-Djava.security.policy={folder / 'config' / 'java.policy'}",
        "-Dopensearch.distribution.type=zip",
        "-Dopensearch.bundled_jdk=false",
        "-cp",
        str(home / "lib" / "*"),
        "org.opensearch.bootstrap.OpenSearch",
        data_argument(str(folder / "data")),
    ]


def jvm_arguments(config: Path, home: Path, java: Java, heap: str) -> list[str]:
    """Ask the distribution's own launcher for the JVM options of this Java and heap."""
    command = [
        str(java.home / "bin" / "java"),
        "-Xshare:auto",
        "-cp",
        str(home / "lib" / "*"),
        "org.opensearch.tools.launchers.JvmOptionsParser",
        str(config),
    ]
    environment = {
        **clean_environment(),
        "OPENSEARCH_TMPDIR": "-",
        "OPENSEARCH_JAVA_OPTS": f"-Xms{heap} -Xmx{heap}",
    }
    done = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, check=False, **account()
    )
    if done.returncode != 0:
        reasons = [line for line in done.stderr.splitlines() if "rror" in line and "{" not in line]
        raise NodeError(
            f"Java refuses to start with a heap of {heap}: {(reasons or [done.stderr[-300:]])[0]}",
            hint="try another --heap, or another Java",
        )
    return [option for option in done.stdout.split() if option != TOUCH_ALL_MEMORY]
