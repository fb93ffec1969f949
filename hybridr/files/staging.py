"""Folders that are written as a whole, by one run at a time, and what killed runs leave beside them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..errors import DownloadError
from .local import acquire_lock, final_name, storing

_claims: set[tuple[Path, int]] = set()


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`; move it to `path` if the block succeeds.

    A folder that stood at `path` is replaced. Another process that writes to `path` is waited for. Raises
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

    If `path` was moved into it and is not replaced yet, the new folder is whole and takes its place.
    """
    if (temporary / "old").exists() and not path.exists():
        (temporary / ("new" if (temporary / "new").exists() else "old")).rename(path)
    shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def claimed_folder(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other runs from writing to the folder `path` during the block, and finish what a killed one left.

    With `wait` another run is waited for, else DownloadError is raised. Within a claim of this thread, in the
    helpers of a training by several processes, and where nothing can be locked, the block just runs.
    """
    path, claim = path.absolute(), (path.resolve(), threading.get_ident())
    lock = None
    if claim not in _claims and os.environ.get("RANK", "0") == "0":  # of `accelerate launch` and its like
        lock = claim_lock(claim[0], wait)
    if lock is None:
        yield
        return
    _claims.add(claim)
    try:
        with storing(path):
            for left in leftovers_of(path):
                if left.is_dir() and {part.name for part in left.iterdir()} <= {"new", "old"}:
                    finish_staging(left, path)
        yield
    finally:
        _claims.discard(claim)
        Path(lock.name).unlink(missing_ok=True)
        lock.close()


def claim_lock(path: Path, wait: bool) -> IO[str] | None:
    """Return the locked file beside `path` that says that somebody writes there; None where that cannot be.

    Raises DownloadError without `wait` if another run has it.
    """
    file = path.with_name(f".{path.name}.lock")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        while sys.platform != "win32":
            lock = acquire_lock(file, wait=wait)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                    return lock
            lock.close()  # whoever had it has deleted it
    except BlockingIOError:
        raise DownloadError(
            f"another run writes to {path} at this moment",
            hint="wait until it has ended, then run this again; or choose another folder with --out",
        ) from None
    except OSError:  # nothing may be written there, as the block will say, or the disk knows no locks
        pass
    return None


def leftovers_of(path: Path) -> list[Path]:
    """Return the temporary files and folders beside `path`: of killed processes, if nobody writes it now."""
    entries = path.parent.iterdir() if path.parent.is_dir() else ()
    return [left for left in entries if left.name != path.name and final_name(left) == path.name]


def delete_leftovers(path: Path) -> None:
    """Delete what killed processes left while they wrote the file `path`, which nobody else writes now."""
    for left in leftovers_of(path):
        left.unlink(missing_ok=True)
