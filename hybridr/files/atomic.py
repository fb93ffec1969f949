"""Files, folders and programs that are there whole or not at all: made under another name, then renamed.

And the account that runs programs, which is never root.
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
    """Yield an empty temporary folder beside `path`; move it into place when the block succeeds.

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
    """Raise DownloadError, which names `path`, for an OSError inside the block; `hint` replaces its hint."""
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
    """Yield a temporary path beside `path`; rename it into place when the block succeeds.

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
    """Append to a file that only its owner can read, and make it where there is none. Raise OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    with replacing(path, private=private) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def acquired_lock(path: Path, *, wait: bool = True) -> IO[str]:
    """Return the lock file `path`, open and held until it is closed. Raise OSError where it cannot be opened.

    While another thread or process holds it, this waits, or raises BlockingIOError without `wait`. Windows
    has no such lock: there nothing is held.
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
    """Arguments for `subprocess` that change who runs; empty for an ordinary user."""

    user: int
    group: int
    extra_groups: list[int]


def account() -> Account:
    """Return the account that runs the node."""
    if not is_root():
        return {}
    return {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}


def make_reachable(path: Path) -> None:
    """Make a folder that the node's account can enter; raises NodeError when one above it is closed."""
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
    """Make the node's account the owner of `path` and of all below it."""
    owner = account()
    if not owner:
        return
    for folder, _, names in os.walk(path):
        for entry in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(entry, owner["user"], owner["group"], follow_symlinks=False)


def ensure_program(home: Path, is_there: Callable[[], bool], make: Callable[[Path], Path]) -> Path:
    """Return the folder of a program, which `make` builds below a temporary folder where it is missing.

    What a process that was killed left of it is deleted. Raises DownloadError, NodeError.
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
    """Delete temporary folders of processes that were killed.

    What these had started may go on for a moment and delete or write there itself: then it is tried again.
    What still cannot be deleted is in nobody's way.
    """
    for _ in range(CLEARED_TIMES):
        leftovers = list(folder.glob(pattern))
        for left in leftovers:
            shutil.rmtree(left, ignore_errors=True)
        if not any(left.exists() for left in leftovers):
            return
        time.sleep(CLEARED_AGAIN_S)


def storing_programs(folder: Path) -> AbstractContextManager[None]:
    """Raise DownloadError for a full disk or read-only cache; its hint says how to move the cache."""
    return storing(folder, "free some space or make it writable, or set HYBRIDR_CACHE to another folder")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; wait while another process holds it (the lock ends with its holder)."""
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
