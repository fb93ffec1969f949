"""Finds the files of `opensearch/`: installed as `hybridr/assets`, or beside the package in a checkout."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any


def asset_path(*parts: str) -> Path:
    """Name the path of an asset such as `("pipelines", "hybrid.json")`."""
    package = Path(str(files("hybridr")))
    installed = package / "assets"
    root = installed if installed.is_dir() else package.parent / "opensearch"
    return root.joinpath(*parts)


def load_asset(*parts: str) -> dict[str, Any]:
    """Read a JSON asset as a fresh dictionary that the caller may change."""
    value: dict[str, Any] = json.loads(asset_path(*parts).read_text(encoding="utf-8"))
    return value
