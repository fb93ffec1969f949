"""Folders that appear only when complete and have one writer at a time; cleans up after killed runs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import DownloadError
from .local import acquire_lock, final_name, storing

_claims: set[tuple[Path, int]] = set()


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder next to `path`; move it to `path` if the block succeeds.

    An existing folder at `path` is replaced. This waits while another process writes to `path`. Raises
    DownloadError if the disk is full or not writable.
    """
    path = path.absolute()
    with claimed_folder(path, wait=True), storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            (temporary / "new").mkdir()
            yield temporary / "new"
            if path.exists():
                path.rename(temporary / "old")
            (temporary / "new").rename(path)
        finally:
            finish_staging(temporary, path)


def finish_staging(temporary: Path, path: Path) -> None:
    """Delete the temporary folder of a `staged_folder` that ended, failed or was killed.

    If the old folder was moved away but `path` does not exist yet, the new folder is complete and is moved to
    `path`.
    """
    if (temporary / "old").exists() and not path.exists():
        (temporary / ("new" if (temporary / "new").exists() else "old")).rename(path)
    shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def claimed_folder(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other runs from writing to the folder `path` during the block; first clean up after killed runs.

    With `wait` it waits for another run, else it raises DownloadError. The block runs without a claim if
    this thread already has one, in helper processes of a training, and on file systems without locks.
    """
    path, claim = path.absolute(), (path.resolve(), threading.get_ident())
    lock = None
    if claim not in _claims and os.environ.get("RANK", "0") == "0":  # of `accelerate launch` and the like
        lock = claim_lock(claim[0], wait=wait)
    if lock is None:
        yield
        return
    _claims.add(claim)
    try:
        with storing(path):
            for leftover in leftovers_of(path):
                if leftover.is_dir() and {part.name for part in leftover.iterdir()} <= {"new", "old"}:
                    finish_staging(leftover, path)
        yield
    finally:
        _claims.discard(claim)
        Path(lock.name).unlink(missing_ok=True)
        lock.close()


def claim_lock(path: Path, *, wait: bool) -> IO[str] | None:
    """Lock the lock file next to `path` and return it open; None if it cannot be locked.

    Raises DownloadError without `wait` if another run has the lock.
    """
    file = path.with_name(f".{path.name}.lock")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return None if sys.platform == "win32" else acquire_lock(file, wait=wait)
    except BlockingIOError:
        raise DownloadError(
            f"another run writes to {path} now",
            hint="wait until it has ended, then run this again; or choose another folder with --out",
        ) from None
    except OSError:  # not writable, which the caller will report, or a file system without locks
        return None


def leftovers_of(path: Path) -> list[Path]:
    """Return the temporary files and folders of `path`, left by killed processes if no one is writing it."""
    entries = path.parent.iterdir() if path.parent.is_dir() else ()
    return [entry for entry in entries if entry.name != path.name and final_name(entry) == path.name]


def delete_leftovers(path: Path) -> None:
    """Delete the temporary files that killed writers of the file `path` left; no one may be writing it."""
    for leftover in leftovers_of(path):
        leftover.unlink(missing_ok=True)
