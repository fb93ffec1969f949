"""What one node is given: its own configuration folder, and the command that starts it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ..settings import NodeSettings
from .java import Java
from .layout import read_record
from .ownership import give

LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%-25c{1.}]%marker %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
logger.deprecation.name = org.opensearch.deprecation
logger.deprecation.level = error
"""


def configure(settings: NodeSettings, folder: Path, home: Path, port: int) -> None:
    """Write a node's configuration into `folder/config`, keeping what OpenSearch added there."""
    for part in ("config", "data", "logs", "temporary"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    config = folder / "config"
    if not (config / "opensearch.keystore").exists():
        shutil.copyfile(home / "config" / "opensearch.keystore", config / "opensearch.keystore")
    (config / "jvm.options").write_text("", encoding="utf-8")
    (config / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
    values = node_values(settings, folder, port)
    lines = [f"{name}: {json.dumps(value)}" for name, value in values.items()]  # JSON is valid YAML
    (config / "opensearch.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for part in ("config", "data", "temporary"):
        give(folder / part)


def node_values(settings: NodeSettings, folder: Path, port: int) -> dict[str, Any]:
    """Give the settings of opensearch.yml."""
    return {
        "cluster.name": f"hybridr-{settings.name}",
        "node.name": settings.name,
        "node.attr.hybridr_embedded": "true",
        "discovery.type": "single-node",
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": 0,
        "path.data": str(folder / "data"),
        "path.logs": str(folder / "logs"),
        "cluster.routing.allocation.disk.threshold_enabled": False,
    }


def launch_command(settings: NodeSettings, folder: Path, home: Path, java: Java) -> list[str]:
    """Give the command that `bin/opensearch` ends in, without the six JVMs that it starts first."""
    size, unit = int(settings.heap[:-1]), settings.heap[-1]
    direct = size * (1024 if unit == "g" else 1) // 2
    return [
        str(java.home / "bin" / "java"), "-Xshare:auto", *read_record(home)["jvm"],
        f"-Xms{settings.heap}", f"-Xmx{settings.heap}", f"-XX:MaxDirectMemorySize={direct}m",
        f"-Djava.io.tmpdir={folder / 'temporary'}", f"-XX:HeapDumpPath={folder / 'temporary'}",
        f"-XX:ErrorFile={folder / 'temporary' / 'hs_err.log'}",
        f"-Dopensearch.path.home={home}", f"-Dopensearch.path.conf={folder / 'config'}",
        "-Dopensearch.distribution.type=zip", "-Dopensearch.bundled_jdk=false",
        "-cp", str(home / "lib" / "*"), "org.opensearch.bootstrap.OpenSearch",
        f"-Epath.data={folder / 'data'}",
    ]  # fmt: skip
