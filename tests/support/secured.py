"""A secured OpenSearch 3.6.0 as a test bed: no security plugin was published for it, that of 3.4.0 runs.

Its descriptor is made to say 3.6.0, and its cryptography gives way to the server's own.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.embedded import layout, process
from hybridr.cluster.embedded.state import NodeState
from hybridr.cluster.settings import NodeSettings
from hybridr.files import fetching
from hybridr.files.fetching import Artifact

VERSION, NAME = "3.6.0", "opensearch-security"
PLUGIN = Artifact.from_entry(
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
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:

        def fetch(artifacts: Sequence[Artifact], **options: Any) -> dict[Artifact, Path]:
            files = fetching.fetch_artifacts(artifacts, **options)
            return files | {PLUGIN: altered(files[PLUGIN], Path(folder))}

        patch.setitem(fetching.PLUGINS[VERSION], NAME, PLUGIN)
        patch.setattr(layout, "fetch_artifacts", fetch)
        patch.setattr(process, "require_possible", lambda _: None)
        return process.start(NodeSettings(name=name, version=VERSION, secure=True))


def altered(archive: Path, folder: Path) -> Path:
    """Make of the plugin one that this version takes."""
    copy_file = folder / archive.name
    with zipfile.ZipFile(archive) as packed, zipfile.ZipFile(copy_file, "w") as copy:
        for name in packed.namelist():
            if SERVERS_OWN.fullmatch(name):
                continue
            content = packed.read(name)
            if name == DESCRIPTOR:
                content = content.replace(
                    b"opensearch.version=3.4.0", f"opensearch.version={VERSION}".encode()
                )
            copy.writestr(name, content)
    return copy_file
