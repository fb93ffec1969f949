"""Every file that an embedded node is made of: Maven coordinates, sha256 and size, pinned here only.

Not every OpenSearch version has every file in the public repository; these do (3.6.0 and 2.19.1).
"""

from __future__ import annotations

from typing import NamedTuple


class Artifact(NamedTuple):
    """One file of a Maven repository; `size` in bytes."""

    group: str
    name: str
    version: str
    packaging: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        """Name the file as the repository does."""
        return f"{self.name}-{self.version}.{self.packaging}"

    @property
    def coordinates(self) -> str:
        """Name the artifact as Maven does, `group:name:version:packaging`."""
        return f"{self.group}:{self.name}:{self.version}:{self.packaging}"


DISTRIBUTION = "org.opensearch.distribution.integ-test-zip"
PLUGIN = "org.opensearch.plugin"

DISTRIBUTIONS = {
    "3.6.0": Artifact(
        DISTRIBUTION, "opensearch", "3.6.0", "zip",
        "a91faa1dc1cadc78cb278b4f63847e19e1627a4e9de698e14e7efc14ee37b286", 161_609_640,
    ),
}  # fmt: skip

PLUGINS = {
    "3.6.0": {
        "opensearch-knn": Artifact(
            PLUGIN, "opensearch-knn", "3.6.0.0", "zip",
            "ac392ca28a39b3bf290648a422ef30cb149dda2963a9d7feb26060e932341c9a", 6_015_541,
        ),
        "opensearch-neural-search": Artifact(
            PLUGIN, "neural-search", "3.6.0.0", "zip",
            "6ef1b206e79391e2e36268e32dc34d27fd8b8a59a8eb0a7393c97d53b038e433", 12_095_213,
        ),
    },
}  # fmt: skip
