"""Every file that an embedded node is made of: Maven coordinates, sha256 and size, pinned in one asset.

Not every OpenSearch version has every file in the public repository; these have. The 3.6.0 distribution
holds all its modules; that of 2.19.1 holds only its transport, so that `MODULES` lists the others, with
what the descriptor of each must say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .folders import load_asset


class Artifact(NamedTuple):
    """One file of a Maven repository; `size` in bytes."""

    group: str
    name: str
    version: str
    packaging: str
    sha256: str
    size: int
    classifier: str = ""

    @classmethod
    def pinned(cls, said: Mapping[str, Any]) -> Artifact:
        """Read what the asset says of a file."""
        group, name, version, packaging, *classifier = said["coordinates"].split(":")
        return cls(group, name, version, packaging, said["sha256"], said["size"], *classifier)

    @property
    def file_name(self) -> str:
        """Name the file as the repository does."""
        variant = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{variant}.{self.packaging}"

    @property
    def coordinates(self) -> str:
        """Name the artifact as Maven does, `group:name:version:packaging[:classifier]`."""
        variant = f":{self.classifier}" if self.classifier else ""
        return f"{self.group}:{self.name}:{self.version}:{self.packaging}{variant}"


class Module(NamedTuple):
    """A module that is laid out by hand; `policy` is what the security manager is to allow it."""

    classname: str
    jars: tuple[Artifact, ...]
    extends: tuple[str, ...] = ()
    policy: str = ""

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Module:
        """Read what the asset says of a module."""
        policy = "".join(f"{line}\n" for line in said.get("policy", ()))
        return cls(said["classname"], all_of(said["jars"]), tuple(said.get("extends", ())), policy)


def all_of(said: list[dict[str, Any]]) -> tuple[Artifact, ...]:
    """Read several files."""
    return tuple(map(Artifact.pinned, said))


_PINNED = load_asset("artifacts.json")
DISTRIBUTIONS = {
    version: Artifact.pinned(distribution) for version, distribution in _PINNED["distributions"].items()
}
PLUGINS = {
    version: {name: Artifact.pinned(plugin) for name, plugin in plugins.items()}
    for version, plugins in _PINNED["plugins"].items()
}
MODULES = {
    version: {name: Module.from_json(module) for name, module in modules.items()}
    for version, modules in _PINNED["modules"].items()
}
WORD_BREAKING = all_of(_PINNED["word_breaking"])
"""A Java runtime without Thai word breaking cannot build any index: "Failed to build analyzers: [thai]"."""
