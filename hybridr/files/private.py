"""Local files that hold text of documents: refused documents, token caches, pseudo-queries.

All of them are readable by their owner only. Rejects have a folder of their own; whatever lies elsewhere is
remembered here, so that `hybridr status` can list it and `hybridr clean` can remove it.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .folders import below, state_folder
from .remembered import changing, known_in

REJECTS, REGISTER = "rejects", "texts.json"


@dataclass(frozen=True)
class Text:
    """A file or folder that holds text of documents; `index` None when it belongs to no single one."""

    path: Path
    kind: str
    index: str | None
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return {**asdict(self), "path": str(self.path)}


def rejects_file(index: str) -> Path:
    """Name the file of the documents that an index refused. Raises DataError for what is no index's name."""
    return below(state_folder() / REJECTS, f"{index}.jsonl")


def remember_text(path: Path, kind: str, index: str | None = None) -> None:
    """Note that `path` holds text of documents; `kind` says what it is, such as `token cache`."""
    with changing(REGISTER, private=True) as entries:
        for name in [name for name in entries if not Path(name).exists()]:
            del entries[name]
        entries[str(path.resolve())] = {"kind": kind, "index": index}


def texts(name: str | None = None) -> list[Text]:
    """List what is there, of one index and its destinations or of all."""
    rejects = sorted((state_folder() / REJECTS).glob("*.jsonl"))
    listed = [(path, "refused documents", path.stem) for path in rejects]
    listed += [
        (Path(path), entry["kind"], entry["index"]) for path, entry in sorted(known_in(REGISTER).items())
    ]
    return [
        Text(path, kind, index, size_of(path))
        for path, kind, index in listed
        if path.exists() and (name is None or belongs(index, name))
    ]


def belongs(index: str | None, name: str) -> bool:
    """Tell whether an index is `name` or a destination made of it."""
    return (
        index is not None
        and re.fullmatch(re.escape(name) + r"(-hybridr-\d+(-returned)?)?", index) is not None
    )


def size_of(path: Path) -> int:
    """Add up the bytes of a file or folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def delete_texts(chosen: list[Text]) -> None:
    """Delete files and folders, and forget them."""
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
    """Delete the local files that hold text of documents; give what was, or would be, deleted."""
    found_texts = texts(name)
    if not dry_run:
        delete_texts(found_texts)
    return found_texts
