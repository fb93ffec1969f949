"""Atomic writing of files and folders (made under another name, then renamed), locks, and the account that
runs nodes.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, TypedDict

from ..errors import DownloadError, NodeError
from .folders import below, is_root, reachable

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

UNPRIVILEGED = 60939  # a number without an account: nobody else owns files or processes under it
CLEARED_TIMES, CLEARED_AGAIN_S = 5, 0.2


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`; move it to `path` if the block succeeds.

    A folder that stood at `path` is replaced. Raises DownloadError if the disk is full or not writable.
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
    """Run the block; turn an OSError in it into DownloadError with `path` in the message and a `hint`."""
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
    """Raise DownloadError if the disk of `folder` has less than `needed_bytes` free."""
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
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds.

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


def append_private(path: Path, text: str) -> None:
    """Append text to a file that only its owner can read; create it if missing. Raise OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """Write `value` as indented JSON atomically."""
    with replacing(path, private=private) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def acquired_lock(path: Path, *, wait: bool = True) -> IO[str]:
    """Open and lock the lock file `path`; return the open file, whose closing ends the lock. Raise OSError.

    While another thread or process holds the lock, this waits, or raises BlockingIOError without `wait`. On
    Windows nothing is locked.
    """
    file = path.open("a")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            file.close()
            raise
    return file


class Account(TypedDict, total=False):
    """Arguments of `subprocess` for running a program as another user; empty for an ordinary user."""

    user: int
    group: int
    extra_groups: list[int]


def account() -> Account:
    """Return the `subprocess` arguments by which nodes run: an unprivileged account if this process is
    root.
    """
    if not is_root():
        return {}
    return {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}


def make_reachable(path: Path) -> None:
    """Create a folder that the node's account can enter. Raises NodeError if a folder above it is closed."""
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in created if is_root() else ():
        folder.chmod(0o755)  # whatever root's umask says
    if not reachable(path):
        raise NodeError(
            f"OpenSearch does not run as root, and other users cannot enter {path}",
            hint="set HYBRIDR_HOME to a folder that they can enter, or run hybridr as an ordinary user",
        )


def give(path: Path) -> None:
    """Make the node's account the owner of `path` and of everything below it, if this process is root."""
    owner = account()
    if not owner:
        return
    for folder, _, names in os.walk(path):
        for entry in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(entry, owner["user"], owner["group"], follow_symlinks=False)


def ensure_program(home: Path, is_there: Callable[[], bool], make: Callable[[Path], Path]) -> Path:
    """Return the folder `home` of a program; if `is_there` says no, build it first with `make` in a temporary
    folder.

    Leftovers of killed processes are deleted. Raises DownloadError, NodeError.
    """
    if is_there():
        return home
    with storing_programs(home.parent):
        make_reachable(home.parent)
        with locked(below(home.parent, f".{home.name}.lock")):
            if not is_there():  # another process may have made it while this one waited
                clear_leftovers(home.parent, f".{home.name}-*")
                place = {"prefix": f".{home.name}-", "dir": str(home.parent)}
                with tempfile.TemporaryDirectory(**place, ignore_cleanup_errors=True) as temporary:
                    program = make(Path(temporary))
                    # Nodes may run under another account than the one that unpacked it.
                    for entry in (program, *program.rglob("*")):
                        mode = entry.stat().st_mode
                        entry.chmod(mode | (0o755 if entry.is_dir() or mode & 0o100 else 0o644))
                    shutil.rmtree(home, ignore_errors=True)
                    program.rename(home)
    return home


def clear_leftovers(folder: Path, pattern: str) -> None:
    """Delete temporary folders of processes that were killed; try again for a while if something still writes
    there.
    """
    for _ in range(CLEARED_TIMES):
        leftovers = list(folder.glob(pattern))
        for left in leftovers:
            shutil.rmtree(left, ignore_errors=True)
        if not any(left.exists() for left in leftovers):
            return
        time.sleep(CLEARED_AGAIN_S)


def storing_programs(folder: Path) -> AbstractContextManager[None]:
    """Return a context that turns an OSError into DownloadError with a hint how to move the cache."""
    return storing(folder, "free some space or make it writable, or set HYBRIDR_CACHE to another folder")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` during the block; wait while another process holds it. Raises NodeError."""
    if sys.platform == "win32":
        raise NodeError("the embedded node runs on Linux and macOS", hint="use docker-compose.yml, or WSL")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = acquired_lock(path)
    except OSError as error:
        raise NodeError(
            f"cannot write {path}: {error.strerror}",
            hint="make the folder writable, or set HYBRIDR_HOME to another one",
        ) from error
    with lock:
        yield
