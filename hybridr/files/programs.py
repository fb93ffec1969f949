"""Programs in the cache, made whole or not at all, and the account that runs them (never root)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypedDict

from ..errors import NodeError
from .atomic import acquired_lock, storing
from .folders import below, is_root, reachable

UNPRIVILEGED = 60939  # a number without an account: nobody else owns files or processes under it


class Account(TypedDict, total=False):
    """Arguments for `subprocess` that change who runs; empty for an ordinary user."""

    user: int
    group: int
    extra_groups: list[int]


def account() -> Account:
    """Name who is to run the node."""
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


def open_to_all(folder: Path) -> None:
    """Let every user read a program: nodes may run under another account than the one that unpacked it."""
    for entry in (folder, *folder.rglob("*")):
        mode = entry.stat().st_mode
        entry.chmod(mode | (0o755 if entry.is_dir() or mode & 0o100 else 0o644))


CLEARED_TIMES, CLEARED_AGAIN_S = 5, 0.2


def ensure_program(home: Path, is_there: Callable[[], bool], make: Callable[[Path], Path]) -> Path:
    """Give the folder of a program; unless it is there, `make` makes it somewhere below a temporary folder.

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
                    open_to_all(program)
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
    """Turn a full disk or a read-only cache into a DownloadError that says how to move the cache."""
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
