"""A secured OpenSearch 3.6.0 as a test bed: no security plugin was published for it, that of 3.4.0 runs.

Its descriptor is made to say 3.6.0, and its cryptography gives way to the server's own.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from hybridr.cluster.embedded import layout, process
from hybridr.cluster.embedded.java import Java
from hybridr.cluster.embedded.settings import NodeSettings
from hybridr.cluster.embedded.state import NodeState
from hybridr.files.fetching import PLUGINS, Artifact

VERSION, NAME = "3.6.0", "opensearch-security"
PLUGIN = Artifact.pinned(
    {
        "coordinates": f"org.opensearch.plugin:{NAME}:3.4.0.0:zip",
        "size": 49_263_978,
        "sha256": "fc164c084979f7f793d295b6bca56bf8bee76dafb762adef9f14fa872e0a7596",
    }
)
DESCRIPTOR = "plugin-descriptor.properties"
SERVERS_OWN = re.compile(r"bc(-fips|pkix-fips|util-fips)-.*\.jar")


def start_secured(name: str) -> NodeState:
    """Start a node of 3.6.0 with TLS, a password and users with roles."""
    install = layout.install_plugins

    def install_altered(home: Path, java: Java, archives: Iterable[Path]) -> None:
        install(home, java, [altered(one, home) if one.name == PLUGIN.file_name else one for one in archives])

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PLUGINS[VERSION], NAME, PLUGIN)
        patch.setattr(layout, "install_plugins", install_altered)
        patch.setattr(process, "require_possible", lambda _: None)
        return process.start(NodeSettings(name=name, version=VERSION, secure=True))


def altered(archive: Path, home: Path) -> Path:
    """Make of the plugin one that this version takes."""
    made = home.parent / archive.name
    with zipfile.ZipFile(archive) as packed, zipfile.ZipFile(made, "w") as copy:
        for name in packed.namelist():
            if SERVERS_OWN.fullmatch(name):
                continue
            content = packed.read(name)
            if name == DESCRIPTOR:
                content = content.replace(
                    b"opensearch.version=3.4.0", f"opensearch.version={VERSION}".encode()
                )
            copy.writestr(name, content)
    return made
