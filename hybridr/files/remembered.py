"""Remembers on this machine where encoders and query maps lie, by fingerprint and by index.

Only paths are kept; whoever loads one checks it against the fingerprint it should have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .atomic import write_json
from .folders import state_folder


def _read() -> dict[str, str]:
    try:
        known: Any = json.loads((state_folder() / "encoders.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(key: str, folder: Path) -> None:
    write_json(state_folder() / "encoders.json", {**_read(), key: str(folder.resolve())})


def remember_encoder(fingerprint: str, folder: Path | None) -> None:
    """Remember where the encoder with this fingerprint lies, if it lies anywhere."""
    if folder is not None:
        _remember(fingerprint, folder)


def folder_of(fingerprint: str) -> Path | None:
    """Name the folder of the encoder with this fingerprint, if it lies where it did."""
    known = _read().get(fingerprint)
    return Path(known) if known and Path(known).is_dir() else None


def remember_map(fingerprint: str, folder: Path) -> None:
    """Remember where the query map with this fingerprint lies."""
    _remember(f"map-{fingerprint}", folder)


def folder_of_map(fingerprint: str) -> Path | None:
    """Name the folder of the query map with this fingerprint, if it lies where it did."""
    return folder_of(f"map-{fingerprint}")


def forget(key: str) -> None:
    """Forget an index's promoted encoder; its folder stays."""
    known = _read()
    if known.pop(key, None) is not None:
        write_json(state_folder() / "encoders.json", known)
