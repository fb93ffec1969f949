"""Files and folders that are there whole or not at all: written under another name, then renamed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import DownloadError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Give an empty temporary folder beside `path` and move it into place when the block succeeds.

    What stood at `path` is replaced. Raises DownloadError when the disk is full or not writable.
    """
    path = path.absolute()
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            (temporary / "new").mkdir()
            yield temporary / "new"
            if path.exists():
                path.rename(temporary / "old")
            (temporary / "new").rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def storing(path: Path, hint: str | None = None) -> Iterator[None]:
    """Turn a disk's refusal inside the block into a DownloadError that names `path`, with another `hint`."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DownloadError(
            f"cannot write {path}: {'the disk is full' if full else error.strerror or error}",
            hint=hint
            or ("free some space or choose another folder" if full else "choose a folder you may write to"),
        ) from error


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise DownloadError when the disk of `folder` has less than `needed_bytes` left."""
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise DownloadError(
            f"{folder} has {free / 1e6:,.0f} MB free, {needed_bytes / 1e6:,.0f} MB are needed",
            hint="free some space, or set HYBRIDR_CACHE to a folder on a larger disk",
        )


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Give a temporary path beside `path` and rename it into place when the block succeeds.

    `private` files, which hold text of documents, are readable by their owner only.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o600 if private else 0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    with replacing(path, private=private) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def acquired_lock(path: Path) -> IO[str]:
    """Return the lock file `path`, open and held until it is closed. Raise OSError where it cannot be opened.

    Waits while another thread or process holds it. Windows has no such lock: there nothing is held.
    """
    file = path.open("a")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except BaseException:
            file.close()
            raise
    return file
