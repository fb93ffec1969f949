"""Small state files on this machine: folders of encoders, measured values, and a list of local files that
hold documents' text.

Of encoder folders only paths are kept; whoever loads one checks its fingerprint. Files with text (refused
documents, token caches, pseudo-queries, requests of a shadow) are readable by their owner only; `hybridr
status` lists them and `hybridr clean` removes them.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..records import Reported
from .local import acquired_lock, below, state_folder, storing, text_within, write_json

ENCODERS, SPREADS, SCALES, KNOWN_FILE = "encoders.json", "spreads.json", "scales.json", "checkpoints.json"
MOST_INDICES = 8  # whose scales are kept
_spreads: dict[str, float] = {}


def known_in(file: str) -> dict[str, Any]:
    """Return a JSON object from a file of the state folder; empty if the file is missing or damaged."""
    try:
        entries: Any = json.loads(text_within(below(state_folder(), file)))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


@contextmanager
def changing(file: str, *, private: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a JSON object of the state folder under a lock; write it back if the block changed it.

    Other threads and processes that want to change it wait. Raises DownloadError.
    """
    with storing(state_folder()):
        state_folder().mkdir(parents=True, exist_ok=True)
        with acquired_lock(below(state_folder(), f".{file}.lock")):
            entries = known_in(file)
            before = dict(entries)
            yield entries
            if entries != before:
                write_json(below(state_folder(), file), entries, private=private)


def remember_encoder(key: str, folder: Path | None) -> None:
    """Store the folder of an encoder, if it has one, under its fingerprint or the index it was promoted
    for.
    """
    if folder is not None:
        with changing(ENCODERS) as entries:
            entries[key] = str(folder.resolve())


def folder_of(fingerprint: str) -> Path | None:
    """Return the stored folder of the encoder with this fingerprint; None if unknown or gone."""
    folder = known_in(ENCODERS).get(fingerprint)
    return Path(folder) if isinstance(folder, str) and Path(folder).is_dir() else None


def forget(key: str) -> None:
    """Delete the stored folder of an index's promoted encoder; the folder itself stays."""
    with changing(ENCODERS) as entries:
        entries.pop(key, None)


def remember_spread(key: str, spread: float) -> None:
    """Store the spread (standard deviation) of an encoder's cosines. Raise DownloadError if only this process
    can keep it.
    """
    _spreads[key] = spread
    with changing(SPREADS) as entries:
        entries[key] = spread


def spread_known(key: str) -> float | None:
    """Return the stored spread of an encoder's cosines; None if it was never measured on this machine."""
    if key not in _spreads and isinstance(spread := known_in(SPREADS).get(key), float):
        _spreads[key] = spread
    return _spreads.get(key)


def remember_newest(file: str, key: str, value: Any, limit: int) -> None:
    """Store a value as the newest entry of a state file, which keeps the newest `limit`. Raise
    DownloadError.
    """
    with changing(file) as entries:
        entries.pop(key, None)
        for name in list(entries)[: max(0, len(entries) + 1 - limit)]:
            del entries[name]
        entries[key] = value


def remember_scales(index: str, scales: Mapping[str, float]) -> None:
    """Store the scales of an index's queries; those of a few indices are kept. Raise DownloadError."""
    remember_newest(SCALES, index, dict(scales), MOST_INDICES)


def scales_known(index: str) -> dict[str, float]:
    """Return query -> scale as stored on this machine for an index."""
    entry = known_in(SCALES).get(index)
    scales = entry.items() if isinstance(entry, dict) else ()
    return {name: scale for name, scale in scales if isinstance(scale, float) and 0 <= scale < math.inf}


def known_checkpoint(repository: str) -> dict[str, Any]:
    """Return the `revision` and `files` (name: sha256) that a model repository had when it was first
    fetched.
    """
    checkpoint = known_in(KNOWN_FILE).get(repository)
    return checkpoint if isinstance(checkpoint, dict) and isinstance(checkpoint.get("files"), dict) else {}


def remember_checkpoint(repository: str, revision: str, files: dict[str, str]) -> None:
    """Store the revision and files that a model repository had when it was first fetched. Raise
    DownloadError.
    """
    with changing(KNOWN_FILE) as entries:
        entries[repository] = {"revision": revision, "files": files}


REJECTS, SHADOWS, REGISTER = "rejects", "shadows", "texts.json"


@dataclass(frozen=True)
class Text(Reported):
    """A local file or folder that holds text of documents; `index` is None if it belongs to no single
    index.
    """

    path: Path
    kind: str
    index: str | None
    bytes: int


def file_of_index(folder: str, index: str, uuid: str) -> Path:
    """Return the file of an index in REJECTS or SHADOWS; another index of the same name, in this cluster or
    another one, has another uuid. Raise DataError for an invalid index name.
    """
    return below(below(state_folder(), folder), f"{index}#{uuid}.jsonl")


def remember_text(path: Path, kind: str, index: str | None = None) -> None:
    """Register that `path` holds text of documents; `kind` says what it is, such as `token cache`."""
    with changing(REGISTER, private=True) as entries:
        for name in [name for name in entries if not Path(name).exists()]:
            del entries[name]
        entries[str(path.resolve())] = {"kind": kind, "index": index}


def texts(name: str | None = None) -> list[Text]:
    """Return the existing local files that hold documents' text, of one index and its destinations or of
    all.
    """
    folders = {
        "refused documents": state_folder() / REJECTS,
        "requests of a shadow": state_folder() / SHADOWS,
    }
    listed: list[tuple[Path, str, str | None]] = [
        (path, kind, path.stem.partition("#")[0])
        for kind, folder in folders.items()
        for path in sorted(folder.glob("*.jsonl"))
    ]
    entries = [(path, entry) for path, entry in sorted(known_in(REGISTER).items()) if isinstance(entry, dict)]
    listed += [(Path(path), str(entry.get("kind")), entry.get("index")) for path, entry in entries]
    destination = rf"{re.escape(name or '')}(-hybridr-\d+(-returned)?)?"
    there = []
    for path, kind, index in listed:
        if path.exists() and (name is None or re.fullmatch(destination, str(index)) is not None):
            files = path.rglob("*") if path.is_dir() else [path]
            size = sum(file.stat().st_size for file in files if file.is_file())
            there.append(Text(path, kind, index, size))
    return there


def delete_texts(chosen: list[Text]) -> None:
    """Delete local files and folders that hold documents' text, and their registration."""
    for text in chosen:
        if text.path.is_dir() and not text.path.is_symlink():
            shutil.rmtree(text.path)
        else:
            text.path.unlink(missing_ok=True)
    gone = {str(text.path) for text in chosen}
    with changing(REGISTER, private=True) as entries:
        for path in gone & entries.keys():
            del entries[path]


def clean(name: str | None = None, *, dry_run: bool = False) -> list[Text]:
    """Delete the local files that hold documents' text; return what was, or with `dry_run` would be,
    deleted.
    """
    local_texts = texts(name)
    if not dry_run:
        delete_texts(local_texts)
    return local_texts
