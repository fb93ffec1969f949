"""Small state files on this machine: folders of encoders, measured values, and local files with text.

Only paths of encoder folders are stored; a loader checks the fingerprint. Files with text (refused documents,
token caches, documents of the gate, requests of a shadow) are readable by their owner only. `hybridr status`
lists those of an index, and `hybridr clean` deletes them unless they were changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError, SettingsError
from ..records import Reported
from .local import (
    acquire_lock,
    child_path,
    final_name,
    parsed_json,
    state_folder,
    storing,
    text_within,
    write_json,
)

ENCODERS, SPREADS, SCALES, KNOWN_FILE = "encoders.json", "spreads.json", "scales.json", "checkpoints.json"
REJECTS, SHADOWS, REGISTER = "rejects", "shadows", "texts.json"
IRREPLACEABLE = {
    ENCODERS: "the folders of your own encoders",
    KNOWN_FILE: "the files of published models as first fetched",
    REGISTER: "the places of documents' text",
}
MAX_INDICES = 8  # whose scales are stored
_spreads: dict[str, float] = {}


def read_state_file(file: str) -> dict[str, Any]:
    """Return the JSON object in a file of the state folder; empty if the file is missing.

    A damaged file counts as empty, except that one listed in IRREPLACEABLE raises DataError.
    """
    path = child_path(state_folder(), file)
    try:
        if isinstance(entries := parsed_json(text_within(path)), dict):
            return entries
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        pass
    if file in IRREPLACEABLE:
        raise DataError(
            f"{path} cannot be read; it lists {IRREPLACEABLE[file]}",
            hint="repair it, or move it away: hybridr then goes on without it",
        )
    return {}


@contextmanager
def change_state_file(file: str, *, private: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the JSON object in a file of the state folder; write it back if it or its order was changed.

    A lock makes other threads and processes wait with their changes. Raises DownloadError, and DataError as
    `read_state_file`.
    """
    with storing(state_folder(), "free some space, or set HYBRIDR_HOME to a folder you may write to"):
        state_folder().mkdir(parents=True, exist_ok=True)
        with acquire_lock(child_path(state_folder(), f".{file}.lock")):
            entries = read_state_file(file)
            old_entries = list(entries.items())
            yield entries
            if list(entries.items()) != old_entries:
                write_json(child_path(state_folder(), file), entries, private=private)


def remember_encoder(key: str, folder: Path | None) -> None:
    """Store an encoder's folder (None: do nothing) under its fingerprint, or the index that it serves."""
    if folder is not None:
        with change_state_file(ENCODERS) as entries:
            entries[key] = str(folder.resolve())


def known_encoder_folder(fingerprint: str) -> Path | None:
    """Return the stored folder of the encoder with this fingerprint; None if none is stored or it is gone."""
    folder = read_state_file(ENCODERS).get(fingerprint)
    return Path(folder) if isinstance(folder, str) and Path(folder).is_dir() else None


def forget_encoder(key: str) -> None:
    """Delete the stored folder of an index's promoted encoder; the folder itself stays."""
    with suppress(DataError), change_state_file(ENCODERS) as entries:  # a damaged file names no folder
        entries.pop(key, None)


def remember_spread(key: str, spread: float) -> None:
    """Store the spread (standard deviation) of an encoder's cosines, in this process and in a file.

    Raises DownloadError if the file cannot be written; the process still has the value.
    """
    _spreads[key] = spread
    with change_state_file(SPREADS) as entries:
        entries[key] = spread


def known_spread(key: str) -> float | None:
    """Return the stored spread of an encoder's cosines; None if it was never measured on this machine."""
    if key not in _spreads and isinstance(spread := read_state_file(SPREADS).get(key), float):
        _spreads[key] = spread
    return _spreads.get(key)


def remember_newest(file: str, key: str, value: Any, limit: int) -> None:
    """Store a value as the newest entry of a state file of at most `limit` entries. Raises DownloadError."""
    with change_state_file(file) as entries:
        entries.pop(key, None)
        for name in list(entries)[: max(0, len(entries) + 1 - limit)]:
            del entries[name]
        entries[key] = value


def remember_scales(index: str, scales: Mapping[str, float]) -> None:
    """Store the scales of an index's queries, for the last MAX_INDICES indices. Raises DownloadError."""
    remember_newest(SCALES, index, dict(scales), MAX_INDICES)


def known_scales(index: str) -> dict[str, float]:
    """Return query -> scale as stored on this machine for an index."""
    entry = read_state_file(SCALES).get(index)
    scales = entry.items() if isinstance(entry, dict) else ()
    return {name: scale for name, scale in scales if isinstance(scale, float) and 0 <= scale < math.inf}


def known_checkpoint(repository: str) -> dict[str, Any]:
    """Return `revision` and `files` (name -> sha256) of a model repository as first fetched, or empty."""
    checkpoint = read_state_file(KNOWN_FILE).get(repository)
    return checkpoint if isinstance(checkpoint, dict) and isinstance(checkpoint.get("files"), dict) else {}


def remember_checkpoint(repository: str, revision: str, files: dict[str, str]) -> None:
    """Store the revision and files of a model repository as first fetched. Raises DownloadError."""
    with change_state_file(KNOWN_FILE) as entries:
        entries[repository] = {"revision": revision, "files": files}


