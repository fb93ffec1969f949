"""Programs that hybridr installs in its cache, and the account of nodes (OpenSearch never runs as root)."""

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
from .local import acquire_lock, child_path, is_reachable, is_root, storing

UNPRIVILEGED = 60939  # an id without an account, so no one else owns files or processes under it
CLEARED_TIMES, CLEARED_AGAIN_S = 5, 0.2


class Account(TypedDict, total=False):
    """Arguments of `subprocess` for running a program as another user; empty for an ordinary user."""

    user: int
    group: int
    extra_groups: list[int]


def node_account() -> Account:
    """Return the `subprocess` arguments for an unprivileged account that runs nodes; empty unless root."""
    if not is_root():
        return {}
    return {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}


def make_reachable(path: Path) -> None:
    """Create a folder that the node's account can enter. Raises NodeError if a folder above it is closed."""
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in created if is_root() else ():
        folder.chmod(0o755)  # despite root's umask
    if not is_reachable(path):
        raise NodeError(
            f"OpenSearch does not run as root, and other users cannot enter {path}",
            hint="set HYBRIDR_HOME to a folder that they can enter, or run hybridr as an ordinary user",
        )


def give_to_node(path: Path) -> None:
    """Make the node's account the owner of `path` and of everything below it, if this process is root."""
    owner = node_account()
    if not owner:
        return
    for folder, _, names in os.walk(path):
        for entry in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(entry, owner["user"], owner["group"], follow_symlinks=False)


def ensure_program(home: Path, is_installed: Callable[[], bool], build: Callable[[Path], Path]) -> Path:
    """Return the folder `home` of a program; `build` builds it first if it is not installed.

    `build` gets a temporary folder and returns the program's folder inside it. Leftovers of killed processes
    are deleted. Raises DownloadError, NodeError.
    """
    if is_installed():
        return home
    with storing_programs(home.parent):
        make_reachable(home.parent)
        with locked(child_path(home.parent, f".{home.name}.lock")):
            if not is_installed():  # another process may have built it while this one waited
                clear_leftovers(home.parent, f".{home.name}-*")
                options = {"prefix": f".{home.name}-", "dir": str(home.parent)}
                with tempfile.TemporaryDirectory(**options, ignore_cleanup_errors=True) as temporary:
                    program = build(Path(temporary))
                    # Nodes may run under an account that did not unpack the program.
                    for entry in (program, *program.rglob("*")):
                        mode = entry.stat().st_mode
                        entry.chmod(mode | (0o755 if entry.is_dir() or mode & 0o100 else 0o644))
                    shutil.rmtree(home, ignore_errors=True)
                    program.rename(home)
    return home


def clear_leftovers(folder: Path, pattern: str) -> None:
    """Delete temporary folders of killed processes, in up to `CLEARED_TIMES` tries against late writes."""
    for _ in range(CLEARED_TIMES):
        leftovers = list(folder.glob(pattern))
        for leftover in leftovers:
            shutil.rmtree(leftover, ignore_errors=True)
        if not any(leftover.exists() for leftover in leftovers):
            return
        time.sleep(CLEARED_AGAIN_S)


def storing_programs(folder: Path) -> AbstractContextManager[None]:
    """Return a context that turns an OSError into DownloadError with the hint to move the cache."""
    return storing(folder, "free some space or make it writable, or set HYBRIDR_CACHE to another folder")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` during the block; wait while another process holds it. Raises NodeError."""
    if sys.platform == "win32":
        raise NodeError("the embedded node runs on Linux and macOS", hint="use docker-compose.yml, or WSL")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(path)
    except OSError as error:
        raise NodeError(
            f"cannot write {path}: {error.strerror}",
            hint="make the folder writable, or set HYBRIDR_HOME to another one",
        ) from error
    with lock:
        yield
