"""Every settings class (stage) in the order of `hybridr settings`, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

PACKAGES = {
    "ClusterSettings": "cluster",
    "NodeSettings": "cluster",
    "LoadSettings": "cluster",
    "AdaptSettings": "training",
    "DamSettings": "training",
    "RemSettings": "training",
    "ReindexSettings": "indexing",
    "SearchSettings": "search",
    "DeploySettings": "serving",
    "TuneSettings": "relevance",
    "ServeSettings": "serving",
    "AssessorSettings": "serving",
    "McpSettings": "serving",
}
"""The names of the stages, and the package in whose `settings.py` each is declared."""


class Stages(dict[str, Any]):
    """The settings classes by name, each imported when it is read."""

    def __missing__(self, name: str) -> Any:
        if name not in PACKAGES:
            raise KeyError(name)
        self[name] = getattr(import_module(f"hybridr.{PACKAGES[name]}.settings"), name)
        return self[name]


STAGES = Stages()
