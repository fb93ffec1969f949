"""Safe reading of files that others made: checks of links, size, depth of JSON, and unpacked size.

A file is opened for reading here, or below a call of `regular`; tests/hostile/test_opening.py holds all of
hybridr to that. Everything here raises ValueError, which each reader turns into its own error with the file's
name. `HYBRIDR_LINE_MB`, `HYBRIDR_MODEL_GB` and `HYBRIDR_MEMORY_GB` move the limits that a real file may meet.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_JSON = 128 << 20
"""Bytes of a configuration or tokenizer; the largest in use, of 250,000 words, have 17 MB."""
MOST_SETTINGS = 1 << 20
"""Bytes of what a person writes by hand: a password, settings."""
MOST_HEADER = 4 << 20
"""Bytes of what a safetensors file says of its tensors; one of 500 tensors needs 50 thousand."""
AT_ONCE = 1 << 18  # bytes
GROWTH = 50
"""How many times its own size an archive may unpack to; weights shrink by a half at most."""


def most_bytes() -> int:
    """Return the size in bytes of the largest model file (weights, graph) that is opened."""
    return int(_setting("HYBRIDR_MODEL_GB", 16) * 1e9)


def most_memory() -> int:
    """Return the bytes that all open graphs may take together."""
    return int(_setting("HYBRIDR_MEMORY_GB", 6) * 1e9)


def _setting(name: str, default: float) -> float:
    """Return an environment variable as a number of at least 0, else the default. Raises ValueError."""
    text = os.environ.get(name) or default
    try:
        return max(float(text), 0.0)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, a number is needed") from None


def require_own_files(folder: Path) -> None:
    """Raise ValueError if something in `folder` is a link out of the folder, or neither file nor folder.

    Links of the model hub's cache into its own `blobs` folder are allowed.
    """
    whole = folder.resolve()
    store, roots = whole.parent.parent, [whole]
    if whole.parent.name == "snapshots" and store.name.startswith("models--"):
        roots.append(store / "blobs")
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            name = path.relative_to(folder).as_posix()
            if not path.is_symlink():
                if not stat.S_ISREG(kind := path.lstat().st_mode) and not stat.S_ISDIR(kind):
                    raise ValueError(f"{name} is neither a file nor a folder")
                continue
            try:
                target = path.resolve()
            except (OSError, RuntimeError):  # a circle of links
                raise ValueError(f"{name} is a link that leads nowhere") from None
            if target.is_dir() or not any(target.is_relative_to(root) for root in roots):
                raise ValueError(f"{name} is a link that leads out of the folder, which is not followed")


def regular(path: Path) -> Path:
    """Return the path unchanged. Raises ValueError for a pipe or a device, which may not end, and OSError."""
    if not stat.S_ISREG(kind := path.stat().st_mode) and not stat.S_ISDIR(kind):
        raise ValueError(f"{path.name} is a pipe or a device, a regular file is needed")
    return path


def read_within(path: Path, limit: int = MOST_JSON) -> bytes:
    """Return the bytes of a file of at most `limit` bytes. Raise ValueError, OSError."""
    content = bytearray()
    with regular(path).open("rb") as file:
        # In parts: `read` takes memory for all that it may get, however little there is.
        while len(content) <= limit and (part := file.read(min(AT_ONCE, limit + 1 - len(content)))):
            content += part
    if len(content) > limit:
        raise ValueError(f"{path.name} has more than {limit / 1e6:,.0f} MB")
    return bytes(content)


def text_within(path: Path, limit: int = MOST_JSON) -> str:
    """Return a file of at most `limit` bytes as UTF-8 text. Raise ValueError, OSError."""
    return read_within(path, limit).decode()


def require_size(path: Path) -> None:
    """Raise ValueError if a model file is too large, or if a safetensors file lists too many tensors."""
    if (size := path.stat().st_size) > most_bytes():
        raise ValueError(
            f"{path.name} has {size / 1e9:,.1f} GB, at most {most_bytes() / 1e9:g} are opened "
            "(HYBRIDR_MODEL_GB)"
        )
    if path.suffix == ".safetensors":
        with regular(path).open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if MOST_HEADER < header < size:
            raise ValueError(f"{path.name} has a list of {header / 1e6:,.0f} MB of its tensors")


def parsed_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError, also for what is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def numbered_lines(
    path: Path, encoding: str = "utf-8", newline: str | None = None, errors: str = "strict"
) -> Iterator[tuple[int, str]]:
    """Yield each line of a plain or gzip file with its number, from 1. Raises OSError.

    Raises ValueError for damage, and for a line of more than HYBRIDR_LINE_MB million characters.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    limit, number = int(_setting("HYBRIDR_LINE_MB", 64) * 1e6), 0  # characters
    try:
        with opened(regular(path), "rt", encoding=encoding, errors=errors, newline=newline) as lines:
            while line := lines.readline(limit + 1):
                if len(line) > limit:  # before it is read whole
                    raise ValueError(f"it has a line of more than {limit:,} characters (HYBRIDR_LINE_MB)")
                number += 1
                yield number, line
    except (EOFError, zlib.error) as error:
        raise ValueError(str(error)) from error


def members_within(archive: zipfile.ZipFile, names: list[str], size: int) -> dict[str, bytes]:
    """Return name -> bytes of members of a zip archive of `size` bytes. Raises ValueError if they unpack to
    far more.

    The declared sizes are compared before anything is unpacked; `zipfile` reads no more than is declared.
    """
    limit = min(GROWTH * size, most_bytes())
    declared = sum(archive.getinfo(name).file_size for name in names)
    if declared > limit:
        raise ValueError(
            f"it would unpack {size / 1e6:,.1f} MB to {declared / 1e6:,.0f} MB, "
            f"{limit / 1e6:,.0f} MB are the limit"
        )
    return {name: archive.read(name) for name in names}