TEXT_KINDS = {REJECTS: "refused documents", SHADOWS: "requests of a shadow"}
INDEX_FILE = re.compile(r"(.+)#([^#]+)\.jsonl")


@dataclass(frozen=True)
class Text(Reported):
    """A local file or folder that holds text of documents.

    `index` and `uuid` name its index; None without an index. `ours` says whether it is unchanged since
    hybridr wrote it; else it is not deleted.
    """

    path: Path
    kind: str
    bytes: int
    index: str | None = None
    uuid: str | None = None
    ours: bool = True


def file_of_index(folder: str, index: str, uuid: str) -> Path:
    """Return the file of an index in the folder REJECTS or SHADOWS. Raises DataError for an invalid name.

    The uuid distinguishes indices of one name, in several clusters or at several times.
    """
    return child_path(child_path(state_folder(), folder), f"{index}#{uuid}.jsonl")


def remember_text(path: Path, kind: str, *, temporary: Path | None = None, parts: Sequence[str] = ()) -> None:
    """Register that `path` holds text of documents; `kind` says what it is, such as `token cache`.

    A file is recognised later by its size and modification time, read from the `temporary` file that will be
    renamed to it. A folder is recognised by the names of its `parts`; the first one always exists.
    """
    status = temporary.stat() if temporary else None
    entry = {"kind": kind, "file": status and [status.st_size, status.st_mtime_ns], "parts": list(parts)}
    with change_state_file(REGISTER, private=True) as entries:
        for name in [name for name in entries if not Path(name).exists()]:
            del entries[name]
        entries[str(path.resolve())] = entry


def is_unchanged(path: Path, entry: Mapping[str, Any]) -> bool:
    """Return whether a registered file or folder is unchanged since hybridr wrote it."""
    try:
        if path.is_dir():
            files = list(path.iterdir())
            parts = {final_name(file) for file in files}
            is_same = parts <= set(entry["parts"]) and (not files or entry["parts"][0] in parts)
            is_same = is_same and all(file.is_file() and not file.is_symlink() for file in files)
        else:
            is_same = [path.stat().st_size, path.stat().st_mtime_ns] == entry["file"]
        return is_same and path.resolve() == path
    except (OSError, KeyError, TypeError):
        return False


def local_texts(name: str | None = None) -> list[Text]:
    """Return the files with text of documents of the index `name` and its destinations, or of `name#uuid`.

    `name` None means all files; then a damaged register raises DataError.
    """
    if name is None:
        return [*index_texts(), *registered_texts()]
    pattern = re.compile(rf"{re.escape(name)}(-hybridr-\d+(-returned)?)?")
    return [
        text
        for text in index_texts()
        if text.index and (pattern.fullmatch(text.index) or name == f"{text.index}#{text.uuid}")
    ]


def index_texts() -> list[Text]:
    """Return the files of the state folder that hold text of an index's documents."""
    texts: list[Text] = []
    for folder, kind in TEXT_KINDS.items():
        for path in sorted(child_path(state_folder(), folder).glob("*#*")):
            if match := INDEX_FILE.fullmatch(final_name(path)):
                texts.append(Text(path, kind, path.stat().st_size, match[1], match[2]))
    return texts


def registered_texts() -> list[Text]:
    """Return the registered files and folders outside the state folder that hold documents' text."""
    texts: list[Text] = []
    for path, entry in ((Path(name), entry) for name, entry in sorted(read_state_file(REGISTER).items())):
        if isinstance(entry, dict) and path.exists():
            is_same = is_unchanged(path, entry)
            files = (path.iterdir() if path.is_dir() else [path]) if is_same else ()
            size = sum(file.stat().st_size for file in files)
            texts.append(Text(path, str(entry.get("kind")), size, ours=is_same))
    return texts


def delete_texts(texts: Collection[Text], *, of_one_name: bool = False) -> list[Text]:
    """Delete local files and folders that hold documents' text, and their registration; return the deleted.

    Those that are not `ours` stay. Raises DownloadError. Raises SettingsError if they belong to several
    indices of one name (in several clusters or at several times), unless `of_one_name` allows that.
    """
    uuids = sorted({f"{text.index}#{text.uuid}" for text in texts if text.index and text.ours})
    if not of_one_name and len(uuids) > len({uuid.partition("#")[0] for uuid in uuids}):
        raise SettingsError(
            f"several indices have the same name, in other clusters or earlier: {', '.join(uuids)}",
            hint=f"hybridr clean '{uuids[0]}' --yes, or without --yes to be asked",
        )
    paths, existing = {text.path for text in texts}, index_texts()
    existing += registered_texts() if any(text.index is None for text in texts) else []
    deleted = [text for text in existing if text.path in paths and text.ours]
    for text in deleted:
        with storing(text.path):
            for file in text.path.iterdir() if text.path.is_dir() else [text.path]:
                file.unlink(missing_ok=True)
            if text.path.is_dir():
                text.path.rmdir()
    if entry_paths := {str(text.path) for text in deleted if text.index is None}:
        with change_state_file(REGISTER, private=True) as entries:
            for path in entry_paths & entries.keys():
                del entries[path]
    return deleted
