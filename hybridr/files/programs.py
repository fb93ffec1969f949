"""Programs in the cache: each is made in a temporary folder, and is there whole or not at all."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ..errors import NodeError
from .atomic import acquired_lock, storing
from .folders import below
from .ownership import make_reachable, open_to_all

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
