"""Remembers on this machine where encoders lie, and what was measured of encoders and of clients' queries.

Of folders only paths are kept; whoever loads one checks it against the fingerprint it should have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .atomic import storing, write_json
from .folders import below, state_folder
from .foreign import text_within

ENCODERS, SPREADS, SCALES, KNOWN_FILE = "encoders.json", "spreads.json", "scales.json", "checkpoints.json"
MOST_INDICES = 8  # whose scales are kept
_spreads: dict[str, float] = {}


def known_in(file: str) -> dict[str, Any]:
    """Read a JSON object of the state folder; an empty one where there is none, or it is damaged."""
    try:
        entries: Any = json.loads(text_within(below(state_folder(), file)))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def keep_in(file: str, entries: Mapping[str, Any], *, private: bool = False) -> None:
    """Write a JSON object of the state folder. Raises DownloadError."""
    with storing(state_folder()):
        write_json(below(state_folder(), file), entries, private=private)


def _read() -> dict[str, Any]:
    return known_in(ENCODERS)


def _remember(key: str, folder: Path) -> None:
    keep_in(ENCODERS, {**_read(), key: str(folder.resolve())})


def remember_encoder(fingerprint: str, folder: Path | None) -> None:
    """Remember where the encoder with this fingerprint lies, if it lies anywhere."""
    if folder is not None:
        _remember(fingerprint, folder)


def folder_of(fingerprint: str) -> Path | None:
    """Name the folder of the encoder with this fingerprint, if it lies where it did."""
    folder = _read().get(fingerprint)
    return Path(folder) if folder and Path(folder).is_dir() else None


def forget(key: str) -> None:
    """Forget an index's promoted encoder; its folder stays."""
    entries = _read()
    if entries.pop(key, None) is not None:
        keep_in(ENCODERS, entries)


def remember_spread(key: str, spread: float) -> None:
    """Keep the spread of an encoder's cosines. Raises DownloadError where only this process can keep it."""
    _spreads[key] = spread
    keep_in(SPREADS, {**known_in(SPREADS), key: spread})


def spread_known(key: str) -> float | None:
    """Give the spread that was measured before, in this process or another; None for none."""
    if key not in _spreads and isinstance(spread := known_in(SPREADS).get(key), float):
        _spreads[key] = spread
    return _spreads.get(key)


def remember_scales(index: str, scales: Mapping[str, float]) -> None:
    """Keep the scales of the queries of an index, and those of a few before. Raises DownloadError."""
    others = [(name, scales) for name, scales in known_in(SCALES).items() if name != index]
    keep_in(SCALES, dict(others[1 - MOST_INDICES :]) | {index: dict(scales)})


def scales_known(index: str) -> dict[str, float]:
    """Give the scales of queries that were measured before on this machine."""
    entry = known_in(SCALES).get(index)
    scales = entry.items() if isinstance(entry, dict) else ()
    return {name: scale for name, scale in scales if isinstance(scale, float) and 0 <= scale < math.inf}


def known_checkpoint(repository: str) -> dict[str, Any]:
    """Give the revision and the sha256 of files (`files`) that a repository had when it was first fetched."""
    checkpoint = known_in(KNOWN_FILE).get(repository)
    return checkpoint if isinstance(checkpoint, dict) and isinstance(checkpoint.get("files"), dict) else {}


def remember_checkpoint(repository: str, revision: str, files: dict[str, str]) -> None:
    """Keep what a repository was when it was first fetched. Raises DownloadError."""
    checkpoint = {"revision": revision, "files": files}
    keep_in(KNOWN_FILE, {**known_in(KNOWN_FILE), repository: checkpoint})
